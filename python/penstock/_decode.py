"""One sample's bytes to a value, for ``data[i]``; batches are decoded by the engine.

The only place of the catalog's side that knows the native extension.
"""

from __future__ import annotations

import math
import zlib
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import PenstockError, TruncatedError
from penstock.formats import Format
from penstock.npy import LARGEST_HEADER, npy_header

if TYPE_CHECKING:
    from types import ModuleType

    from penstock.table import Field


def native() -> ModuleType:
    """Return the native extension; `PenstockError` where it is not built."""
    try:
        from penstock import _native
    except ImportError as error:
        raise PenstockError(
            "penstock's native extension is not built for this Python, and images and checksums need it; "
            "run `pip install .` (or `make build`) in penstock's folder"
        ) from error
    module: ModuleType = _native
    return module


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of the bytes."""
    return int(native().crc32c(data))


def decode(data: bytes, format: Format, field: Field) -> Any:
    """Return the value that the bytes of a stored field hold; ValueError says what is wrong with them.

    TruncatedError, one of those, where a picture ends too early.
    """
    if format is Format.RAW:
        dtype, shape = np.dtype(field.dtype), field.shape or ()
        wanted = dtype.itemsize * math.prod(shape)
        if len(data) != wanted:
            raise ValueError(f"it has {len(data):,} bytes, and {dtype}{list(shape)} takes {wanted:,}")
        return np.frombuffer(data, dtype).reshape(shape)
    if format in (Format.NPY, Format.NPY_DEFLATE):
        return _array(data if format is Format.NPY else _inflated(data))
    if format is Format.CLS:
        text = data.strip()
        if len(text) > 19 or not text.removeprefix(b"-").isdigit():
            raise ValueError(f"{text[:32]!r} is not an integer")
        return np.int64(int(text))
    if format in (Format.BYTES, Format.JSON):
        return data
    try:
        return np.asarray(native().decode(data, int(format), (field.name, field.kind, None), _as_stored()))
    except EOFError as error:
        raise TruncatedError(str(error)) from None


@cache
def _as_stored() -> str:
    """The program that changes nothing: all channels, every depth."""
    from penstock.transform import compile_program

    return compile_program(mode="unchanged")


def _array(data: bytes) -> np.ndarray:
    header = npy_header(data)
    if len(data) - header.start < header.nbytes:
        raise ValueError(f"it ends after {len(data) - header.start:,} of {header.nbytes:,} bytes")
    flat = np.frombuffer(data, header.dtype, math.prod(header.shape), header.start)
    return flat.reshape(header.shape, order="F" if header.column_major else "C")


def _inflated(data: bytes) -> bytes:
    """Inflate a compressed .npy, and no more of it than its own header says."""
    unpack = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        head = unpack.decompress(data, 12 + LARGEST_HEADER)
        header = npy_header(head)
        rest = header.start + header.nbytes - len(head)
        return head if rest <= 0 else head + unpack.decompress(unpack.unconsumed_tail, rest)
    except zlib.error as error:
        raise ValueError(f"it does not inflate ({error})") from error
