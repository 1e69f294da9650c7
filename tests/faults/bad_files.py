"""Files that are not what they say: each kind of bad picture and array, by name."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from tests.support import encoded, picture


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_that_claims(width: int, height: int, content: bytes = b"") -> bytes:
    """A valid head of a PNG of that size, with ``content`` as its compressed rows."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _png_chunk(b"IHDR", header)
        + _png_chunk(b"IDAT", zlib.compress(content, 9))
        + _png_chunk(b"IEND", b"")
    )


def jpeg_that_claims(width: int, height: int) -> bytes:
    """A small JPEG whose frame header names another size."""
    data = bytearray(encoded(picture(1), "JPEG"))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def webp_that_claims(width: int, height: int) -> bytes:
    """A small lossless WebP whose header names another size (at most 16384 each way)."""
    data = bytearray(encoded(picture(1), "WEBP", lossless=True))
    at = data.index(b"VP8L") + 9
    (bits,) = struct.unpack_from("<I", data, at)
    struct.pack_into("<I", data, at, (bits & 0xF0000000) | ((height - 1) << 14) | (width - 1))
    return bytes(data)


def npy_that_claims(shape: str, values: bytes = b"1234") -> bytes:
    """A ``.npy`` whose header has any shape."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + values


def npy_with_objects() -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return out.getvalue()


_JPEG = encoded(picture(2), "JPEG", quality=90)
_PNG = encoded(picture(2), "PNG")
_WEBP = encoded(picture(2), "WEBP", lossless=True)

PICTURES = {
    "an empty jpg": ("jpg", b""),
    "an empty png": ("png", b""),
    "an empty webp": ("webp", b""),
    "a jpg cut in its head": ("jpg", _JPEG[:30]),
    "a jpg cut in its frame": ("jpg", _JPEG[: _JPEG.index(b"\xff\xc0") + 6]),
    "a png cut in its head": ("png", _PNG[:20]),
    "a png cut in its rows": ("png", _PNG[: len(_PNG) // 2]),
    "a webp cut in half": ("webp", _WEBP[: len(_WEBP) // 2]),
    "a text called jpg": ("jpg", b"<html>404 Not Found</html>" * 20),
    "zeroes called webp": ("webp", bytes(4096)),
    "a png of 4 gigapixels": ("png", png_that_claims(1 << 16, 1 << 16)),
    "a png of 2^31 each way": ("png", png_that_claims((1 << 31) - 1, (1 << 31) - 1)),
    "a png of no width": ("png", png_that_claims(0, 10)),
    "a png bomb": ("png", png_that_claims(20_000, 20_000, bytes(64 << 20))),
    "a jpg of 65500 each way": ("jpg", jpeg_that_claims(65500, 65500)),
    "a jpg of no height": ("jpg", jpeg_that_claims(10, 0)),
    "a webp of 16384 each way": ("webp", webp_that_claims(16384, 16384)),
}

ARRAYS = {
    "an empty npy": b"",
    "a npy cut in its head": npy_that_claims("(1,)")[:40],
    "a npy cut in its values": npy_that_claims("(100,)"),
    "a npy of 2^62 values": npy_that_claims("(4611686018427387904,)"),
    "a npy whose size overflows": npy_that_claims("(4294967296, 4294967296, 4294967296)"),
    "a npy of less than nothing": npy_that_claims("(-1,)"),
    "a npy of objects": npy_with_objects(),
    "a npy with code for a shape": npy_that_claims("(__import__('os').getpid(),)"),
}
