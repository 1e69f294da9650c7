"""Positioned reads of stored bytes into memory that is given, with a few files kept open.

This is the seam for other stores: pack and verify need nothing but the methods of ``Reader``. ``far_reader`` has that of
object stores.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from penstock.pack.convert import Item

OPEN_FILES = 8
"""Objects that one reader keeps open: shards are read again and again, single files once."""


class Reader(Protocol):
    """Bytes of objects by key. One reader belongs to one thread."""

    def size(self, key: str) -> tuple[int, int]:
        """Bytes of the object, and a number that changes when it is written to. Raises OSError."""

    def expect(self, items: Iterable[Item]) -> None:
        """Hear what will be read next, in this order; some of it may not be, and other things may."""

    def read_into(self, key: str, offset: int, views: Sequence[memoryview]) -> int:
        """Fill ``views`` one after the other with the object's bytes from ``offset``; gives how many there were.

        Fewer than asked for means that the object ends there. Raises OSError.
        """

    def close(self) -> None:
        """Let go of what is open."""


class LocalReader:
    """Reads files below ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._prefix = f"{root}/"
        self._open: OrderedDict[str, int] = OrderedDict()

    def size(self, key: str) -> tuple[int, int]:
        """Bytes and time of modification of the file ``key``."""
        status = (self._root / key).stat()
        return status.st_size, status.st_mtime_ns

    def expect(self, items: Iterable[Item]) -> None:
        """Nothing to do: the kernel reads ahead."""

    def read_into(self, key: str, offset: int, views: Sequence[memoryview]) -> int:
        """Fill ``views`` from ``offset`` of the file ``key``."""
        fd = self._open.get(key)
        if fd is None:
            fd = os.open(self._prefix + key, os.O_RDONLY | os.O_CLOEXEC)
            self._open[key] = fd
            if len(self._open) > OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(key)
        return _fill(fd, offset, views)

    def close(self) -> None:
        """Close the files that are open."""
        while self._open:
            os.close(self._open.popitem()[1])


def _fill(fd: int, offset: int, views: Sequence[memoryview]) -> int:
    """Read until the views are full or the file ends."""
    wanted = sum(len(view) for view in views)
    done = os.preadv(fd, list(views), offset)
    while 0 < done < wanted:
        rest = _skip(views, done)
        count = os.preadv(fd, rest, offset + done)
        if count == 0:
            break
        done += count
    return done


def _skip(views: Sequence[memoryview], count: int) -> list[memoryview]:
    rest: list[memoryview] = []
    for view in views:
        if count >= len(view):
            count -= len(view)
        else:
            rest.append(view[count:])
            count = 0
    return rest
