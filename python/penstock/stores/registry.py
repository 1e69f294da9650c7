"""Stores of the user's own under a scheme of their own, for ``penstock.open("vault://photos")``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.stores.contract import Store

    Factory: TypeAlias = Callable[[str, Mapping[str, str]], Store]

TAKEN = frozenset(
    {"file", "s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl", "http", "https", "memory"}
)
"""Schemes that penstock reads itself, now or later."""

_FACTORIES: dict[str, Factory] = {}


def register(scheme: str, store: Factory) -> None:
    """Make ``scheme://…`` URIs known to `penstock.open`, to packing and to the Loader.

    ``store(root, options)`` gives a `Store` whose keys are relative to the URI ``root``; it is called for several roots, so
    let it keep its connections. Every process that opens or receives such a dataset has to register: do it where the
    module of the store is imported. ValueError for what is no scheme, or one that is penstock's.

        register("vault", lambda root, options: Vault(root.removeprefix("vault://")))
        data = penstock.open("vault://photos")
    """
    if not re.fullmatch(r"[a-z][a-z0-9+.-]+", scheme):
        raise ValueError(
            f"{scheme!r} is no scheme of a URI: small letters and digits, at least two, a letter first"
        )
    if scheme in TAKEN:
        raise ValueError(f"penstock reads {scheme}:// itself; choose another scheme")
    from penstock.sources.listing import register_scheme
    from penstock.sources.own import OwnListing

    _FACTORIES[scheme] = store
    register_scheme(scheme, lambda root, options: OwnListing(root, options, store(root, options)))


def own_store(uri: str, options: Mapping[str, str]) -> Store | None:
    """The store that was registered for the URI's scheme, if any."""
    factory = _FACTORIES.get(urlsplit(uri).scheme)
    return None if factory is None else factory(uri, options)
