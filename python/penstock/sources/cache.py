"""The cache folder: what was learnt about far stores and need not be fetched again.

``$PENSTOCK_CACHE``, or ``penstock`` in ``$XDG_CACHE_HOME``, or ``~/.cache/penstock``. It holds

============  ==============================================================================================
``index/``    indices of tar shards whose own place cannot be written to
``objects/``  whole small objects (catalogs, tables of labels), by store, key and version
``listing/``  listings of folders, for processes that open the same dataset again
``pack/``     shards that wait to be uploaded
============  ==============================================================================================

All of it can be deleted at any time. Every file carries its checksum and counts as absent where it does not match.
``objects/`` and ``listing/`` keep to `LIMIT` bytes each; what was used longest ago goes first.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.sources.listing import Entry, LocalListing

if TYPE_CHECKING:
    from penstock.sources.listing import Listing

LIMIT = 8 << 30
"""Bytes."""
_HEAD = b"penstock cache 1 "


def cache_folder() -> Path:
    """Return the folder: $PENSTOCK_CACHE or the user's cache."""
    own = os.environ.get("PENSTOCK_CACHE")
    if own:
        return Path(own).absolute()
    of_user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - no error without a home
    if of_user.startswith("~"):  # no home, no cache: a place that nobody can write to
        return Path(os.devnull, "penstock")
    return Path(of_user).absolute() / "penstock"


def keep(kind: str, name: str, data: bytes) -> bool:
    """Keep ``data`` under a name, any text; whether that could be done. It appears whole or not at all."""
    key = _key(kind, name)
    try:
        place = LocalListing(cache_folder())
        with place.create(key) as file:
            file.write(data)
            file.write(_tail(data))
        _evict(Path(place.root) / kind)
    except OSError:  # not writable, or full: then there is no cache
        return False
    return True


def kept(kind: str, name: str) -> bytes | None:
    """Return what was kept under a name; None where there is nothing, or it is damaged."""
    path = cache_folder() / _key(kind, name)
    try:
        raw = path.read_bytes()
        with suppress(OSError):
            os.utime(path)
    except OSError:
        return None
    size = len(_tail(b""))
    data, tail = raw[:-size], raw[-size:]
    return data if len(raw) >= size and tail == _tail(data) else None


def near(listing: Listing, entry: Entry) -> tuple[Listing, Entry]:
    """Return a place where the whole object can be read without a wait: its own, or a copy in the cache.

    The copy is of this very version. Where the cache cannot be written, the object stays where it is.
    """
    if isinstance(listing, LocalListing) or not entry.version:
        return listing, entry
    name = f"{identity(listing)}\n{entry.key}\n{entry.version}\n{entry.size}"
    data = kept("objects", name)
    if data is None:
        data = listing.read(entry.key)
        if not keep("objects", name, data):
            return listing, entry
    place = LocalListing(cache_folder())
    here = place.stat(_key("objects", name))
    if here is None:  # somebody emptied the cache meanwhile
        return listing, entry
    return place, Entry(here.key, len(data), here.version)


def identity(listing: Listing) -> str:
    """Return what tells a store and root from others: the address and the endpoint, no secret."""
    spec = listing.spec
    endpoint = next((spec.options[name] for name in _ENDPOINTS if name in spec.options), None)
    if endpoint is None:
        endpoint = next((os.environ[name] for name in _ENDPOINT_VARIABLES if name in os.environ), "")
    return f"{spec.uri}\n{endpoint}"


_ENDPOINTS = ("endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url", "azure_storage_endpoint")
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def _key(kind: str, name: str) -> str:
    return f"{kind}/{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def _tail(data: bytes) -> bytes:
    return _HEAD + f"{zlib.crc32(data):08x} {len(data):016x}".encode()


def _evict(folder: Path) -> None:
    found = []
    for path in folder.iterdir():
        with suppress(OSError):
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= LIMIT:
            return
        path.unlink(missing_ok=True)
        total -= size
