"""One .npy or .npz file: a row of the leading axis is a sample, read where it lies and never copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import CatalogError
from penstock.formats import Format
from penstock.npy import LARGEST_HEADER, NpyHeader, npy_header
from penstock.sources.listing import redacted
from penstock.sources.npz import archive_members
from penstock.table import Field, Header, Ramp, Table, constant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.sources.listing import Entry, Listing
    from penstock.table import Column


def open_npy(listing: Listing, entry: Entry) -> Table:
    """Open a .npy: its rows are the field ``array``."""
    where = f"{redacted(listing.spec.uri)}{entry.key}"
    header = _header(listing, entry, 0, entry.size, where)
    return _table(entry, {"array": (header, 0)}, {}, where)


def open_npz(listing: Listing, entry: Entry, only: Sequence[str] = ()) -> Table:
    """Open a .npz whose arrays are of one length: each is a field, and those of one axis are columns as well.

    ``only``: the arrays that are wanted, where not all are of one length.
    """
    where = f"{redacted(listing.spec.uri)}{entry.key}"
    arrays = archive_members(listing, entry)
    names = [array.name for array in arrays]
    if lost := [name for name in only if name not in names]:
        raise CatalogError(f"{where} has no array {lost[0]!r}; it has {', '.join(names)}")
    stored: dict[str, tuple[NpyHeader, int]] = {}
    columns: dict[str, np.ndarray] = {}
    lengths: dict[str, int] = {}
    for array in arrays:
        if only and array.name not in only:
            continue
        there = f"{where}, array {array.name!r}"
        if not array.name or "." in array.name or "@" in array.name:
            raise CatalogError(f"{there}: that cannot name a field; save it under a name without dots and @")
        if array.format is Format.NPY_DEFLATE:
            raise CatalogError(
                f"{there}: it is compressed, so that no row of it can be read alone; save it with "
                "numpy.savez instead "
                "of numpy.savez_compressed, or each sample in a file of its own"
            )
        header = _header(listing, entry, array.offset, array.length, there)
        lengths[array.name] = header.shape[0]
        if len(header.shape) == 1:
            raw = listing.read(entry.key, array.offset + header.start, header.nbytes)
            columns[array.name] = np.frombuffer(raw, header.dtype).copy()
        else:
            stored[array.name] = (header, array.offset)
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise CatalogError(
            f"{where}: its arrays are not of one length ({shown}), and a row of each is to be a sample; "
            "name those that belong together: penstock.open(…, fields=[…])"
        )
    return _table(entry, stored, columns, where)


def _table(
    entry: Entry,
    stored: dict[str, tuple[NpyHeader, int]],
    columns: dict[str, np.ndarray],
    where: str,
) -> Table:
    rows = next(iter(stored.values()))[0].shape[0] if stored else len(next(iter(columns.values())))
    if rows == 0:
        raise CatalogError(f"{where} has no rows")
    fields = []
    all_columns: dict[str, Column] = dict(columns)
    for name, (header, base) in stored.items():
        step = header.nbytes // rows
        fields.append(Field(name, "array", "stored", header.dtype.name, header.shape[1:]))
        all_columns[f"@{name}.object"] = constant(0, "object")
        all_columns[f"@{name}.offset"] = Ramp(base + header.start, step, np.dtype(np.uint64))
        all_columns[f"@{name}.length"] = constant(step, "length")
        all_columns[f"@{name}.format"] = constant(Format.RAW, "format")
    about = Header(
        rows=rows,
        identity="",
        stored=tuple(fields),
        batch=(*stored, *columns),
        columns=tuple(columns),
    )
    return Table.of(about, all_columns, [entry.key])


def _header(listing: Listing, entry: Entry, offset: int, length: int, where: str) -> Any:
    head = listing.read(entry.key, offset, min(length, 4096))
    try:
        if len(head) >= 12 and int.from_bytes(head[8:10], "little") + 10 > len(head) and length > len(head):
            head = listing.read(entry.key, offset, min(length, LARGEST_HEADER + 12))
        header = npy_header(head)
    except ValueError as error:
        raise CatalogError(f"{where}: {error}") from error
    if not header.shape:
        raise CatalogError(f"{where} holds one value, and no axis whose rows could be samples")
    if header.column_major and len(header.shape) > 1:
        raise CatalogError(
            f"{where} lies column by column (Fortran order), so that no row of it is in one piece; "
            "save numpy.ascontiguousarray(array)"
        )
    if header.start + header.nbytes > length:
        raise CatalogError(
            f"{where} is cut short: {header.dtype}{list(header.shape)} takes {header.nbytes:,} bytes after "
            "its header, "
            f"and {length - header.start:,} are there"
        )
    return header
