"""The catalog as a Parquet file: ``catalog.parquet`` beside packed shards, and the index of tar shards.

Columns, in this order: ``id`` (only where it is not the row number), ``key``, the user's columns, then
for each stored field F ``@F.object``, ``@F.offset``, ``@F.length``, ``@F.crc32c`` (only where known)
and ``@F.format``; types as docs/design.md says, none of them null. The footer's metadata hold under
``penstock`` a JSON object:

===============  ===========================================================================================
``version``      1; a reader refuses what is newer
``kind``         ``"packed"`` or ``"index"``
``rows``         how many
``objects``      keys of the shards, relative to the file's folder
``sizes``        their sizes in bytes
``versions``     of an index only: what changes when the shard does (modification time in ns, or an etag)
``stored``       list of ``{"name", "kind", "dtype", "shape"}``; dtype and shape are null unless raw
``batch``        names of the fields that a batch holds unless others are selected
``classes``      names of the classes, or an empty list
``class_column`` the column of indices into them, or null
``columns``      list of ``[name, Arrow type in words]`` of every column
``identity``     digest of all values and of the above but ``kind``, ``sizes`` and ``versions``
===============  ===========================================================================================

``penstock.check`` beside it is the SHA-256 of that text, in hex. Every page has a checksum. Both are verified
when they are read: a damaged catalog is an error, and never another catalog.
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np

from penstock.arrow import is_number, one_array, to_numpy
from penstock.errors import CatalogError
from penstock.formats import Kind
from penstock.identity import identity_of
from penstock.sources.listing import Entry, Listing, LocalListing, RangeFile, redacted
from penstock.table import ADDRESS_PARTS, NO_OBJECT, Field, Header, Origin, Table, object_array
from penstock.transform import DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.catalog import Catalog
    from penstock.table import Column

FORMAT_VERSION = 1
METADATA_KEY = b"penstock"
CHECK_KEY = b"penstock.check"
CATALOG_NAME = "catalog.parquet"
RESERVED = ("id", "key")
Value = TypeVar("Value", str, int, list)  # type: ignore[type-arg]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What a catalog file says besides its table."""

    kind: Literal["packed", "index"]
    objects: tuple[str, ...]
    sizes: tuple[int, ...]
    versions: tuple[str, ...]


def write_catalog(
    path: str | os.PathLike[str],
    table: Any,
    *,
    objects: Sequence[str],
    sizes: Sequence[int],
    stored: Sequence[Field],
    batch: Sequence[str] | None = None,
    classes: Sequence[str] = (),
    class_column: str | None = None,
) -> str:
    """Write the catalog of packed shards beside them and return its identity.

    ``table``: a pyarrow Table with ``key``, the user's columns and the address columns of every field in
    ``stored``, and ``id`` where it is not the row number. ``objects`` and ``sizes``: the shards, relative
    to the folder of ``path``. ``batch``: what a batch holds, default all stored fields and the class
    column. The file appears whole or not at all; the same table gives the same bytes. `CatalogError` where
    table, fields and shards do not fit together; `StoreError` or OSError where it cannot be written.

        write_catalog("out/catalog.parquet", table, objects=["0.tar"], sizes=[4096], stored=[image])
    """
    folder, name = os.path.split(Path(path).absolute())
    info = FileInfo("packed", tuple(objects), tuple(sizes), ())
    if batch is None:
        batch = [*(field.name for field in stored), *([class_column] if class_column else [])]
    header = Header(
        rows=table.num_rows,
        identity="",
        stored=tuple(stored),
        batch=tuple(batch),
        columns=tuple(c for c in table.column_names if not c.startswith("@") and c not in RESERVED),
        classes=tuple(classes),
        class_column=class_column,
    )
    return write_file(LocalListing(folder), name, table, header, info)


def read_catalog(path: str | os.PathLike[str]) -> Catalog:
    """Read the catalog of packed shards; values are read when they are asked for.

    `CatalogError` where the file is not such a catalog, `StoreError` where it cannot be read.
    """
    from penstock.catalog import Catalog

    path = Path(path).absolute()
    folder, name = os.path.split(path)
    listing = LocalListing(folder)
    entry = listing.stat(name)
    if entry is None:
        raise CatalogError(f"there is no catalog at {path}")
    table, _ = read_file(listing, entry)
    return Catalog(table.opened_from(Origin(str(path))))


