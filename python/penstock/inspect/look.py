"""Everything that ``penstock inspect`` says, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.catalog import NO_OBJECT, WHOLE
from penstock.errors import PenstockError
from penstock.formats import FORMAT_NAMES, Format
from penstock.pack.source import Source

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.catalog import Catalog
    from penstock.dataset import Dataset

LABEL_NAMES = ("label", "class", "category", "target")
GROUP_NAMES = ("group", "patient", "subject", "split")
_FEW = 64
"""Columns with so many values or fewer are counted value by value."""
_THREADS = 16


@dataclass(frozen=True)
class Sizes:
    """Bytes of a stored field, over the samples that have it."""

    min: int
    median: float
    mean: float
    max: int
    total: int


@dataclass(frozen=True)
class StoredField:
    """One stored field."""

    name: str
    kind: str
    samples: int
    """That have it."""
    formats: dict[str, int]
    """Samples by format."""
    sizes: Sizes | None
    """None where the store does not say."""
    dtype: str | None
    shape: tuple[int, ...] | None
    checksums: bool
    in_batch: bool


@dataclass(frozen=True)
class ColumnField:
    """One of the user's columns."""

    name: str
    type: str
    missing: int
    distinct: int
    min: float | None
    max: float | None
    mean: float | None
    values: dict[str, int]
    """Samples by value, the most frequent first; empty where there are too many values."""
    in_batch: bool


@dataclass(frozen=True)
class Groups:
    """A column that groups samples."""

    column: str
    count: int
    smallest: int
    median: float
    largest: int


@dataclass(frozen=True)
class Shard:
    """An object that holds many samples."""

    name: str
    samples: int
    bytes: int
    """Of its samples."""


@dataclass(frozen=True)
class Row:
    """A sample as it is shown."""

    id: int
    key: str
    values: dict[str, str]


@dataclass(frozen=True)
class Inspection:
    """What is in a dataset."""

    uri: str
    samples: int
    bytes: int | None
    stored: tuple[StoredField, ...]
    columns: tuple[ColumnField, ...]
    label: str | None
    """The column or stored field that the histogram counts."""
    histogram: dict[str, int]
    """Samples by label, in the order of the classes, or the most frequent first."""
    groups: tuple[Groups, ...]
    classes: tuple[str, ...]
    rows: tuple[Row, ...]
    objects: int
    """How many objects of the store the samples lie in."""
    shards: tuple[Shard, ...]
    """Those objects, where they hold several samples each."""
    notes: tuple[str, ...]
    bad: tuple[str, ...] = field(default=())
    """Samples whose bytes are missing or shorter than the catalog says."""

    def as_json(self) -> dict[str, Any]:
        """Plain values, as ``json.dumps`` takes them."""
        return asdict(self)


def look(data: Dataset, *, rows: int = 5) -> Inspection:
    """Look at every sample's address and column, and at ``rows`` samples themselves.

    look(penstock.open("photos/")).histogram
    """
    catalog = data.catalog
    in_batch = {each.name for each in data.fields}
    stored, bad, known = [], [], True
    held: dict[int, list[int]] = {}
    for each in catalog.stored:
        at = catalog.addresses(each.name, np.arange(len(catalog)))
        present = at.object != NO_OBJECT
        lengths, wrong = _lengths(data, each.name)
        bad += wrong
        codes, counts = np.unique(at.format[present], return_counts=True)
        stored.append(
            StoredField(
                name=each.name,
                kind=each.kind,
                samples=int(present.sum()),
                formats={
                    FORMAT_NAMES[Format(code)]: count
                    for code, count in zip(codes.tolist(), counts.tolist(), strict=True)
                },
                sizes=None if lengths is None else _sizes(lengths[present]),
                dtype=each.dtype,
                shape=each.shape,
                checksums=at.crc32c is not None,
                in_batch=each.name in in_batch,
            )
        )
        known &= lengths is not None
        _count_objects(held, at.object[present], None if lengths is None else lengths[present])
    columns = tuple(_column(catalog, name, in_batch=name in in_batch) for name in catalog.columns)
    label, histogram = _histogram(catalog, columns)
    return Inspection(
        uri=data.catalog.origin.uri if data.catalog.origin is not None else Source.of(data).name,
        samples=len(catalog),
        bytes=sum(each.sizes.total for each in stored if each.sizes) if known else None,
        stored=tuple(stored),
        columns=columns,
        label=label,
        histogram=histogram,
        groups=tuple(_groups(catalog, name) for name in catalog.columns if name.lower() in GROUP_NAMES),
        classes=data.classes,
        rows=tuple(_row(data, at) for at in _spread(len(data), rows)),
        objects=len(held),
        shards=_shards(catalog, held),
        notes=data.notes,
        bad=tuple(bad),
    )


