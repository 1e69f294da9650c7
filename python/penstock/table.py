"""The table under a catalog: its header, its columns on demand, and how it is found again.

A `Table` is the whole of a source, a row a sample; a `penstock.catalog.Catalog` is a view of some of
its rows. Columns are NumPy arrays, or a `Ramp` where a formula says them, or Arrow arrays for text.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from penstock.arrow import strings
from penstock.errors import CatalogError
from penstock.sources.address import is_far
from penstock.sources.listing import check_name, redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.formats import Kind

WHOLE = 2**64 - 1
"""The length that means the whole object."""
NO_OBJECT = 2**32 - 1
"""The object index that means that this sample does not have the field."""
ADDRESS_PARTS = {
    "object": np.uint32,
    "offset": np.uint64,
    "length": np.uint64,
    "crc32c": np.uint32,
    "format": np.uint8,
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a batch.

    ``dtype`` is NumPy's name of the element type (``"float32"``), ``shape`` that of one sample; both are
    known only for rows stored raw and for columns, and are None for formats that say it themselves.
    """

    name: str
    kind: Kind
    source: Literal["stored", "column"]
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Ramp:
    """A column that a formula says: ``start + step * row``, in no memory."""

    start: int
    step: int
    dtype: np.dtype[Any]
    nbytes: int = 0

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the values of these rows."""
        if self.step == 0:
            return np.full(len(rows), self.start, self.dtype)
        if self.step == 1 and self.start == 0:
            return rows.astype(self.dtype)
        values: np.ndarray = rows.astype(self.dtype) * self.dtype.type(self.step) + self.dtype.type(
            self.start
        )
        return values


def constant(value: int, part: str) -> Ramp:
    """Return an address column that is the same in every row."""
    return Ramp(value, 0, np.dtype(ADDRESS_PARTS[part]))


Column: TypeAlias = Any
"""NumPy array, `Ramp`, or a pyarrow Array where NumPy has no type for it (text, nulls, nested)."""


@dataclass(frozen=True, slots=True)
class Header:
    """What is known of a table without reading its rows.

    ``stored`` are its stored fields, ``batch`` the names that a batch holds unless the user selects
    others, ``columns`` the user's columns; ``identity`` is a digest of all that the table says, the same
    wherever it lies. ``class_column`` holds indices into ``classes``.
    """

    rows: int
    identity: str
    stored: tuple[Field, ...]
    batch: tuple[str, ...]
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    class_column: str | None = None
    physical: frozenset[str] = frozenset()
    """The names of all columns that can be loaded."""
    notes: tuple[str, ...] = ()
    """What was left out when the source was read, in sentences."""


@dataclass(frozen=True, slots=True)
class Origin:
    """How a table is opened again: what the user gave to ``penstock.open``."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    """What the store needs besides; may hold secrets, and is not shown."""
    only: tuple[str, ...] = ()


class Table:
    """The whole table of a source.

    ``load(names)`` gives columns by physical name and is called once for each; ``objects()`` gives the
    keys of the store. Pickles as its origin where there is one, and with all columns otherwise.
    """

    def __init__(
        self,
        header: Header,
        load: Callable[[Sequence[str]], dict[str, Column]],
        objects: Callable[[], Any],
        origin: Origin | None = None,
    ) -> None:
        self.header = header
        self.origin = origin
        self._load = load
        self._make_objects = objects
        self._objects: Any = None
        self._loaded: dict[str, Column] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, header: Header, columns: dict[str, Column], objects: Sequence[str] | Any) -> Table:
        """Return a table of columns in memory; the header's ``physical`` and ``identity`` are filled in."""
        import pyarrow as pa

        from penstock.identity import identity_of

        keys = objects if isinstance(objects, pa.Array) else object_array(objects)
        if not header.identity:
            header = replace(header, identity=identity_of(header, columns, keys))
        header = replace(header, physical=frozenset(columns))
        return cls(header, lambda names: {name: columns[name] for name in names}, lambda: keys)

    @property
    def objects(self) -> Any:
        """The keys of the store's objects: a pyarrow string array."""
        if self._objects is None:
            self._objects = self._make_objects()
        return self._objects

    def has(self, name: str) -> bool:
        """Whether there is such a physical column."""
        return name in self.header.physical

    def load(self, names: Sequence[str]) -> list[Column]:
        """Return these columns, read together where they have not been read yet."""
        if any(name not in self._loaded for name in names):
            with self._lock:
                missing = [name for name in names if name not in self._loaded]
                if missing:
                    self._loaded.update(self._load(missing))
        return [self._loaded[name] for name in names]

    @property
    def nbytes(self) -> int:
        """Bytes that the columns read so far and the object keys take."""
        total = sum(int(column.nbytes) for column in self._loaded.values())
        return total + (int(self._objects.nbytes) if self._objects is not None else 0)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is not None:
            return (reopen, (self.origin, self.header.identity))
        names = sorted(self.header.physical)
        return (_rebuild, (self.header, dict(zip(names, self.load(names), strict=True)), self.objects))

    def opened_from(self, origin: Origin) -> Table:
        """Remember the origin, so that pickles are small; return self."""
        self.origin = origin
        _OPEN[origin, self.header.identity] = self
        return self


_OPEN: weakref.WeakValueDictionary[tuple[Origin, str], Table] = weakref.WeakValueDictionary()


def reopen(origin: Origin, identity: str) -> Table:
    """Open a table again, in this process or another; `CatalogError` if it has changed since."""
    held = _OPEN.get((origin, identity))
    if held is not None:
        return held
    from penstock.sources import open_source

    table = _from_cache(origin, identity) or open_source(origin).table
    if table.header.identity != identity:
        raise CatalogError(
            f"{redacted(origin.uri)} has changed since this dataset was opened (files were added, removed or "
            "rewritten), so its sample ids mean something else now; open it again"
        )
    return table


def _from_cache(origin: Origin, identity: str) -> Table | None:
    """Open a far folder by the listing of whoever opened it first; None where that is another table."""
    if not is_far(origin.uri):
        return None
    from penstock.sources import open_source

    try:
        table = open_source(replace(origin, options={**origin.options, "listing": "cached"})).table
    except CatalogError:
        return None
    return table.opened_from(origin) if table.header.identity == identity else None


def _rebuild(header: Header, columns: dict[str, Column], objects: Any) -> Table:
    return Table.of(header, columns, objects)


def object_array(keys: Sequence[str]) -> Any:
    """Return object keys as the Arrow string array that the engine reads."""
    import pyarrow as pa

    if len(keys) >= NO_OBJECT:
        raise CatalogError(
            f"{len(keys):,} objects are more than a catalog can name (2³² − 2); pack them into shards"
        )
    try:
        array = strings(keys)
    except UnicodeEncodeError:
        for key in keys:
            check_name(key, "the store")
        raise
    if pa.types.is_large_string(array.type):
        raise CatalogError(
            "the names of the objects take more than 2 GiB, more than one Arrow string array holds; "
            "pack them into shards with `penstock pack`"
        )
    return array
