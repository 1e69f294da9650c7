"""Sources: from what the user has to the table of samples. One module a kind.

============  =====================================================================
``folder``    class folders, flat folders, folders of .npy and .npz
``labels``    a folder with a CSV, TSV, Parquet or JSONL table of labels
``shards``    tar files in the WebDataset convention, indexed once (``tar`` reads the headers)
``packed``    what ``penstock pack`` writes: shards and catalog.parquet
``arrays``    one .npy or .npz file, a row a sample
============  =====================================================================

Each has ``open(listing, …) -> Table``. They see the store only as a `penstock.sources.listing.Listing`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import CatalogError, StoreError
from penstock.sources.address import is_far, taken_apart
from penstock.sources.listing import StoreSpec, listing_of, local_path, redacted
from penstock.sources.patterns import is_pattern

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.sources.listing import Entry, Listing
    from penstock.table import Origin, Table

TABLE_EXTENSIONS = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson")


class Source(NamedTuple):
    """An opened source."""

    table: Table
    store: StoreSpec


def open_source(origin: Origin) -> Source:
    """Open what the origin names: see `penstock.open`."""
    uri = origin.uri
    if is_far(uri) and uri.endswith("/"):
        return _opened(_folder(listing_of(uri.rstrip("/"), origin.options), origin), origin)
    root, name = _cut(uri)
    here = listing_of(root, origin.options)
    entry = here.stat(name) if name else None
    if name and entry is None and is_pattern(uri) and not _is_folder(here, name):
        return _opened(_tars(uri, origin), origin)
    if name and (entry is None or _is_folder(here, name)):
        if entry is None and not _is_folder(here, name):
            hint = (
                "; of a web server that does not list its folders, open a file"
                if uri.startswith("http")
                else ""
            )
            raise StoreError(2, f"there is nothing at {redacted(uri)}; check the path{hint}")
        here, entry = listing_of(_join(root, name), origin.options), None
    if entry is None:
        return _opened(_folder(here, origin), origin)
    return _opened(_file(here, entry, origin), origin)


def _opened(found: tuple[Listing, Table], origin: Origin) -> Source:
    listing, table = found
    return Source(table.opened_from(origin), listing.spec)


def _folder(listing: Listing, origin: Origin) -> tuple[Listing, Table]:
    from penstock.catalog_file import CATALOG_NAME

    packed = listing.stat(CATALOG_NAME)
    if packed is not None and _is_catalog(listing, packed):
        from penstock.sources import packed as packed_source

        return listing, packed_source.open(listing, packed)
    top = sorted(listing.list(recursive=False))
    tars = [entry for entry in top if entry.key.endswith(".tar")]
    if tars:
        from penstock.sources import shards

        return listing, shards.open(listing, tars, "")
    tables = [entry for entry in top if entry.key.lower().endswith(TABLE_EXTENSIONS)]
    if len(tables) > 1:
        raise CatalogError(
            f"{redacted(listing.spec.uri)} has {len(tables)} tables ({', '.join(e.key for e in tables)}), "
            "and one of them "
            f"has to be the labels: open it by its own name, as {redacted(_join(origin.uri, tables[0].key))}"
        )
    if tables:
        from penstock.sources import labels

        return listing, labels.open(listing, tables[0])
    from penstock.sources import folder

    return listing, folder.open(listing)


def _file(listing: Listing, entry: Entry, origin: Origin) -> tuple[Listing, Table]:
    name = entry.key.lower()
    if name.endswith(".npy"):
        from penstock.sources import arrays

        return listing, arrays.open_npy(listing, entry)
    if name.endswith(".npz"):
        from penstock.sources import arrays

        return listing, arrays.open_npz(listing, entry, origin.only)
    if name.endswith((".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2")):
        from penstock.sources import shards

        return listing, shards.open(listing, [entry], entry.key)
    if name.endswith(TABLE_EXTENSIONS):
        if name.endswith(".parquet") and _is_catalog(listing, entry):
            from penstock.sources import packed

            return listing, packed.open(listing, entry)
        from penstock.sources import labels

        return listing, labels.open(listing, entry)
    raise CatalogError(
        f"{redacted(listing.spec.uri)}{entry.key} is no data set that penstock knows: it opens folders, "
        ".tar, .npy, .npz, "
        "catalog.parquet, and tables of labels (.csv, .tsv, .parquet, .jsonl)"
    )


def _tars(uri: str, origin: Origin) -> tuple[Listing, Table]:
    from penstock.sources import patterns, shards

    root, keys = patterns.expand(local_path(uri) or uri, lambda at: listing_of(at, origin.options))
    listing = listing_of(root, origin.options)
    entries = list(zip(keys, listing.stat_many(keys), strict=True))
    if missing := [key for key, entry in entries if entry is None]:
        raise CatalogError(
            f"{len(missing):,} of the {len(keys):,} shards that {redacted(uri)} names are not there: "
            f"{', '.join(missing[:3])}{', …' if len(missing) > 3 else ''}; get them, or narrow the pattern"
        )
    return listing, shards.open(listing, [entry for _, entry in entries if entry is not None], uri)


def _is_catalog(listing: Listing, entry: Entry) -> bool:
    """Whether a Parquet file is a catalog; a damaged catalog.parquet counts, so that it is reported."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from penstock.catalog_file import CATALOG_NAME, METADATA_KEY
    from penstock.sources.cache import near
    from penstock.sources.listing import RangeFile

    place, here = near(listing, entry)
    try:
        with place.reader(here.key) as read:
            metadata = pq.read_metadata(pa.PythonFile(RangeFile(read, here.size), "r")).metadata or {}
    except (pa.ArrowException, OSError, ValueError):  # ValueError: names that are no UTF-8
        return entry.key == CATALOG_NAME
    return METADATA_KEY in metadata


def _is_folder(listing: Listing, name: str) -> bool:
    return listing.is_folder(name)


def _cut(uri: str) -> tuple[str, str]:
    """Cut a URI into its folder and the last part of its path."""
    path = local_path(uri)
    if path is not None:
        root, name = os.path.split(path)
        return root, name
    scheme, _, rest = uri.partition("://")
    root, slash, name = rest.rstrip("/").rpartition("/")
    return (f"{scheme}://{root}", name) if slash else (f"{scheme}://{name}", "")


def _join(root: str, name: str) -> str:
    from urllib.parse import quote

    return f"{root.rstrip('/')}/{quote(name) if '://' in root else name}"


def source_of(uri: str | os.PathLike[str], options: Mapping[str, object], only: tuple[str, ...]) -> Source:
    """Open a URI or path; local ones are remembered as absolute paths, so that other processes find them."""
    from penstock.table import Origin

    text, options = taken_apart(os.fspath(uri), options)
    path = local_path(text)
    return open_source(Origin(path if path is not None else text, options, only))
