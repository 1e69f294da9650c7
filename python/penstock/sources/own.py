"""What sources need of a store that is written in Python: its three methods as a Listing."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from penstock.errors import PenstockError, StoreError
from penstock.sources.listing import Entry, Read, StoreSpec, redacted

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from penstock.stores.contract import Store

TIMEOUT = 60.0
"""Seconds of one call while a dataset is opened."""
_LISTING_TIMEOUT = 600.0


class OwnListing:
    """A root of the user's own store. Written to it is never: indexes of shards go to the cache folder."""

    def __init__(self, root: str, options: Mapping[str, str], store: Store) -> None:
        self._spec = StoreSpec(root.rstrip("/") + "/", dict(options))
        self._store = store

    @property
    def spec(self) -> StoreSpec:
        """Where this is."""
        return self._spec

    def list(self, prefix: str = "", *, recursive: bool = True, sizes: bool = True) -> Iterator[Entry]:  # noqa: ARG002
        """Yield the objects below the folder ``prefix``, hidden ones left out."""
        folder = prefix.strip("/") + "/" if prefix.strip("/") else ""
        seen = set()
        try:
            for key, size, version in self._store.list(prefix.strip("/"), _LISTING_TIMEOUT):
                below = key.removeprefix(folder)
                if any(part.startswith(".") for part in below.split("/")):
                    continue
                first, slash, _ = below.partition("/")
                if recursive or not slash:
                    yield Entry(key, size, version)
                elif first not in seen:
                    seen.add(first)
                    yield Entry(f"{folder}{first}/", -1, "")
        except FileNotFoundError:
            return
        except (OSError, EOFError) as error:
            self._failed(prefix, error)

    def stat(self, key: str) -> Entry | None:
        """Return that object's entry, or None where there is none."""
        try:
            return Entry(key, self._store.size(key, TIMEOUT), "")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        except (OSError, EOFError) as error:
            self._failed(key, error)

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return up to ``length`` bytes from ``offset``."""
        with self.reader(key) as read:
            return read(offset, length)

    def reader(self, key: str) -> AbstractContextManager[Read]:
        """Open an object for many reads."""
        return self._reader(key)

    @contextmanager
    def _reader(self, key: str) -> Iterator[Read]:
        entry = self.stat(key)
        if entry is None:
            raise StoreError(errno.ENOENT, f"there is no {key} in {redacted(self._spec.uri)}")
        size = entry.size

        def read(offset: int, length: int | None = None) -> bytes:
            rest = max(0, size - offset)
            wanted = rest if length is None else min(length, rest)
            if wanted == 0:
                return b""
            try:
                return self._store.read(key, offset, wanted, TIMEOUT)
            except (OSError, EOFError) as error:
                self._failed(key, error)

        yield read

    def create(self, key: str) -> AbstractContextManager[BinaryIO]:
        """Refuse: a store that is read has no way to write."""
        raise StoreError(
            errno.EROFS, f"{redacted(self._spec.uri)} is only read; {key} cannot be written there"
        )

    def is_folder(self, key: str) -> bool:
        """Whether there is anything below ``key``."""
        return next(iter(self.list(key)), None) is not None

    def stat_many(self, keys: Iterable[str]) -> builtins.list[Entry | None]:
        """Return `stat` of many keys."""
        return [self.stat(key) for key in keys]

    def read_many(self, wanted: Sequence[tuple[str, int, int | None]]) -> builtins.list[bytes]:
        """Return `read` of many (key, offset, length)."""
        return [self.read(*each) for each in wanted]

    def _failed(self, key: str, error: Exception) -> NoReturn:
        if isinstance(error, PenstockError):
            raise error
        number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
        raise StoreError(number, f"{redacted(self._spec.uri)}{key}: {error}") from error
