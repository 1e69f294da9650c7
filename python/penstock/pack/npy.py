"""Headers of .npy files, beyond what ``penstock.npy`` reads of them: writing, inflating, putting in C order."""

from __future__ import annotations

import io
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.npy import NpyHeader, npy_header

_HEAD = (1 << 16) + 12
"""No header that is read is longer."""
_RATIO = 1032
"""Deflate cannot make more than this from a byte."""


def describe(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """``"float32 3×128×128"``."""
    return f"{dtype} {'×'.join(map(str, shape)) or 'scalar'}"


def read_header(data: bytes | memoryview) -> NpyHeader:
    """Parse the header at the start of ``data``; the rest of it is not needed. Raises ValueError with the reason."""
    return npy_header(bytes(data[:_HEAD]))


def header_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of a C-ordered array."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()


def c_order(data: memoryview, header: NpyHeader) -> npt.NDArray[Any]:
    """The array in C order; ``data`` is the whole file."""
    flat: npt.NDArray[Any] = np.frombuffer(
        data[header.start : header.start + header.nbytes], dtype=header.dtype
    )
    return np.ascontiguousarray(flat.reshape(header.shape, order="F" if header.column_major else "C"))


def inflate(data: memoryview) -> bytes:
    """The .npy file inside raw-deflated ``data``, never more than its own header says. Raises ValueError."""
    try:
        header = read_header(zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, _HEAD))
        size = header.start + header.nbytes
        if size > len(data) * _RATIO + _HEAD:
            raise ValueError(f"it promises {size:,} bytes, more than {len(data):,} deflated bytes can hold")
        whole = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(f"it does not inflate ({error})") from error
    if len(whole) != size:
        found = "more" if len(whole) > size else f"{len(whole):,}"
        raise ValueError(f"it inflates to {found} of the {size:,} bytes that its header promises")
    return whole
