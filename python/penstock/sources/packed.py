"""Packed shards: what ``penstock pack`` writes, described by catalog.parquet beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.catalog_file import read_file
from penstock.errors import CatalogError
from penstock.sources.members import some

if TYPE_CHECKING:
    from penstock.sources.listing import Entry, Listing
    from penstock.table import Table


def open(listing: Listing, entry: Entry) -> Table:
    """Open the catalog and check that its shards are there in the size that it says.

    `CatalogError` names the shards that are missing or cut short.
    """
    table, info = read_file(listing, entry)
    folder = entry.key.rpartition("/")[0]
    there = {
        found.key: found.size
        for found in listing.list(folder, recursive=any("/" in key for key in info.objects))
    }
    prefix = f"{folder}/" if folder else ""
    missing = [key for key in info.objects if prefix + key not in there]
    if missing:
        raise CatalogError(
            f"{listing.spec.uri}{entry.key} names shards that are not there: {some(missing)}; "
            "get them, or pack the set again"
        )
    wrong = [
        f"{key} ({there[prefix + key]:,} bytes, not {size:,})"
        for key, size in zip(info.objects, info.sizes, strict=True)
        if there[prefix + key] != size
    ]
    if wrong:
        raise CatalogError(
            f"{listing.spec.uri}{entry.key} does not match its shards: {some(wrong)}; "
            "they were cut short or replaced: get them again, or pack the set again"
        )
    return table
