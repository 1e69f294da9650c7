"""What travels with an image: ICC profile, EXIF, XMP, palette, and values of the user's own."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from penstock import _native
from penstock.errors import DecodeError
from penstock.psi.failures import translated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Buffer

_NAMES = {"icc": b"ICCP", "exif": b"EXIF", "xmp": b"XMP ", "json": b"JSON", "palette": b"PLTE"}
_OF_CHUNK = {chunk: name for name, chunk in _NAMES.items()}


def packed(metadata: Mapping[str, Any]) -> bytes:
    """The metadata section: see docs/psi.md."""
    parts = []
    for name, value in metadata.items():
        chunk = _NAMES.get(name)
        if chunk is None:
            chunk = name.encode("ascii", "replace")
            if len(chunk) != 4 or b"?" in chunk or chunk in _OF_CHUNK:
                known = ", ".join(_NAMES)
                raise ValueError(
                    f"{name!r} names no metadata: {known}, or four ASCII characters for bytes of your own"
                )
        if name == "json":
            content = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        elif isinstance(value, bytes | bytearray | memoryview):
            content = bytes(value)
        else:
            raise TypeError(
                f"metadata {name!r} is {type(value).__name__}; it is bytes (values go under 'json')"
            )
        if name == "palette" and (len(content) % 4 or not 4 <= len(content) <= 1024):
            raise ValueError(
                f"a palette of {len(content)} bytes; it has up to 256 colours of four bytes, RGBA"
            )
        parts.append(struct.pack("<4sI", chunk, len(content)) + content)
    return b"".join(parts)


def metadata(file: Buffer) -> dict[str, Any]:
    """What was given to ``encode`` as ``metadata``: ``{"icc": bytes, "exif": bytes, "json": value, …}``.

    >>> import numpy as np
    >>> from penstock import psi
    >>> psi.metadata(psi.encode(np.zeros((2, 2), np.uint8), metadata={"json": {"patient": 7}}))
    {'json': {'patient': 7}}
    """
    with translated():
        section = _native.psi_metadata(file)
    found: dict[str, Any] = {}
    at = 0
    while at < len(section):
        try:
            chunk, length = struct.unpack_from("<4sI", section, at)
            at += 8
            content = section[at : at + length]
            if len(content) != length:
                raise DecodeError(f"PSI metadata end after {len(content)} of {length} bytes of {chunk!r}")
            at += length
            name = _OF_CHUNK.get(chunk) or chunk.decode("ascii")
            found[name] = json.loads(content) if name == "json" else content
        except (struct.error, ValueError) as error:
            if isinstance(error, DecodeError):
                raise
            raise DecodeError(f"PSI metadata are not as the format says: {error}") from None
    return found
