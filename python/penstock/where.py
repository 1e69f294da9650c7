"""Which rows of a catalog fulfil a condition: see `penstock.condition` for how one is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.arrow import strings, to_arrow, to_numpy
from penstock.condition import COMPARISONS, Column, Compare, IsNull, Join, Not, OneOf, Value, parse
from penstock.errors import CatalogError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.catalog import Catalog
    from penstock.condition import Condition


def matching(catalog: Catalog, expression: Any, equals: Mapping[str, Any]) -> np.ndarray:
    """Return the positions of the rows that fulfil the expression and every equality."""
    conditions: list[Condition] = []
    if isinstance(expression, str):
        conditions.append(parse(expression))
    for name, wanted in equals.items():
        if isinstance(wanted, (list, tuple, set, frozenset, np.ndarray)):
            conditions.append(OneOf(Column(name), tuple(_plain(value) for value in wanted)))
        elif wanted is None:
            conditions.append(IsNull(Column(name)))
        else:
            conditions.append(Compare("==", Column(name), Value(_plain(wanted))))
    if not conditions and (expression is None or isinstance(expression, str)):
        raise CatalogError('where() needs a condition, such as "label == 3" or label=3')
    chosen = np.ones(len(catalog), bool)
    for condition in conditions:
        chosen &= _true(_Evaluator(catalog).of(condition))
    if expression is not None and not isinstance(expression, str):
        chosen &= _arrow_expression(catalog, expression)
    return np.flatnonzero(chosen)


class _Evaluator:
    """Evaluates to Arrow booleans in which null means that the answer is not known."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def of(self, condition: Condition) -> Any:
        import pyarrow.compute as pc  # importing penstock stays light

        match condition:
            case Join(how, parts):
                combine = pc.and_kleene if how == "and" else pc.or_kleene
                found = self.of(parts[0])
                for part in parts[1:]:
                    found = combine(found, self.of(part))
                return found
            case Not(inner):
                return pc.invert(self.of(inner))
            case IsNull(column):
                return self._is_null(column.name)
            case OneOf(column, values):
                return self._one_of(column, values)
            case Compare(sign, left, right):
                return self._compare(sign, left, right)
            case Column(name):
                return self._truth(name)

    def _truth(self, name: str) -> Any:
        import pyarrow as pa

        found = self._column(name)
        if not pa.types.is_boolean(found.type):
            raise CatalogError(f"the column {name!r} holds {found.type}, no truth; compare it with something")
        return found

    def _column(self, name: str) -> Any:
        catalog = self._catalog
        if name == "id":
            return to_arrow(catalog.ids())
        if name == "key" and "key" not in catalog.columns:
            return strings(catalog.keys())
        if name not in catalog.columns:
            stored = [field.name for field in catalog.stored]
            if name in stored:
                raise CatalogError(
                    f"{name!r} is stored with each sample and no column; only '{name} is not null' can be "
                    "asked"
                )
            raise CatalogError(
                f"there is no column {name!r}; there are id, key, {', '.join(catalog.columns)}"
            )
        return catalog.arrow_column(name)

    def _is_null(self, name: str) -> Any:
        import pyarrow.compute as pc

        if name not in self._catalog.columns and name in {field.name for field in self._catalog.stored}:
            return to_arrow(~self._catalog.has_field(name))
        return pc.is_null(self._column(name), nan_is_null=True)

    def _scalar(self, value: Any, column: Column, values: Any) -> Any:
        """Return a literal as a scalar that can be compared with a column."""
        import pyarrow as pa

        header = self._catalog.header
        if isinstance(value, str) and column.name == header.class_column:
            if value not in header.classes:
                raise CatalogError(f"there is no class {value!r}; there are {', '.join(header.classes[:20])}")
            value = header.classes.index(value)
        kind = values.type
        fits = (
            (isinstance(value, bool) and pa.types.is_boolean(kind))
            or (isinstance(value, str) and not _is_numeric(kind) and not pa.types.is_nested(kind))
            or (isinstance(value, (int, float)) and not isinstance(value, bool) and _is_numeric(kind))
        )
        refused = CatalogError(
            f"the column {column.name!r} holds {kind}, which {value!r} cannot be compared with"
        )
        if not fits:
            raise refused
        try:
            if isinstance(value, str) and not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                return pa.scalar(value).cast(kind)
            return pa.scalar(value)
        except pa.ArrowException as error:
            raise refused from error

    def _compare(self, sign: str, left: Column | Value, right: Column | Value) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        compare = getattr(pc, COMPARISONS[sign])
        if isinstance(left, Value) and isinstance(right, Value):
            raise CatalogError(
                f"{left.value!r} {sign} {right.value!r} compares two values; one of them must be a column"
            )
        columns = [self._column(side.name) if isinstance(side, Column) else None for side in (left, right)]
        if isinstance(right, Value) and isinstance(left, Column):
            columns[1] = self._scalar(right.value, left, columns[0])
        elif isinstance(left, Value) and isinstance(right, Column):
            columns[0] = self._scalar(left.value, right, columns[1])
        try:
            return compare(*columns)
        except pa.ArrowException as error:
            raise CatalogError(f"the two sides of {sign} cannot be compared: {error}") from error

    def _one_of(self, column: Column, values: tuple[Any, ...]) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        found = self._column(column.name)
        answer = to_arrow(np.zeros(len(found), bool))
        if not values:
            return answer
        scalars = [self._scalar(value, column, found) for value in values]
        try:
            wanted = pa.array([scalar.as_py() for scalar in scalars])
            common = pa.float64() if pa.types.is_floating(wanted.type) and _is_numeric(found.type) else None
            answer = pc.is_in(
                found.cast(common) if common else found,
                value_set=wanted if common else wanted.cast(found.type),
            )
        except pa.ArrowException:  # such as a value that the column's type cannot hold
            for scalar in scalars:
                answer = pc.or_kleene(answer, pc.equal(found, scalar))
        return pc.if_else(pc.is_valid(found), answer, pa.scalar(None, pa.bool_()))


def _is_numeric(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _true(answers: Any) -> np.ndarray:
    import pyarrow.compute as pc

    return to_numpy(pc.fill_null(answers, False))  # noqa: FBT003


def _arrow_expression(catalog: Catalog, expression: Any) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(expression, pc.Expression):
        raise CatalogError(
            f"where() takes text or a pyarrow expression, not {type(expression).__name__}; "
            "for rows by position use take()"
        )
    names = ["id", *(["key"] if "key" in str(expression) else []), *catalog.columns]
    table = catalog.to_arrow(names).append_column("@row", to_arrow(np.arange(len(catalog))))
    try:
        kept = to_numpy(table.filter(expression).column("@row").combine_chunks())
    except (pa.ArrowException, TypeError) as error:
        raise CatalogError(
            f"the expression {expression} does not fit the columns {', '.join(names)}: {error}"
        ) from error
    chosen = np.zeros(len(catalog), bool)
    chosen[kept] = True
    return chosen
