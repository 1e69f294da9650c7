"""Tar headers that depend on nothing but a member's name and size, so that the same samples give the same bytes.

POSIX ustar: no time, no owner, mode 0644. A size of 8 GiB or more takes the base-256 form that GNU tar, BSD tar
and Python read.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from penstock.errors import CatalogError

BLOCK = 512
END = bytes(2 * BLOCK)
"""What a tar ends with: two blocks of zeros."""

NAME_BYTES = 100
_OCTAL_SIZE = 8**11
_SUM_AT = 148


@lru_cache(maxsize=1)
def _template() -> bytes:
    head = struct.pack(
        "100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12s",
        b"",
        b"0000644\0",
        b"0000000\0",
        b"0000000\0",
        b"",
        b"00000000000\0",
        b"        ",
        b"0",
        b"",
        b"ustar\0",
        b"00",
        b"",
        b"",
        b"0000000\0",
        b"0000000\0",
        b"",
        b"",
    )
    if len(head) != BLOCK:
        raise AssertionError("a tar header has 512 bytes")
    return head


_AFTER_SIZE = _template()[136:_SUM_AT]
_AFTER_SUM = _template()[156:]
_MODE_TO_GROUP = _template()[NAME_BYTES:124]
_FIXED_SUM = sum(_template())


def header(name: bytes, size: int) -> bytes:
    """The 512 bytes before the payload of a regular file ``name`` of ``size`` bytes."""
    if len(name) > NAME_BYTES:
        raise CatalogError(
            f"a tar member's name has at most {NAME_BYTES} bytes, {name!r} has {len(name)}: give the field a shorter name"
        )
    length = b"%011o\0" % size if size < _OCTAL_SIZE else b"\x80" + size.to_bytes(11, "big")
    total = _FIXED_SUM + sum(name) + sum(length)
    return b"".join(
        (name.ljust(NAME_BYTES, b"\0"), _MODE_TO_GROUP, length, _AFTER_SIZE, b"%06o\0 " % total, _AFTER_SUM)
    )


def padding(size: int) -> int:
    """Zero bytes that follow a payload of ``size`` bytes."""
    return -size % BLOCK


def member_bytes(size: int) -> int:
    """Bytes that a member takes in the tar: header, payload, padding."""
    return BLOCK + size + padding(size)
