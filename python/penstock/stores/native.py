"""From what a dataset says of its store to the engine's store."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from penstock import _native
from penstock.sources.listing import redacted
from penstock.stores.registry import own_store

if TYPE_CHECKING:
    from penstock.dataset import StoreSpec
    from penstock.stores.contract import Store


def native_store(spec: StoreSpec | Store | str, objects: int = 0) -> _native.Store:
    """The engine's store for ``spec``; ``objects`` is how many objects the catalog names.

    A path or ``file://`` URI is read directly; an object with the methods of ``Store`` is called from the workers.
    """
    if hasattr(spec, "read") and hasattr(spec, "size"):
        return _native.Store.python(spec, type(spec).__name__)
    uri = spec if isinstance(spec, str) else spec.uri
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return _native.Store.local(unquote(parts.path), objects)
    if len(parts.scheme) <= 1:  # none, or a drive letter
        return _native.Store.local(uri, objects)
    from penstock.sources.address import store_options, taken_apart
    from penstock.sources.far import said

    options = {} if isinstance(spec, str) else dict(spec.options)
    if (own := own_store(uri, options)) is not None:
        return _native.Store.python(own, type(own).__name__)
    uri, options = taken_apart(uri, options)
    with said(redacted(uri)):
        return _native.Store.object(uri, store_options(options))
