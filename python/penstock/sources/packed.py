"""Packed shards: what ``penstock pack`` writes, described by catalog.parquet beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.catalog_file import read_file
from penstock.errors import CatalogError, StoreError
from penstock.sources.address import is_far
from penstock.sources.cache import near
from penstock.sources.listing import redacted
from penstock.sources.members import some

if TYPE_CHECKING:
    from penstock.sources.listing import Entry, Listing
    from penstock.table import Table


def open(listing: Listing, entry: Entry) -> Table:
    """Open the catalog and check that its shards are there in the size that it says.

    `CatalogError` names the shards that are missing or cut short.
    """
    table, info = read_file(*near(listing, entry), where=f"{redacted(listing.spec.uri)}{entry.key}")
    folder = entry.key.rpartition("/")[0]
    there = _sizes(listing, folder, info.objects)
    prefix = f"{folder}/" if folder else ""
    missing = [key for key in info.objects if prefix + key not in there]
    if missing:
        raise CatalogError(
            f"{redacted(listing.spec.uri)}{entry.key} names shards that are not there: {some(missing)}; "
            "get them, or pack the set again"
        )
    wrong = [
        f"{key} ({there[prefix + key]:,} bytes, not {size:,})"
        for key, size in zip(info.objects, info.sizes, strict=True)
        if there[prefix + key] != size
    ]
    if wrong:
        raise CatalogError(
            f"{redacted(listing.spec.uri)}{entry.key} does not match its shards: {some(wrong)}; "
            "they were cut short or replaced: get them again, or pack the set again"
        )
    return table


def _sizes(listing: Listing, folder: str, shards: tuple[str, ...]) -> dict[str, int]:
    """Return the size of each shard that is there."""
    deep = any("/" in key for key in shards)
    try:
        return {found.key: found.size for found in listing.list(folder, recursive=deep)}
    except StoreError:
        if not is_far(listing.spec.uri):
            raise
    # Who may not list, or a web server that does not: each by its name.
    prefix = f"{folder}/" if folder else ""
    entries = listing.stat_many([prefix + key for key in shards])
    return {entry.key: entry.size for entry in entries if entry is not None}
