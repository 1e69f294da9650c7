"""Catalog: the table of samples.

A row a sample, with a stable id, where each of its stored fields lies, and the user's columns. Rows are
read column by column, when they are asked for. docs/design.md tells of the columns.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock import _native
from penstock.arrow import strings, to_arrow, to_numpy
from penstock.catalog_file import FORMAT_VERSION, read_catalog, write_catalog
from penstock.errors import CatalogError
from penstock.formats import Format
from penstock.table import NO_OBJECT, WHOLE, Field, Header, Origin, Ramp, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from penstock.table import Column

__all__ = [
    "FORMAT_VERSION",
    "NO_OBJECT",
    "WHOLE",
    "Addresses",
    "Catalog",
    "Field",
    "Header",
    "Origin",
    "Ramp",
    "Table",
    "read_catalog",
    "write_catalog",
]


class Addresses(NamedTuple):
    """Where one stored field of some samples lies, an entry a sample in each array."""

    object: np.ndarray
    """uint32: index into `Catalog.objects`; `NO_OBJECT` where the sample does not have the field."""
    offset: np.ndarray
    """uint64: first byte inside the object."""
    length: np.ndarray
    """uint64: bytes; `WHOLE` for the whole object."""
    crc32c: np.ndarray | None
    """uint32 checksum of those bytes; None where it is not known."""
    format: np.ndarray
    """uint8: `penstock.formats.Format`."""


class Catalog:
    """Some rows of a table of samples, in order; cheap to make and to cut.

    Rows are counted from 0 within this catalog; ids are those of the source, whatever was cut away.
    """

    __slots__ = ("_address_columns", "_rows", "_table")

    def __init__(self, table: Table, rows: np.ndarray | None = None) -> None:
        """``rows``: int64 row numbers of ``table``; None for all of them."""
        self._table = table
        self._rows = rows
        self._address_columns: dict[str, tuple[Column, ...]] = {}

    def __len__(self) -> int:
        return self._table.header.rows if self._rows is None else len(self._rows)

    def __repr__(self) -> str:
        header = self._table.header
        stored = ", ".join(field.name for field in header.stored)
        return (
            f"Catalog({len(self):,} rows; stored: {stored}; columns: {', '.join(header.columns) or 'none'})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (_unpickled, (self._table, _small(self._rows, self._table.header.rows)))

    # What there is.

    @property
    def header(self) -> Header:
        """What is known of the whole source without reading its rows."""
        return self._table.header

    @property
    def origin(self) -> Origin | None:
        """What it was opened from, if it can be opened again."""
        return self._table.origin

    @property
    def stored(self) -> tuple[Field, ...]:
        """The stored fields, whether or not a batch holds them."""
        return self._table.header.stored

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the user's columns."""
        return self._table.header.columns

    @property
    def objects(self) -> Any:
        """The keys of the store's objects: a pyarrow string array, which addresses point into."""
        return self._table.objects

    @property
    def nbytes(self) -> int:
        """Bytes in memory: columns read so far, object keys, row numbers."""
        return self._table.nbytes + (self._rows.nbytes if self._rows is not None else 0)

    def field(self, name: str) -> Field:
        """Return the field of that name, stored or a column; `CatalogError` if there is none."""
        for field in self.stored:
            if field.name == name:
                return field
        if name in self.columns:
            column = self._load(name)
            gaps = not isinstance(column, np.ndarray) and column.null_count > 0
            return _column_field(name, self.arrow_column(name) if gaps else column)
        stored = ", ".join(field.name for field in self.stored)
        raise CatalogError(
            f"there is no field {name!r}; stored are {stored or 'none'}, columns are "
            f"{', '.join(self.columns) or 'none'}"
        )

    # Rows.

    def take(self, rows: np.ndarray) -> Catalog:
        """Return the catalog of these rows, in this order."""
        rows = np.asarray(rows, np.int64)
        chosen = rows if self._rows is None else self._rows.take(rows)
        return Catalog(self._table, chosen)

    def ids(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the uint64 ids of these rows, or of all."""
        chosen = self._chosen(rows)
        if self._table.has("id"):
            column = self._load("id")
            return np.asarray(column if chosen is None else column.take(chosen))
        if chosen is None:
            return np.arange(len(self), dtype=np.uint64)
        return chosen.astype(np.uint64)

    def addresses(self, field: str, rows: np.ndarray) -> Addresses:
        """Return where ``field`` of these rows lies: see `Addresses`."""
        columns = self._address_columns.get(field)
        if columns is None:
            columns = self._address_columns[field] = self._load_addresses(field)
        if self._rows is not None:
            rows = self._rows.take(rows)
        object, offset, length, format, crc32c = columns
        return Addresses(
            object.take(rows),
            offset.take(rows),
            length.take(rows),
            None if crc32c is None else crc32c.take(rows),
            format.take(rows),
        )

    def native(self, fields: Sequence[str]) -> _native.Addresses:
        """Return what the pipeline reads addresses and ids from: these columns, in place."""
        columns = [self._load_addresses(field) for field in fields]
        return _native.Addresses(
            self._table.header.rows,
            None if self._rows is None else np.ascontiguousarray(self._rows, np.int64),
            _in_place(self._load("id"), np.uint64) if self._table.has("id") else None,
            [
                (
                    _in_place(object, np.uint32),
                    _in_place(offset, np.uint64),
                    _in_place(length, np.uint64),
                    None if crc32c is None else _in_place(crc32c, np.uint32),
                    _in_place(format, np.uint8),
                )
                for object, offset, length, format, crc32c in columns
            ],
        )

    def column(self, name: str, rows: np.ndarray | None = None) -> np.ndarray:
        """Return a user's column for these rows, or for all: text and the like as an object array."""
        if name not in self.columns:
            raise CatalogError(f"there is no column {name!r}; there are {', '.join(self.columns) or 'none'}")
        return _as_numpy(self._load(name), self._chosen(rows))

    def arrow_column(self, name: str) -> Any:
        """Return a user's column for all rows as a pyarrow array, gaps and all."""
        column = self._load(name)
        if isinstance(column, np.ndarray):
            return to_arrow(column if self._rows is None else column.take(self._rows))
        return column if self._rows is None else column.take(to_arrow(self._rows))

    def keys(self, rows: np.ndarray | None = None) -> list[str]:
        """Return the samples' names: the column ``key``, or what the object keys say."""
        chosen = self._chosen(rows)
        if self._table.has("key"):
            return [str(key) for key in _as_numpy(self._load("key"), chosen)]
        if chosen is None:
            chosen = np.arange(len(self))
        names = [str(row) for row in chosen.tolist()]
        left = np.arange(len(chosen))
        for field in self.stored:  # the first one that a sample has
            object, _, _, format, _ = self._load_addresses(field.name)
            objects, raw = object.take(chosen[left]), format.take(chosen[left]) == Format.RAW
            there = objects != NO_OBJECT
            for place, index, is_row in zip(
                left[there].tolist(), objects[there].tolist(), raw[there].tolist(), strict=True
            ):
                name = self.objects[index].as_py()
                names[place] = f"{name}[{names[place]}]" if is_row else name
            left = left[~there]
            if not len(left):
                break
        return names

    def has_field(self, field: str) -> np.ndarray:
        """Return for each row whether the sample has that stored field."""
        object, *_ = self._load_addresses(field)
        chosen = np.arange(len(self)) if self._rows is None else self._rows
        return np.asarray(object.take(chosen) != NO_OBJECT)

    # As a table.

    def to_arrow(self, columns: Sequence[str] | None = None) -> Any:
        """Return a pyarrow Table of these rows: ``id``, ``key``, the user's columns, then the addresses.

        ``columns`` names those that are wanted. Reads them all into memory.
        """
        import pyarrow as pa

        header = self._table.header
        physical = sorted(
            (name for name in header.physical if name.startswith("@")),
            key=lambda name: ([f.name for f in header.stored].index(name[1:].rpartition(".")[0]), name),
        )
        names = ["id", "key", *header.columns, *physical] if columns is None else list(columns)
        chosen = self._rows
        everything = np.arange(len(self)) if chosen is None else chosen
        arrays = []
        for name in names:
            if name == "id":
                arrays.append(to_arrow(self.ids()))
            elif name == "key" and not self._table.has("key"):
                arrays.append(strings(self.keys()))
            elif name in header.physical:
                (column,) = self._table.load([name])
                if isinstance(column, Ramp):
                    arrays.append(to_arrow(column.take(everything)))
                elif isinstance(column, np.ndarray):
                    arrays.append(to_arrow(column if chosen is None else column.take(chosen)))
                else:
                    arrays.append(column if chosen is None else column.take(to_arrow(chosen)))
            else:
                raise CatalogError(
                    f"there is no column {name!r}; there are id, key, {', '.join(header.columns)}"
                )
        return pa.table(arrays, names=names)

    def to_pandas(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return these rows as a pandas DataFrame; see `to_arrow`."""
        frame: pd.DataFrame = self.to_arrow(columns).to_pandas()
        return frame

    def fingerprint(self, fields: Sequence[str] = ()) -> str:
        """Return a digest of which samples these are and which fields; the same after opening again."""
        digest = hashlib.sha256(f"penstock catalog 1\n{self.header.identity}\n{len(self)}\n".encode())
        for name in fields:
            digest.update(f"{len(name)} {name}\n".encode())
        if self._rows is not None and not _is_everything(self._rows, self.header.rows):
            digest.update(np.ascontiguousarray(self._rows).data)
        return digest.hexdigest()[:32]

    # Inside.

    def _chosen(self, rows: np.ndarray | None) -> np.ndarray | None:
        if rows is None:
            return self._rows
        rows = np.asarray(rows)
        return rows if self._rows is None else self._rows.take(rows)

    def _load(self, name: str) -> Column:
        return self._table.load([name])[0]

    def _load_addresses(self, field: str) -> tuple[Column, ...]:
        if field not in {stored.name for stored in self.stored}:
            raise CatalogError(
                f"there is no stored field {field!r}; there are {[f.name for f in self.stored]}"
            )
        parts = ["object", "offset", "length", "format"]
        checked = self._table.has(f"@{field}.crc32c")
        loaded = self._table.load([f"@{field}.{part}" for part in [*parts, *(["crc32c"] if checked else [])]])
        return tuple(loaded) if checked else (*loaded, None)


def _in_place(column: Column, dtype: Any) -> Any:
    """Return an address column as the native core takes it: contiguous, or its formula."""
    if isinstance(column, Ramp):
        return (column.start, column.step)
    return np.ascontiguousarray(column, dtype)


def _unpickled(table: Table, rows: tuple[str, bytes] | None) -> Catalog:
    return Catalog(table, _large(rows, table.header.rows))


def _is_everything(rows: np.ndarray, count: int) -> bool:
    return len(rows) == count and (count == 0 or (rows[0] == 0 and bool((np.diff(rows) == 1).all())))


def _small(rows: np.ndarray | None, count: int) -> tuple[str, bytes] | None:
    """Return row numbers in few bytes: a bit a row of the source, or four or eight a row of these."""
    if rows is None:
        return None
    if len(rows) == 0 or (len(rows) * 4 > count // 8 and bool((np.diff(rows) > 0).all())):
        bits = np.zeros(count, bool)
        bits[rows] = True
        return ("bits", np.packbits(bits).tobytes())
    dtype = "<u4" if count <= NO_OBJECT else "<u8"
    return (dtype, rows.astype(dtype).tobytes())


def _large(packed: tuple[str, bytes] | None, count: int) -> np.ndarray | None:
    if packed is None:
        return None
    how, data = packed
    if how == "bits":
        return np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8), count=count)).astype(np.int64)
    return np.frombuffer(data, how).astype(np.int64)


def _as_numpy(column: Column, chosen: np.ndarray | None) -> np.ndarray:
    if isinstance(column, (np.ndarray, Ramp)):
        if chosen is not None:
            return column.take(chosen)
        if isinstance(column, np.ndarray):
            return column
        raise TypeError("a formula stands only for addresses")
    return to_numpy(column if chosen is None else column.take(to_arrow(chosen)))


def _column_field(name: str, column: Column) -> Field:
    if isinstance(column, np.ndarray):
        return Field(name, "scalar", "column", column.dtype.name, ())
    import pyarrow as pa

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return Field(name, "bytes", "column")
    if pa.types.is_floating(column.type):  # gaps arrive as NaN
        return Field(name, "scalar", "column", np.dtype(column.type.to_pandas_dtype()).name, ())
    numbers = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
    if numbers and column.null_count == 0:  # gaps there were, but not in these rows
        return Field(name, "scalar", "column", np.dtype(column.type.to_pandas_dtype()).name, ())
    if numbers:
        raise CatalogError(
            f"the column {name!r} holds {column.type} and is empty in {column.null_count:,} rows, which a tensor cannot "
            f"hold; leave them out first: where('{name} is not null')"
        )
    raise CatalogError(
        f"the column {name!r} holds {column.type}, which a batch cannot hold as a tensor; "
        "columns of numbers without gaps and of text can be selected"
    )