def write_file(listing: Listing, key: str, table: Any, header: Header, info: FileInfo) -> str:
    """Write a catalog file through a listing; returns its identity."""
    import pyarrow.parquet as pq

    where = f"the catalog {key}"
    _check(table, header, info, where)
    identity = identity_of(
        header, {name: _loaded(table.column(name)) for name in table.column_names}, list(info.objects)
    )
    about = {
        "version": FORMAT_VERSION,
        "kind": info.kind,
        "rows": header.rows,
        "objects": info.objects,
        "sizes": info.sizes,
        "versions": info.versions,
        "stored": [
            {"name": f.name, "kind": f.kind, "dtype": f.dtype, "shape": f.shape} for f in header.stored
        ],
        "batch": header.batch,
        "classes": header.classes,
        "class_column": header.class_column,
        "columns": [[name, str(table.schema.field(name).type)] for name in table.column_names],
        "identity": identity,
    }
    text = json.dumps(about, ensure_ascii=False, sort_keys=True).encode()
    table = table.replace_schema_metadata(
        {METADATA_KEY: text, CHECK_KEY: hashlib.sha256(text).hexdigest().encode()}
    )
    addresses = [name for name in table.column_names if name.startswith("@")]
    delta = [name for name in addresses if name.endswith((".offset", ".length"))]
    plain = [name for name in addresses if name.endswith(".crc32c")]
    with listing.create(key) as sink:
        pq.write_table(
            table,
            sink,
            use_dictionary=[name for name in table.column_names if name not in {*delta, *plain, *RESERVED}],
            column_encoding=dict.fromkeys(delta, "DELTA_BINARY_PACKED"),
            compression={name: "none" if name in addresses else "zstd" for name in table.column_names},
            write_page_checksum=True,
            write_statistics=False,
            store_schema=True,
        )
    return identity


def read_file(listing: Listing, entry: Entry, *, where: str | None = None) -> tuple[Table, FileInfo]:
    """Read the header of a catalog file; its columns are read when they are asked for.

    ``where``: what to call it in errors. The file stays open as long as the table lives, so that it may be
    replaced meanwhile by another.
    """
    where = where or f"{redacted(listing.spec.uri)}{entry.key}"
    with ExitStack() as stack:
        file = RangeFile(stack.enter_context(listing.reader(entry.key)), entry.size)
        metadata, about = _read_footer(file, where)
        header, info = _understood(about, where)
        names = set(metadata.schema.to_arrow_schema().names)
        if metadata.num_rows != header.rows or names != header.physical:
            raise CatalogError(f"{where} is damaged: its two headers contradict each other; make it again")
        table = Table(header, _Loader(file, metadata, about, where), lambda: object_array(info.objects))
        weakref.finalize(table, stack.pop_all().close)
        return table, info


