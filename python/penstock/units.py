"""Sizes in bytes, as people write them."""

from __future__ import annotations

import re

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "t": 1000**4,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}


def parse_bytes(size: int | str) -> int:
    """A size in bytes from a number or a text.

    >>> parse_bytes("64MiB"), parse_bytes("1.5 GB"), parse_bytes(4096)
    (67108864, 1500000000, 4096)
    """
    if isinstance(size, int):
        if size < 0:
            raise ValueError(f"a size is not negative: {size}")
        return size
    if not isinstance(size, str):
        raise TypeError(f"{size!r} is no size; write it as 64MiB, 1.5GB or a whole number of bytes")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", size.lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{size!r} is no size; write it as 64MiB, 1.5GB or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2]])
