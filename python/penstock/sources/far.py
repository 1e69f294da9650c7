"""Listing of an object store or web server.

Reads wait for the store, with retries, and end by `TIMEOUT`. Errors are typed: `DeniedError` where the store refuses,
`DeadlineError` where it does not answer in time, `StoreError` for all else.
"""

from __future__ import annotations

import errno
import io
import json
import os
import threading
import zlib
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from penstock import _native
from penstock.errors import CatalogError, DeadlineError, DeniedError, StoreError
from penstock.sources import cache
from penstock.sources.address import SCHEMES, store_options
from penstock.sources.listing import Entry, Read, StoreSpec, redacted, register_scheme

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterable, Iterator, Mapping, Sequence

TIMEOUT = 120.0
"""Seconds for one call, retries included."""
LISTING_TIMEOUT = 3600.0
"""Seconds for a listing, which takes a round trip for each thousand objects."""
AT_ONCE = 32
"""Requests in flight where many are wanted."""
_VARIABLES = (
    "AWS_",
    "AZURE_",
    "GOOGLE_",
    "SSL_CERT_FILE",
    "HTTP_PROXY",
    "http_proxy",
    "ALL_PROXY",
    "all_proxy",
)
_STORES_KEPT = 16

_stores: OrderedDict[object, _native.Store] = OrderedDict()
_lock = threading.Lock()


def open_store(uri: str, options: Mapping[str, str]) -> _native.Store:
    """Return the engine's store; the same one for the same address, options and environment."""
    around = tuple(sorted((name, text) for name, text in os.environ.items() if name.startswith(_VARIABLES)))
    key = (uri, tuple(sorted(options.items())), around)
    with _lock:
        found = _stores.get(key)
        if found is None:
            with said(redacted(uri)):
                found = _native.Store.object(uri, store_options(options))
            _stores[key] = found
            if len(_stores) > _STORES_KEPT:
                _stores.popitem(last=False)
        else:
            _stores.move_to_end(key)
        return found


@contextmanager
def said(where: str) -> Iterator[None]:
    """Turn errors of the native store into penstock's."""
    try:
        yield
    except (StoreError, CatalogError):
        raise
    except FileNotFoundError as error:
        raise StoreError(errno.ENOENT, str(error)) from error
    except PermissionError as error:
        raise DeniedError(errno.EACCES, str(error)) from error
    except TimeoutError as error:
        raise DeadlineError(f"{where}: {error}") from error
    except ConnectionError as error:
        raise StoreError(errno.ECONNREFUSED, str(error)) from error
    except OSError as error:
        raise StoreError(error.errno or errno.EIO, str(error)) from error