def _read_footer(file: RangeFile, where: str) -> tuple[Any, dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(pa.PythonFile(file, "r"))
        said = metadata.metadata or {}
        text = said.get(METADATA_KEY)
        about = None
        if text is not None and said.get(CHECK_KEY) == hashlib.sha256(text).hexdigest().encode():
            about = json.loads(text)
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        raise CatalogError(
            f"{where} cannot be read as Parquet ({error}); if it was cut short, make it again"
        ) from error
    if text is None:
        raise CatalogError(f"{where} is a Parquet file but no catalog: its footer lacks 'penstock'")
    if not isinstance(about, dict):
        raise CatalogError(f"{where} is damaged: its footer does not match its checksum; make it again")
    if about.get("version") != FORMAT_VERSION:
        raise CatalogError(
            f"{where} has format version {about.get('version')}, and this penstock reads {FORMAT_VERSION}; "
            "update penstock"
        )
    return metadata, about


def _understood(about: dict[str, Any], where: str) -> tuple[Header, FileInfo]:
    try:
        info = FileInfo(
            about["kind"],
            _all(str, about["objects"]),
            _all(int, about["sizes"]),
            _all(str, about["versions"]),
        )
        types = {str(name): str(kind) for name, kind in about["columns"]}
        header = Header(
            rows=int(about["rows"]),
            identity=str(about["identity"]),
            stored=tuple(
                Field(
                    _one(str, f["name"]),
                    _one_of(get_args(Kind), f["kind"]),
                    "stored",
                    None if f["dtype"] is None else _one_of(DTYPES, f["dtype"]),
                    None if f["shape"] is None else _all(int, f["shape"]),
                )
                for f in about["stored"]
            ),
            batch=_all(str, about["batch"]),
            columns=tuple(name for name in types if not name.startswith("@") and name not in RESERVED),
            classes=_all(str, about["classes"]),
            class_column=None if about["class_column"] is None else _one(str, about["class_column"]),
            physical=frozenset(types),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CatalogError(f"{where}: its footer does not make sense ({error!r}); make it again") from error
    if len(info.sizes) != len(info.objects):
        raise CatalogError(
            f"{where}: its footer names {len(info.objects)} objects and {len(info.sizes)} sizes; make it again"
        )
    for field in header.stored:
        for part in ADDRESS_PARTS:
            if part != "crc32c" and f"@{field.name}.{part}" not in header.physical:
                raise CatalogError(f"{where} lacks the column @{field.name}.{part}; make it again")
    return header, info


def _one(kind: type[Value], value: Any) -> Value:
    if type(value) is not kind or (isinstance(value, int) and not 0 <= value < 2**63):
        raise ValueError(f"{value!r:.80} where a {kind.__name__} should be")
    return value


def _all(kind: type[Value], values: Any) -> tuple[Value, ...]:
    return tuple(_one(kind, value) for value in _one(list, values))


def _one_of(known: Sequence[str], value: Any) -> Any:
    if value not in known:
        raise ValueError(f"{value!r:.80} is none of {', '.join(known)}")
    return value


class _Loader:
    """Reads columns of a catalog file and checks them."""

    def __init__(self, file: RangeFile, metadata: Any, about: dict[str, Any], where: str) -> None:
        self._file = file
        self._metadata = metadata
        self._types = dict(about["columns"])
        self._objects = len(about["objects"])
        self._where = where

    def __call__(self, names: Sequence[str]) -> dict[str, Column]:
        """Return columns by name; `CatalogError` where they are damaged."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            parquet = pq.ParquetFile(
                pa.PythonFile(self._file, "r"), metadata=self._metadata, page_checksum_verification=True
            )
            table = parquet.read(columns=list(names))
            found = {name: table.column(name) for name in names}
        except (pa.ArrowException, OSError, KeyError) as error:
            raise CatalogError(f"{self._where} is damaged ({error}); make it again") from error
        for name, column in found.items():
            if len(column) != self._metadata.num_rows or str(column.type) != self._types[name]:
                raise CatalogError(
                    f"{self._where} is damaged: {name} is {len(column):,} × {column.type} and should be "
                    f"{self._metadata.num_rows:,} × {self._types[name]}; make it again"
                )
        columns = {name: _loaded(column) for name, column in found.items()}
        for name, column in columns.items():
            _check_address(name, column, self._objects, self._where)
        if "id" in columns:
            _check_ids(columns["id"], self._where)
        return columns


def _loaded(chunked: Any) -> Column:
    """Return a chunked Arrow column as NumPy where NumPy can say the same, else as one Arrow array."""
    import pyarrow as pa

    if pa.types.is_dictionary(chunked.type):
        chunked = chunked.cast(chunked.type.value_type)
    array = one_array(chunked)
    return to_numpy(array) if is_number(array.type) and not array.null_count else array


def _check_address(name: str, column: Column, objects: int, where: str) -> None:
    part = name.rpartition(".")[2]
    if not name.startswith("@") or part not in ADDRESS_PARTS:
        return
    if not isinstance(column, np.ndarray) or column.dtype != ADDRESS_PARTS[part]:
        found = column.dtype if isinstance(column, np.ndarray) else f"{column.type} with gaps"
        raise CatalogError(f"{where}: the column {name} is {found}, not {np.dtype(ADDRESS_PARTS[part])}")
    if part == "object" and len(column):
        named = column[column != NO_OBJECT] if objects < NO_OBJECT else column
        if len(named) and int(named.max()) >= objects:
            raise CatalogError(
                f"{where}: {name} points to object {int(named.max())}, and there are {objects}"
            )


def _check_ids(column: Column, where: str) -> None:
    if not isinstance(column, np.ndarray) or column.dtype != np.uint64:
        found = column.dtype if isinstance(column, np.ndarray) else f"{column.type} with gaps"
        raise CatalogError(f"{where}: the column id is {found}, not uint64")
    if (column[1:] > column[:-1]).all():
        return
    ordered = np.sort(column)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise CatalogError(f"{where}: {len(twice):,} samples have the id of another, such as {int(twice[0])}")


def _check(table: Any, header: Header, info: FileInfo, where: str) -> None:
    names = table.column_names
    if len(set(names)) != len(names):
        raise CatalogError(f"{where}: two columns have one name in {names}")
    if len(info.objects) != len(info.sizes):
        raise CatalogError(f"{where}: {len(info.objects)} objects and {len(info.sizes)} sizes")
    expected = set(RESERVED) | set(header.columns)
    for field in header.stored:
        if field.source != "stored" or not field.name or "." in field.name or "@" in field.name:
            raise CatalogError(f"{where}: {field} cannot be a stored field")
        for part in ADDRESS_PARTS:
            name = f"@{field.name}.{part}"
            expected.add(name)
            if name in names:
                _check_address(name, _loaded(table.column(name)), len(info.objects), where)
            elif part != "crc32c":
                raise CatalogError(f"{where}: the column {name} is missing")
    if unknown := set(names) - expected:
        raise CatalogError(f"{where}: no field explains the columns {sorted(unknown)}")
    known = {*(field.name for field in header.stored), *header.columns}
    if lost := [name for name in header.batch if name not in known]:
        raise CatalogError(f"{where}: a batch cannot hold {lost}: there is no such field")
    if header.class_column is not None and header.class_column not in header.columns:
        raise CatalogError(
            f"{where}: the class column {header.class_column!r} is not one of {list(header.columns)}"
        )
