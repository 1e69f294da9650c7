"""Tar shards in the WebDataset convention, used in place after their headers were read once.

Files of a shard that follow each other under one key (the name up to the first dot of its last part) are one
sample. What was found is kept as a Parquet index beside the shards, or in the cache folder where that is not
writable, and holds as long as each shard keeps its size and its time of modification.
"""

from __future__ import annotations

import hashlib
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.arrow import strings, to_arrow
from penstock.catalog_file import FileInfo, read_file, write_file
from penstock.errors import CatalogError, PenstockError
from penstock.formats import Format
from penstock.sources.cache import cache_folder, identity, near
from penstock.sources.listing import LocalListing, redacted
from penstock.sources.members import Members, name_parts, number
from penstock.sources.tar import TarReader, Wire
from penstock.table import Header, Ramp, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.sources.listing import Entry, Listing

INDEX_NAME = ".penstock-index.parquet"
_THREADS = 8
_FAR_THREADS = 32
_LONGEST_NUMBER = 32


@dataclass(slots=True)
class Shard:
    """What the headers of one shard say."""

    keys: Any
    """pyarrow string array, a sample each."""
    members: Members
    labels: array[int] | None = field(default_factory=lambda: array("q"))
    """The numbers in the .cls files named so, where every sample has one."""


def open(listing: Listing, shards: Sequence[Entry], pattern: str) -> Table:
    """Open tar shards, in the order given; ``pattern``: how they were named, empty for a whole folder."""
    info = FileInfo(
        "index",
        tuple(shard.key for shard in shards),
        tuple(shard.size for shard in shards),
        tuple(shard.version for shard in shards),
    )
    places = _places(listing, info, whole_folder=not pattern)
    for place, name in [(listing, INDEX_NAME), *places]:
        table = _kept(place, name, info)
        if table is not None:
            return table
    header, columns = _merge(listing, info, _read_all(listing, shards))
    for place, name in places:
        try:
            write_file(place, name, _arrow_table(columns, header.rows), header, info)
        except (OSError, PenstockError):  # not writable, or full: the next place, and at last memory
            continue
        table = _kept(place, name, info)
        if table is not None:
            return table
    return Table.of(header, columns, list(info.objects))


def _places(listing: Listing, info: FileInfo, *, whole_folder: bool) -> list[tuple[Listing, str]]:
    names = "\n".join(info.objects)
    some = hashlib.sha256(names.encode()).hexdigest()[:16]
    beside = INDEX_NAME if whole_folder else f".penstock-index-{some}.parquet"
    everything = hashlib.sha256(f"{identity(listing)}\n{names}".encode()).hexdigest()[:32]
    cached = (LocalListing(cache_folder()), f"index/{everything}.parquet")
    # A bucket is written to only when that is asked for.
    if isinstance(listing, LocalListing) or listing.spec.options.get("index") == "beside":
        return [(listing, beside), cached]
    return [cached]


def _kept(place: Listing, name: str, info: FileInfo) -> Table | None:
    """Return the table of an index that still holds."""
    try:
        entry = place.stat(name)
        if entry is None:
            return None
        table, found = read_file(*near(place, entry))
    except PenstockError:  # damaged, of another version, or not readable: make it again
        return None
    return table if found == info else None


def _read_all(listing: Listing, shards: Sequence[Entry]) -> list[Shard]:
    threads = min(_THREADS if isinstance(listing, LocalListing) else _FAR_THREADS, len(shards))
    with ThreadPoolExecutor(threads, "penstock-index") as pool:
        wire = {} if isinstance(listing, LocalListing) else {"wire": Wire()}
        futures = [pool.submit(read_shard, listing, shard, **wire) for shard in shards]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def read_shard(listing: Listing, shard: Entry, wire: Wire | None = None) -> Shard:
    """Read the headers of one shard; `CatalogError` where it is damaged or has a sample twice."""
    where = f"{redacted(listing.spec.uri)}{shard.key}"
    found = Shard(None, Members(where))
    keys: list[str] = []
    seen: set[str] = set()
    fields: set[str] = set()
    with listing.reader(shard.key) as read:
        reader = TarReader(read, shard.size, where, wire)
        for member in reader:
            parts = name_parts(member.name)
            if parts is None:  # no extension, or hidden: no part of the convention
                continue
            if not keys or parts.key != keys[-1]:
                if parts.key in seen:
                    raise CatalogError(
                        f"{where} at byte {member.offset:,}: files of the sample {parts.key} lie in two "
                        "places; "
                        "in a shard the files of a sample follow each other: pack it with tar --sort=name"
                    )
                seen.add(parts.key)
                keys.append(parts.key)
                fields.clear()
            if parts.field in fields:
                raise CatalogError(
                    f"{where} at byte {member.offset:,}: the sample {parts.key} has the field "
                    f"{parts.field!r} twice; "
                    "rename one of its files"
                )
            fields.add(parts.field)
            if found.labels is not None and parts.field == "label":
                text = reader.content(member, _LONGEST_NUMBER) if parts.format is Format.CLS else b""
                value = number(text) if member.length <= _LONGEST_NUMBER else None
                if value is None or len(found.labels) != len(keys) - 1:
                    found.labels = None
                else:
                    found.labels.append(value)
            found.members.add(len(keys) - 1, parts.field, parts.format, 0, member.offset, member.length)
    if found.labels is not None and len(found.labels) != len(keys):
        found.labels = None
    found.keys = strings(keys)
    return found


def _merge(listing: Listing, info: FileInfo, shards: list[Shard]) -> tuple[Header, dict[str, Any]]:
    import pyarrow as pa

    where = redacted(listing.spec.uri)
    members = Members(where)
    rows = 0
    for index, shard in enumerate(shards):
        members.extend(shard.members, rows, index)
        rows += len(shard.keys)
    if rows == 0:
        raise CatalogError(
            f"{where}: no sample is in {', '.join(info.objects[:3])}; their files need names as key.jpg"
        )
    stored, addresses = members.columns(rows)
    columns: dict[str, Any] = {"key": pa.concat_arrays([shard.keys for shard in shards])}
    labels = [shard.labels for shard in shards if shard.labels is not None]
    if len(labels) == len(shards):
        columns["label"] = np.concatenate([np.frombuffer(part, np.int64) for part in labels if len(part)])
        stored = tuple(f for f in stored if f.name != "label")
        addresses = {name: column for name, column in addresses.items() if not name.startswith("@label.")}
    numbers = ("label",) if "label" in columns else ()
    header = Header(
        rows=rows,
        identity="",
        stored=stored,
        batch=(*(f.name for f in stored), *numbers),
        columns=numbers,
    )
    return header, {**columns, **addresses}


def _arrow_table(columns: dict[str, Any], rows: int) -> Any:
    import pyarrow as pa

    everything = np.arange(rows)
    arrays = {
        name: to_arrow(column.take(everything))
        if isinstance(column, Ramp)
        else to_arrow(column)
        if isinstance(column, np.ndarray)
        else column
        for name, column in columns.items()
    }
    return pa.table(arrays)
