"""A folder with a table of labels: one of its columns names the files, the others are the user's columns."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.arrow import is_number, one_array, to_numpy
from penstock.errors import CatalogError
from penstock.sources.cache import near
from penstock.sources.folder import Files
from penstock.sources.listing import RangeFile, local_path, redacted
from penstock.sources.members import encode_classes, some

if TYPE_CHECKING:
    from penstock.sources.listing import Entry, Listing
    from penstock.table import Column, Table

FILE_COLUMNS = (
    "file",
    "filename",
    "file_name",
    "path",
    "filepath",
    "file_path",
    "image",
    "image_path",
    "image_file",
    "img",
    "img_path",
    "key",
    "name",
    "id",
    "image_id",
    "image_name",
)
LABEL_COLUMNS = ("label", "class", "class_name", "category", "target")


def open(listing: Listing, entry: Entry) -> Table:
    """Open the files that the table names; files that it does not name are left out, and said so.

    `CatalogError` where no column names files, or rows name files that are not there, or the same one twice.
    """
    where = f"{redacted(listing.spec.uri)}{entry.key}"
    table = _read(listing, entry, where)
    column = _file_column(table, where)
    files = Files(listing, leave=frozenset({entry.key}))
    rows = _rows(table.column(column), column, files, listing, where)
    chosen = np.sort(rows)
    if len(chosen) > 1 and (twice := np.flatnonzero(np.diff(chosen) == 0)).size:
        raise CatalogError(
            f"{where}: {len(twice):,} samples are named twice, such as {files.keys[chosen[twice[0]]]}; "
            "keep one row of each"
        )
    if len(chosen) < len(files.keys):
        count = len(files.keys)
        note = f"{where}: {count - len(chosen):,} of {count:,} samples have no row there and were left out"
        warnings.warn(note, stacklevel=2)
        files.notes = (*files.notes, note)
        files.keep(chosen)
    order = np.argsort(rows, kind="stable")
    taken = {"id", "key", *(field.name for field in files.stored if field.name != "label")}
    columns, classes, label = _columns(table, column, order, where, taken)
    return files.table(columns, (label,) if label else (), classes, label if classes else None)


def _read(listing: Listing, entry: Entry, where: str) -> Any:
    import pyarrow as pa

    try:
        place, near_entry = near(listing, entry)
        with place.reader(near_entry.key) as read:
            table = _parsed(pa.PythonFile(RangeFile(read, entry.size), "r"), entry.key.lower())
        table.validate(full=True)
        _ = table.column_names
    except UnicodeDecodeError as error:
        raise CatalogError(f"{where} is not text in UTF-8 ({error}); save it in that encoding") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CatalogError(f"{where} cannot be read as a table: {error}") from error
    if not table.num_rows:
        raise CatalogError(f"{where} has no rows; it should name each file and its label")
    name, count = Counter(table.column_names).most_common(1)[0]
    if count > 1:
        raise CatalogError(f"{where} has two columns named {name!r}; rename one")
    return table


def _parsed(file: Any, name: str) -> Any:
    if name.endswith(".parquet"):
        import pyarrow.parquet as pq

        return pq.ParquetFile(file).read()
    if name.endswith((".jsonl", ".ndjson")):
        import pyarrow.json as pj

        return pj.read_json(file)
    import pyarrow.csv as pv

    return pv.read_csv(file, parse_options=pv.ParseOptions(delimiter="\t" if name.endswith(".tsv") else ","))


def _file_column(table: Any, where: str) -> str:
    import pyarrow as pa

    names = {name.strip().lower(): name for name in reversed(table.column_names)}
    for wanted in FILE_COLUMNS:
        if wanted in names and not pa.types.is_nested(table.column(names[wanted]).type):
            return str(names[wanted])
    raise CatalogError(
        f"{where}: no column names the files; looked for {', '.join(FILE_COLUMNS)}, and it has "
        f"{', '.join(table.column_names)}: rename the one that does to 'file'"
    )


def _rows(names: Any, column: str, files: Files, listing: Listing, where: str) -> np.ndarray:
    """Return the sample that each row names: by path, with extension or without, or by file name."""
    given = [None if name is None else str(name).strip() for name in names.to_pylist()]
    if None in given or "" in given:
        at = next(i for i, name in enumerate(given) if not name)
        raise CatalogError(
            f"{where}: the column {column!r} is empty in row {at + 1}; name the file or remove the row"
        )
    root = local_path(listing.spec.uri) or listing.spec.uri.rstrip("/")
    places: dict[str, int] = {key: row for row, key in enumerate(files.keys)}
    places.update(zip(files.objects, files.rows, strict=True))
    last_parts: dict[str, int] = {}
    for place, row in places.items():
        last = place.rpartition("/")[2]
        last_parts[last] = row if last_parts.get(last, row) == row else -1
    found = np.empty(len(given), np.int64)
    lost: list[str] = []
    unclear: list[str] = []
    for index, name in enumerate(given):
        path = str(name).removeprefix("./")
        if path.startswith(root + "/"):
            path = path[len(root) + 1 :]
        sample = places.get(path)
        if sample is None and "/" not in path:
            sample = last_parts.get(path)
        if sample is None or sample < 0:
            (lost if sample is None else unclear).append(path)
        else:
            found[index] = sample
    if lost:
        raise CatalogError(
            f"{where}: {len(lost):,} of {len(given):,} rows name files that are not in {files.where}: "
            f"{some(lost)}; "
            "add the files or remove the rows"
        )
    if unclear:
        raise CatalogError(
            f"{where}: {len(unclear):,} rows name files of which there are several: {some(unclear)}; "
            "give their paths from the folder of the table"
        )
    return found


def _columns(
    table: Any, file_column: str, order: np.ndarray, where: str, taken: set[str]
) -> tuple[dict[str, Column], tuple[str, ...], str | None]:
    import pyarrow as pa

    from penstock.arrow import to_arrow

    lowered = {name.lower(): name for name in reversed(table.column_names) if name != file_column}
    label = next((lowered[name] for name in LABEL_COLUMNS if name in lowered), None)
    classes: tuple[str, ...] = ()
    columns: dict[str, Column] = {}
    for name in table.column_names:
        if name == file_column:
            continue
        if name.startswith("@"):
            raise CatalogError(
                f"{where}: the column {name!r} begins with @, which catalogs keep for addresses; rename it"
            )
        values = table.column(name)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        values = one_array(values).take(to_arrow(order))
        if name == label:
            if values.null_count:
                at = int(order[int(np.flatnonzero(to_numpy(values.is_null()))[0])])
                raise CatalogError(
                    f"{where}: the column {name!r} is empty in {values.null_count:,} rows (row {at + 1}); "
                    "fill or remove them"
                )
            if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
                columns[name], classes = encode_classes(values)
                continue
        kept = f"original_{name}" if name in taken else name  # what the files hold keeps its name
        columns[kept] = to_numpy(values) if is_number(values.type) and not values.null_count else values
    return columns, classes, label if label is not None and isinstance(columns[label], np.ndarray) else None
