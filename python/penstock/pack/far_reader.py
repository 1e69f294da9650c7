"""Reads of an object store for pack and verify: what will be read is said before, and many reads are in flight."""

from __future__ import annotations

import errno
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from penstock import _native
from penstock.errors import StoreError
from penstock.sources.far import TIMEOUT, FarListing, said

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from penstock.pack.convert import Item
    from penstock.sources.listing import Listing

WINDOW = 64 << 20
"""Bytes that one reader has in flight or waiting to be taken."""
_SKIP = 4096
"""So far ahead a read is looked for among those that were said; those before it are dropped."""
_WHOLE = 2**64 - 1


class FarReader:
    """Reads objects of ``listing``; ``keys`` is the catalog's table of them, as the engine takes it.

    Of a store of the user's own, each read is made when it is asked for.
    """

    def __init__(self, listing: Listing, keys: Any) -> None:
        self._listing = listing
        self._keys = keys
        self._stream: _native.Stream | None = None
        self._said: deque[Item] = deque()
        self._have: tuple[str, int, memoryview] | None = None
        """Key, offset and bytes of the last read."""

    def size(self, key: str) -> tuple[int, int]:
        """Bytes of the object, and a number that changes with it."""
        entry = self._listing.stat(key)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such object")
        return entry.size, version_number(entry.version)

    def expect(self, items: Iterable[Item]) -> None:
        """Begin to fetch these, in this order, in the place of what was said before."""
        if not isinstance(self._listing, FarListing):
            return
        if self._stream is None:
            self._stream = _native.Stream(self._listing.store, self._keys, WINDOW, TIMEOUT)
        elif self._said:
            self._stream.clear()
        self._said = deque(items)
        count = len(self._said)
        self._stream.submit(
            np.fromiter((item.object for item in self._said), np.uint32, count),
            np.fromiter((item.offset for item in self._said), np.uint64, count),
            np.fromiter((_WHOLE if item.whole else item.size for item in self._said), np.uint64, count),
            np.fromiter((item.size for item in self._said), np.uint64, count),
        )

    def read_into(self, key: str, offset: int, views: Sequence[memoryview]) -> int:
        """Fill ``views`` from ``offset`` of the object; gives how many bytes there were."""
        wanted = sum(len(view) for view in views)
        have = self._find(key, offset)
        if have is None:
            data = memoryview(self._listing.read(key, offset, wanted))
        else:
            data = have[offset - self._have[1] : offset - self._have[1] + wanted] if self._have else have
        done = 0
        for view in views:
            piece = data[done : done + len(view)]
            view[: len(piece)] = piece
            done += len(piece)
        return done

    def _find(self, key: str, offset: int) -> memoryview | None:
        """The read that holds this place: the last one, or one that was said and is on its way."""
        have = self._have
        if have is not None and have[0] == key and 0 <= offset - have[1] < max(1, len(have[2])):
            return have[2]
        ahead = next(
            (at for at, item in zip(range(_SKIP), self._said, strict=False) if _is_at(item, key, offset)),
            None,
        )
        if ahead is None or self._stream is None:
            return None
        for _ in range(ahead):
            self._drop()
        item = self._said.popleft()
        with said(key):
            try:
                data = memoryview(self._stream.next(TIMEOUT + 30.0))
            except EOFError:  # shorter than its index says: what there is
                data = memoryview(self._listing.read(key, item.offset, item.size))
        self._have = (key, item.offset, data)
        return data

    def _drop(self) -> None:
        self._said.popleft()
        assert self._stream is not None  # noqa: S101 - for the type checker: something was said
        try:
            self._stream.next(TIMEOUT + 30.0)
        except OSError:  # nobody wants it
            return

    def close(self) -> None:
        """End the fetch threads."""
        self._stream, self._said, self._have = None, deque(), None


def _is_at(item: Item, key: str, offset: int) -> bool:
    return item.offset == offset and item.key == key


def version_number(version: str) -> int:
    """A number for a version mark."""
    from hashlib import blake2b

    return int.from_bytes(blake2b(version.encode(), digest_size=8).digest(), "little", signed=True)


def sizes_of(listing: Listing, keys: Sequence[str]) -> list[tuple[int, int] | OSError]:
    """Bytes and version number of each object, or why that is not known: from one listing where they are many."""
    found: dict[str, tuple[int, int]] = {}
    if len(keys) > _FEW:
        try:
            for entry in listing.list():
                found[entry.key] = (entry.size, version_number(entry.version))
        except StoreError:
            if not isinstance(listing, FarListing) or not listing.is_web:
                raise
    missing = [key for key in keys if key not in found]
    for key, there in zip(missing, listing.stat_many(missing), strict=True):
        if there is not None:
            found[key] = (there.size, version_number(there.version))
    gone = FileNotFoundError(errno.ENOENT, "there is no such object")
    return [found.get(key, gone) for key in keys]


_FEW = 16
