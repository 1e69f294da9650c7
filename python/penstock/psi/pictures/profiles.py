"""ICC profile and EXIF block of PNG, WebP and JPEG files, without decoding them."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST = 1 << 26
"""Bytes that a profile may inflate to."""


def of_png(data: memoryview) -> dict[str, bytes]:
    """``icc``, ``exif`` and ``palette`` (RGBA) of a PNG, where it has them."""
    found: dict[str, bytes] = {}
    colours = b""
    for name, content in _png_chunks(data):
        if name == b"iCCP":
            packed = bytes(content).partition(b"\0")[2][1:]
            unpack = zlib.decompressobj()
            try:
                profile = unpack.decompress(packed, _MOST)
            except zlib.error:
                continue  # a broken profile is no reason to lose the picture
            if not unpack.unconsumed_tail:
                found["icc"] = profile
        elif name == b"eXIf":
            found["exif"] = bytes(content)
        elif name == b"PLTE":
            colours = bytes(content)
            found["palette"] = b"".join(colours[at : at + 3] + b"\xff" for at in range(0, len(colours), 3))
        elif name == b"tRNS" and colours:
            whole = bytearray(found["palette"])
            alpha = bytes(content)[: len(whole) // 4]
            whole[3 : 4 * len(alpha) : 4] = alpha
            found["palette"] = bytes(whole)
    return found


def of_webp(data: memoryview) -> dict[str, bytes]:
    """``icc`` and ``exif`` of a WebP."""
    found: dict[str, bytes] = {}
    for name, content in _webp_chunks(data):
        if name == b"ICCP":
            found["icc"] = bytes(content)
        elif name == b"EXIF":
            found["exif"] = bytes(content).removeprefix(b"Exif\0\0")
    return found


def is_lossy_webp(data: memoryview) -> bool:
    """Whether the WebP holds a lossy picture."""
    return any(name == b"VP8 " for name, _ in _webp_chunks(data))


def of_jpeg(data: memoryview) -> dict[str, bytes]:
    """``icc`` and ``exif`` of a JPEG."""
    found: dict[str, bytes] = {}
    profile: dict[int, bytes] = {}
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4])
        content = bytes(data[at + 4 : at + 2 + length])
        if marker == 0xDA or length < 2:
            break
        if marker == 0xE1 and content.startswith(b"Exif\0\0"):
            found.setdefault("exif", content[6:])
        elif marker == 0xE2 and content.startswith(b"ICC_PROFILE\0") and len(content) > 14:
            profile[content[12]] = content[14:]
        at += 2 + length
    if profile:
        found["icc"] = b"".join(profile[number] for number in sorted(profile))
    return found


def _png_chunks(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    at = 8
    while at + 12 <= len(data):
        length, name = struct.unpack_from(">I4s", data, at)
        if name == b"IDAT" or at + 12 + length > len(data):
            return
        yield name, data[at + 8 : at + 8 + length]
        at += 12 + length


def _webp_chunks(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    at = 12
    while at + 8 <= len(data):
        name, length = struct.unpack_from("<4sI", data, at)
        yield name, data[at + 8 : at + 8 + length]
        at += 8 + length + length % 2
