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
``identity``     digest of everything above but ``kind``, ``sizes`` and ``versions``, and of all values
===============  ===========================================================================================

Every page has a checksum, which is verified when it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.arrow import is_number, one_array, to_numpy
from penstock.errors import CatalogError
from penstock.sources.listing import Entry, Listing, LocalListing, RangeFile
from penstock.table import ADDRESS_PARTS, NO_OBJECT, Field, Header, Origin, Ramp, Table, object_array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.catalog import Catalog
    from penstock.table import Column

FORMAT_VERSION = 1
METADATA_KEY = b"penstock"
CATALOG_NAME = "catalog.parquet"
RESERVED = ("id", "key")


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
        "identity": identity,
    }
    table = table.replace_schema_metadata(
        {METADATA_KEY: json.dumps(about, ensure_ascii=False, sort_keys=True)}
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


def read_file(listing: Listing, entry: Entry) -> tuple[Table, FileInfo]:
    """Read the header of a catalog file; its columns are read when they are asked for."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    where = f"{listing.spec.uri}{entry.key}"
    try:
        metadata = pq.read_metadata(pa.PythonFile(RangeFile(listing, entry), "r"))
        text = (metadata.metadata or {}).get(METADATA_KEY)
        about = json.loads(text) if text is not None else None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CatalogError(
            f"{where} cannot be read as Parquet ({error}); if it was cut short, make it again"
        ) from error
    if not isinstance(about, dict):
        raise CatalogError(
            f"{where} is a Parquet file but not a catalog of penstock: its footer lacks 'penstock'"
        )
    if about.get("version") != FORMAT_VERSION:
        raise CatalogError(
            f"{where} has format version {about.get('version')}, and this penstock reads {FORMAT_VERSION}; "
            "update penstock"
        )
    try:
        names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        schema_names = list(metadata.schema.to_arrow_schema().names)
        info = FileInfo(
            about["kind"], tuple(about["objects"]), tuple(about["sizes"]), tuple(about["versions"])
        )
        stored = tuple(
            Field(
                f["name"], f["kind"], "stored", f["dtype"], None if f["shape"] is None else tuple(f["shape"])
            )
            for f in about["stored"]
        )
        header = Header(
            rows=int(about["rows"]),
            identity=str(about["identity"]),
            stored=stored,
            batch=tuple(about["batch"]),
            columns=tuple(name for name in schema_names if not name.startswith("@") and name not in RESERVED),
            classes=tuple(about["classes"]),
            class_column=about["class_column"],
            physical=frozenset(schema_names),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CatalogError(f"{where}: its footer does not make sense ({error!r}); make it again") from error
    if header.rows != metadata.num_rows:
        raise CatalogError(
            f"{where}: its footer speaks of {header.rows:,} rows and it has {metadata.num_rows:,}"
        )
    for field in stored:
        for part in ADDRESS_PARTS:
            if part != "crc32c" and f"@{field.name}.{part}" not in names:
                raise CatalogError(f"{where} lacks the column @{field.name}.{part}; make it again")

    def load(wanted: Sequence[str]) -> dict[str, Column]:
        now = listing.stat(entry.key)
        if now != entry:
            raise CatalogError(f"{where} has been replaced since it was opened; open it again")
        try:
            file = pq.ParquetFile(
                pa.PythonFile(RangeFile(listing, entry), "r"),
                metadata=metadata,
                page_checksum_verification=True,
            )
            table = file.read(columns=list(wanted))
        except (pa.ArrowException, OSError) as error:
            raise CatalogError(f"{where} is damaged ({error}); make it again") from error
        columns = {name: _loaded(table.column(name)) for name in wanted}
        for name, column in columns.items():
            _check_address(name, column, len(info.objects), where)
        return columns

    return Table(header, load, lambda: object_array(info.objects)), info


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


def identity_of(header: Header, columns: Mapping[str, Column], objects: Any) -> str:
    """Return the digest of all that a table says: the same wherever and in whatever file it lies."""
    digest = hashlib.sha256(b"penstock table 1\n")
    about = [
        header.rows,
        [[f.name, f.kind, f.dtype, f.shape] for f in header.stored],
        header.batch,
        header.classes,
        header.class_column,
    ]
    digest.update(json.dumps(about, ensure_ascii=False).encode())
    keys = object_array(objects) if isinstance(objects, list) else objects
    _digest_column(digest, "objects", keys)
    for name in sorted(columns):
        _digest_column(digest, name, columns[name])
    return digest.hexdigest()[:32]


def _digest_column(digest: Any, name: str, column: Column) -> None:
    if isinstance(column, Ramp):
        digest.update(f"\n{name} {column.dtype.name} {column.start} + {column.step}\n".encode())
        return
    if isinstance(column, np.ndarray):
        digest.update(f"\n{name} {column.dtype.str} {len(column)}\n".encode())
        digest.update(np.ascontiguousarray(column).data)
        return
    import pyarrow as pa
    import pyarrow.compute as pc

    digest.update(f"\n{name} {column.type} {len(column)}\n".encode())
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        lengths = to_numpy(pc.binary_length(column)).astype("<f8")  # a gap is NaN
        digest.update(np.ascontiguousarray(lengths).data)
        text = pc.fill_null(column, "") if column.null_count else column
        _, offsets, data = text.buffers()
        if data is not None and len(text):
            ends = np.frombuffer(offsets, "<i8" if pa.types.is_large_string(text.type) else "<i4")
            first, last = int(ends[text.offset]), int(ends[text.offset + len(text)])
            digest.update(memoryview(data)[first:last])
        return
    for value in column.to_pylist():
        digest.update(repr(value).encode())
        digest.update(b"\n")
