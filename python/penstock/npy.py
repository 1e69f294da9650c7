"""The header of NumPy's .npy: type and shape first, checked before anything is allocated."""

from __future__ import annotations

import ast
import math
import struct
from typing import Any, NamedTuple

import numpy as np

_MAGIC = b"\x93NUMPY"
LARGEST_HEADER = 1 << 16


class NpyHeader(NamedTuple):
    """What the header of a .npy says."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    column_major: bool
    start: int
    """Where the elements begin."""

    @property
    def nbytes(self) -> int:
        """Bytes that the elements take."""
        return self.dtype.itemsize * math.prod(self.shape)


def npy_header(data: bytes) -> NpyHeader:
    """Read a .npy header from the first bytes of a file; ValueError says what is wrong with it."""
    if len(data) < 10 or not data.startswith(_MAGIC):
        raise ValueError("it does not begin as .npy does")
    version = data[6]
    if version not in (1, 2, 3):
        raise ValueError(f"version {version} of .npy is not known")
    size, start = (struct.unpack_from("<H", data, 8)[0], 10) if version == 1 else (0, 12)
    if version > 1:
        if len(data) < 12:
            raise ValueError("its header is cut short")
        size = struct.unpack_from("<I", data, 8)[0]
    if size > LARGEST_HEADER:
        raise ValueError(f"its header claims {size:,} bytes")
    if len(data) < start + size:
        raise ValueError("its header is cut short")
    try:
        text = data[start : start + size].decode("utf-8" if version == 3 else "latin-1")
        said = ast.literal_eval(text.strip())  # literals only: nothing is executed
        described, column_major, shape = said["descr"], said["fortran_order"], said["shape"]
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("its header is not what NumPy writes") from error
    if not isinstance(described, str):
        raise ValueError(  # noqa: TRY004 - the file's fault, not the caller's
            f"its elements are records {described!r}; save each of their fields as an array of its own"
        )
    try:
        dtype = np.dtype(described)
    except (TypeError, ValueError, SyntaxError) as error:
        raise ValueError(f"its element type {described!r} is not known") from error
    if dtype.kind == "O":
        raise ValueError(
            "it holds Python objects, which could only be unpickled, and nothing from a data set is "
            "executed; "
            "save it again as an array of numbers"
        )
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise ValueError(f"its elements are {dtype}; they must be bool, integers or floats of up to 64 bits")
    if dtype.byteorder == ">":
        raise ValueError(f"its elements are big-endian; save array.astype({dtype.newbyteorder('<').str!r})")
    if (
        not isinstance(shape, tuple)
        or not all(type(n) is int and 0 <= n < 2**62 for n in shape)
        or len(shape) > 32
    ):
        raise ValueError(f"its shape {shape!r} does not make sense")
    if math.prod(shape) * dtype.itemsize >= 2**62:
        raise ValueError(f"its shape {shape!r} does not make sense")
    return NpyHeader(dtype, shape, bool(column_major), start + size)
