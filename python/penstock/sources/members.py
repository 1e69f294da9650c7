"""From files to samples: files of one key become one row, each a stored field of it."""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.arrow import strings, to_numpy
from penstock.errors import CatalogError
from penstock.formats import Format, NameParts, kind_of, split_name
from penstock.table import ADDRESS_PARTS, NO_OBJECT, Field, Ramp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.table import Column

_MOST_FIELDS = 64
_KIND_ORDER = ("image", "mask", "array", "scalar", "bytes")


@lru_cache(maxsize=4096)
def _parts_of_suffix(suffix: str) -> NameParts | None:
    return split_name("x" + suffix)


def name_parts(name: str) -> NameParts | None:
    """Return what `split_name` says, faster for the many names that end alike."""
    start = name.rfind("/") + 1
    dot = name.find(".", start)
    if dot <= start:
        return None
    parts = _parts_of_suffix(name[dot:])
    return None if parts is None else parts._replace(key=name[:dot])


class Members:
    """The stored fields of samples as they are found; rows are counted by whoever fills this."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._names: dict[str, int] = {}
        self._row = array("Q")
        self._field = array("H")
        self._object = array("I")
        self._offset = array("Q")
        self._length = array("Q")
        self._format = array("B")

    def __len__(self) -> int:
        return len(self._row)

    def add(self, row: int, field: str, format: int, object: int, offset: int, length: int) -> None:
        """Say where one field of a row lies."""
        code = self._names.get(field)
        if code is None:
            code = self._name(field)
        self._row.append(row)
        self._field.append(code)
        self._object.append(object)
        self._offset.append(offset)
        self._length.append(length)
        self._format.append(format)

    def _name(self, field: str) -> int:
        if len(self._names) == _MOST_FIELDS:
            raise CatalogError(
                f"{self._where} has more than {_MOST_FIELDS} fields in a sample "
                f"({', '.join(list(self._names)[:4])}, …): "
                "what follows the first dot of a file name names a field, so names such as a.b.jpg should "
                "lose "
                "their inner dots"
            )
        if not field or "@" in field:
            raise CatalogError(f"{self._where}: {field!r} cannot name a field; rename those files")
        self._names[field] = code = len(self._names)
        return code

    def extend(self, other: Members, first_row: int, object: int) -> None:
        """Take over another's fields: its rows from ``first_row`` on, all in one object."""
        codes = np.array(
            [self._names[f] if f in self._names else self._name(f) for f in other._names] or [0], np.uint16
        )
        count = len(other)
        _append(self._row, np.frombuffer(other._row, np.uint64) + np.uint64(first_row) if count else ())
        _append(self._field, codes[np.frombuffer(other._field, np.uint16)] if count else ())
        _append(self._object, np.full(count, object, np.uint32))
        self._offset.extend(other._offset)
        self._length.extend(other._length)
        self._format.extend(other._format)

    def columns(self, rows: int) -> tuple[tuple[Field, ...], dict[str, Column]]:
        """Return the stored fields, images first, and their address columns."""
        row, field = _view(self._row, np.uint64), _view(self._field, np.uint16)
        parts = {
            "object": _view(self._object, np.uint32),
            "offset": _view(self._offset, np.uint64),
            "length": _view(self._length, np.uint64),
            "format": _view(self._format, np.uint8),
        }
        stored: list[Field] = []
        columns: dict[str, Column] = {}
        for name, code in self._names.items():
            chosen = np.flatnonzero(field == code)
            at = row[chosen].astype(np.int64)
            if len(at) > 1 and len(np.unique(at)) != len(at):
                raise CatalogError(
                    f"{self._where}: a sample has the field {name!r} twice; rename one of the files"
                )
            stored.append(Field(name, self._kind(name, np.unique(parts["format"][chosen])), "stored"))
            for part, values in parts.items():
                full = np.full(rows, NO_OBJECT if part == "object" else 0, ADDRESS_PARTS[part])
                full[at] = values[chosen]
                columns[f"@{name}.{part}"] = compact(full)
        stored.sort(key=lambda field: _KIND_ORDER.index(field.kind))
        return tuple(stored), columns

    def _kind(self, name: str, formats: np.ndarray) -> Any:
        kinds = {kind_of(name, Format(code)): Format(code).name.lower() for code in formats.tolist()}
        if len(kinds) > 1:
            shown = " and ".join(f"{kind} ({format})" for kind, format in sorted(kinds.items()))
            raise CatalogError(
                f"{self._where}: the field {name!r} is {shown}; a field is of one kind: rename those files"
            )
        return next(iter(kinds))


def compact(values: np.ndarray) -> Column:
    """Return a column as a formula where one says it."""
    if len(values) == 0:
        return values
    first = int(values[0])
    if bool((values == values[0]).all()):
        return Ramp(first, 0, values.dtype)
    if (
        first == 0
        and int(values[-1]) == len(values) - 1
        and bool((np.diff(values.astype(np.int64)) == 1).all())
    ):
        return Ramp(0, 1, values.dtype)
    return values


def encode_classes(names: list[str] | Any) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return names, a list or an Arrow string array, as indices into the sorted distinct ones, and these."""
    coded = (strings(names) if isinstance(names, list) else names).dictionary_encode()
    found = coded.dictionary.to_pylist()
    order = sorted(range(len(found)), key=found.__getitem__)
    rank = np.empty(len(found), np.int64)
    rank[order] = np.arange(len(found))
    return rank[to_numpy(coded.indices)], tuple(found[index] for index in order)


def number(text: bytes) -> int | None:
    """Return the integer that a .cls file holds, or None where it holds something else."""
    text = text.strip()
    if len(text) > 19 or not text.removeprefix(b"-").isdigit():
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None


def some(items: Iterable[str], most: int = 3) -> str:
    """Return the first few of many names for a sentence."""
    listed = list(items)
    return ", ".join(listed[:most]) + (f", … ({len(listed):,} in all)" if len(listed) > most else "")


def _view(values: array[int], dtype: Any) -> np.ndarray:
    return np.frombuffer(values, dtype) if len(values) else np.empty(0, dtype)


def _append(values: array[int], more: Any) -> None:
    if len(more):
        values.frombytes(np.ascontiguousarray(more).tobytes())