def _lengths(data: Dataset, name: str) -> tuple[npt.NDArray[np.uint64] | None, list[str]]:
    rows = np.arange(len(data.catalog), dtype=np.int64)
    try:
        lengths, _, wrong = Source.of(data).measure(name, rows, _THREADS)
    except PenstockError:  # a store that is not local: what the catalog says is all that is known
        lengths, wrong = data.catalog.addresses(name, rows).length, {}
        if (lengths == WHOLE).any():
            return None, []
    return lengths, [str(wrong[row]) for row in sorted(wrong)]


def _sizes(lengths: npt.NDArray[np.uint64]) -> Sizes | None:
    if not len(lengths):
        return None
    return Sizes(
        min=int(lengths.min()),
        median=float(np.median(lengths)),
        mean=float(lengths.mean()),
        max=int(lengths.max()),
        total=int(lengths.sum()),
    )


def _count_objects(
    held: dict[int, list[int]], objects: npt.NDArray[np.uint32], lengths: npt.NDArray[np.uint64] | None
) -> None:
    found, where, counts = np.unique(objects, return_inverse=True, return_counts=True)
    sums = np.zeros(len(found), np.uint64)
    if lengths is not None:
        np.add.at(sums, where, lengths)
    for index, count, total in zip(found.tolist(), counts.tolist(), sums.tolist(), strict=True):
        entry = held.setdefault(index, [0, 0])
        entry[0] = max(entry[0], count)
        entry[1] += total


def _shards(catalog: Catalog, held: dict[int, list[int]]) -> tuple[Shard, ...]:
    if len(held) >= len(catalog):
        return ()
    return tuple(Shard(catalog.objects[index].as_py(), *held[index]) for index in sorted(held))


def _column(catalog: Catalog, name: str, *, in_batch: bool) -> ColumnField:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = catalog.to_arrow([name]).column(name)
    kind = column.type
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    there = column.drop_null()
    low, high, mean = (None, None, None)
    if numeric and len(there):
        ends = pc.min_max(there).as_py()
        low, high, mean = float(ends["min"]), float(ends["max"]), float(pc.mean(there).as_py())
    values: dict[str, int] = {}
    try:
        distinct = int(pc.count_distinct(column).as_py())
        if distinct <= _FEW:
            values = _value_counts(there)
    except pa.ArrowNotImplementedError:  # nested columns are listed and not counted
        distinct = 0
    return ColumnField(name, str(kind), column.null_count, distinct, low, high, mean, values, in_batch)


def _value_counts(column: pa.ChunkedArray) -> dict[str, int]:
    import pyarrow.compute as pc

    pairs = [(str(pair["values"]), int(pair["counts"])) for pair in pc.value_counts(column).to_pylist()]
    return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))


def _histogram(catalog: Catalog, columns: tuple[ColumnField, ...]) -> tuple[str | None, dict[str, int]]:
    header = catalog.header
    names = [header.class_column, *(c.name for c in columns if c.name.lower() in LABEL_NAMES)]
    name = next((name for name in names if name is not None), None)
    if name is None:
        return None, {}
    if name == header.class_column and header.classes:
        labels = np.asarray(catalog.column(name))
        counts = np.bincount(
            labels[(labels >= 0) & (labels < len(header.classes))].astype(np.int64),
            minlength=len(header.classes),
        )
        return name, dict(zip(header.classes, counts.tolist(), strict=True))
    return name, _value_counts(catalog.to_arrow([name]).column(name).drop_null())


def _groups(catalog: Catalog, name: str) -> Groups:
    counts = np.array(list(_value_counts(catalog.to_arrow([name]).column(name).drop_null()).values()) or [0])
    return Groups(name, len(counts), int(counts.min()), float(np.median(counts)), int(counts.max()))


def _spread(count: int, wanted: int) -> list[int]:
    """Positions of so many samples, spread over all."""
    if wanted <= 0 or count == 0:
        return []
    return sorted({int(at) for at in np.linspace(0, count - 1, min(wanted, count))})


def _row(data: Dataset, at: int) -> Row:
    row = np.array([at])
    id, key = int(data.catalog.ids(row)[0]), data.catalog.keys(row)[0]
    try:
        values = {name: _shown(value) for name, value in data[at].items()}
    except PenstockError as error:
        values = {"": f"cannot be read: {getattr(error, 'reason', error)}"}
    classes, column = data.classes, data.catalog.header.class_column
    if column in values and values[column].isdigit() and int(values[column]) < len(classes):
        values[column] += f" ({classes[int(values[column])]})"
    for name in data.catalog.columns:
        if name not in values:
            values[name] = _shown(data.catalog.to_arrow([name]).column(name)[at].as_py())
    return Row(id, key, values)


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape:
        return f"{value.dtype} {'×'.join(map(str, shape))}"
    if isinstance(value, bytes):
        text = value[:60].decode("utf-8", errors="replace")
        return f"{text!r}" + (f"… {len(value):,} bytes" if len(value) > 60 else "")
    text = str(value)
    return text if len(text) <= 60 else text[:59] + "…"