class FarListing:
    """Objects below a root URI of an object store or web server."""

    def __init__(self, root: str, options: Mapping[str, str]) -> None:
        self._root = root.rstrip("/")
        self._options = dict(options)
        self.store = open_store(self._root, self._options)
        self._where = redacted(self._root)
        self._all: builtins.list[Entry] | None = None
        self._top: tuple[builtins.list[Entry], builtins.list[str]] | None = None

    @property
    def spec(self) -> StoreSpec:
        """The root with a slash at its end, and the options."""
        return StoreSpec(f"{self._root}/", self._options)

    @property
    def is_web(self) -> bool:
        """Whether it is a web server, of which many cannot list what they have."""
        return self._root.startswith("http")

    def list(self, prefix: str = "", *, recursive: bool = True, sizes: bool = True) -> Iterator[Entry]:
        """Yield the objects below ``prefix``, sorted by key, hidden ones left out."""
        prefix = prefix.strip("/")
        if recursive:
            found = self._whole(sizes=sizes) if not prefix else self._below(f"{prefix}/", sizes=sizes)
        else:
            entries, folders = self._level(f"{prefix}/" if prefix else "")
            found = sorted([*entries, *(Entry(folder, -1, "") for folder in folders)])
        yield from (entry for entry in found if not _is_hidden(entry.key))

    def _whole(self, *, sizes: bool) -> builtins.list[Entry]:
        """All objects, listed once in the life of this listing."""
        if self._all is None or (sizes and any(entry.size < 0 for entry in self._all)):
            snapshot = self._options.get("listing") == "cached"
            found = _recalled(self) if snapshot and not sizes else None
            if found is None:
                found = self._listed(sizes=sizes)
                _remember(self, found)
            self._all = found
        return self._all

    def _listed(self, *, sizes: bool) -> builtins.list[Entry]:
        if self.is_web:
            return self._below("", sizes=sizes)
        entries, folders = self._level("")
        if len(folders) < 2:
            return entries if not folders else self._below("", sizes=sizes)
        # Folder by folder, at the same time: one list takes a round trip for each thousand objects.
        with ThreadPoolExecutor(min(AT_ONCE, len(folders)), "penstock-list") as pool:
            try:
                below = list(pool.map(lambda folder: self._below(folder, sizes=sizes), folders))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return sorted([*entries, *(entry for part in below for entry in part)])

    def _below(self, prefix: str, *, sizes: bool) -> builtins.list[Entry]:
        with said(self._where):
            rows = self.store.list(prefix, LISTING_TIMEOUT, sizes)
        return [Entry(key, size if version or size else -1, version) for key, size, version in rows]

    def _level(self, prefix: str) -> tuple[builtins.list[Entry], builtins.list[str]]:
        if not prefix and self._top is not None:
            return self._top
        if not prefix and self._options.get("listing") == "cached":
            kept = self._all or _recalled(self)
            if kept is not None:
                self._all = kept
                folders = sorted({entry.key.partition("/")[0] + "/" for entry in kept if "/" in entry.key})
                return [entry for entry in kept if "/" not in entry.key], folders
        with said(self._where):
            rows, folders = self.store.level(prefix, LISTING_TIMEOUT)
        found = [Entry(*row) for row in rows], folders
        if not prefix:
            self._top = found
        return found

    def is_folder(self, key: str) -> bool:
        """Whether anything lies below ``key``; False where a web server does not say."""
        try:
            with said(self._where):
                return self.store.is_folder(f"{key.strip('/')}/" if key else "", TIMEOUT)
        except StoreError:
            if self.is_web:
                return False
            raise

    def stat(self, key: str) -> Entry | None:
        """Return the object's entry, or None where there is none."""
        try:
            with said(self._where):
                size, version = self.store.stat(key, TIMEOUT)
        except StoreError as error:
            # A web server answers for the page of a folder in many ways.
            if error.errno == errno.ENOENT or (
                error.errno == errno.EIO and self.is_web and self.is_folder(key)
            ):
                return None
            raise
        return Entry(key, size, version)

    def stat_many(self, keys: Iterable[str]) -> builtins.list[Entry | None]:
        """Return the entries of many objects, asked for at the same time."""
        with ThreadPoolExecutor(AT_ONCE, "penstock-stat") as pool:
            try:
                return list(pool.map(self.stat, keys))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read from an object: fewer bytes only where it ends."""
        with said(f"{self._where}/{key}"):
            try:
                return self.store.read(key, offset, length, TIMEOUT)
            except EOFError:
                size, _ = self.store.stat(key, TIMEOUT)
                rest = max(0, size - offset)
                return self.store.read(key, offset, rest if length is None else min(rest, length), TIMEOUT)

    def read_many(self, wanted: Sequence[tuple[str, int, int | None]]) -> builtins.list[bytes]:
        """Read from many objects at the same time; fewer bytes only where one ends."""
        with said(self._where):
            found = self.store.read_many(wanted, AT_ONCE, LISTING_TIMEOUT)
        return [
            self.read(*want) if isinstance(data, Exception) else data
            for want, data in zip(wanted, found, strict=True)
        ]

    @contextmanager
    def reader(self, key: str) -> Iterator[Read]:
        """Open the object for many reads; its size is asked for once."""
        entry = self.stat(key)
        if entry is None:
            raise StoreError(errno.ENOENT, f"{self._where}/{key}: there is no such object")

        def read(offset: int, length: int | None = None) -> bytes:
            rest = max(0, entry.size - offset)
            return self.read(key, offset, rest if length is None else min(rest, length))

        yield read

    @contextmanager
    def create(self, key: str) -> Iterator[BinaryIO]:
        """Write a small object, which appears whole when the context ends well."""
        file = io.BytesIO()
        yield file
        with said(f"{self._where}/{key}"):
            self.store.put(key, file.getvalue(), TIMEOUT)


def _is_hidden(key: str) -> bool:
    return key.startswith(".") or "/." in key


def _remember(listing: FarListing, entries: list[Entry]) -> None:
    text = json.dumps([entry.key for entry in entries], ensure_ascii=False, separators=(",", ":"))
    cache.keep("listing", cache.identity(listing), zlib.compress(text.encode(), 1))


def _recalled(listing: FarListing) -> list[Entry] | None:
    data = cache.kept("listing", cache.identity(listing))
    if data is None:
        return None
    return [Entry(key, -1, "") for key in json.loads(zlib.decompress(data))]


for _scheme in SCHEMES:
    register_scheme(_scheme, FarListing)
