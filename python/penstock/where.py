"""Conditions on a catalog's columns, written as text: a small language that is parsed here and never executed.

::

    condition  := conjunction ("or" conjunction)*
    conjunction:= negation ("and" negation)*
    negation   := "not" negation | comparison
    comparison := value (("==" | "!=" | "<" | "<=" | ">" | ">=") value)*
                | value ["not"] "in" "(" literal ("," literal)* ")"
                | column "is" ["not"] "null"
                | "(" condition ")"
    value      := column | literal
    literal    := 3 | -2.5 | 1e-3 | 'text' | "text" | true | false

A column is a bare name or, when its name is odd, in backquotes: ```` `my column` ````. ``id`` and ``key`` are columns too, and
a stored field may be asked ``is not null``. A class may be named: ``label == 'cat'``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

import numpy as np

from penstock.arrow import strings, to_arrow, to_numpy
from penstock.errors import CatalogError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.catalog import Catalog

_LONGEST = 1 << 16
_DEEPEST = 100
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | `(?P<quoted>[^`]+)`
    | (?P<name>[^\W\d]\w*)
    | (?P<sign>==|!=|<=|>=|=|<|>|\(|\)|\[|\]|,|-)
    )""",
    re.VERBOSE,
)
_COMPARISONS = {
    "==": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}


@dataclass(frozen=True, slots=True)
class Column:
    """The values of a column."""

    name: str


@dataclass(frozen=True, slots=True)
class Value:
    """A literal."""

    value: Any


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison of two values."""

    sign: str
    left: Column | Value
    right: Column | Value


@dataclass(frozen=True, slots=True)
class OneOf:
    """Whether a column's value is one of some."""

    column: Column
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a column has no value."""

    column: Column


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite."""

    inner: Condition


@dataclass(frozen=True, slots=True)
class Join:
    """All or any of some conditions."""

    how: Literal["and", "or"]
    parts: tuple[Condition, ...]


Condition: TypeAlias = "Compare | OneOf | IsNull | Not | Join | Column"


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


def parse(text: str) -> Condition:
    """Parse a condition; `CatalogError` shows where it stops to make sense."""
    if len(text) > _LONGEST:
        raise CatalogError(
            f"a condition of {len(text):,} characters is longer than makes sense; use lists: label=[…]"
        )
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._cut(text))
        self._at = 0
        self._depth = 0

    def _cut(self, text: str) -> Any:
        at = 0
        end = len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                start = at + len(text[at:]) - len(text[at:].lstrip())
                self._fail(start, f"{text[start]!r} means nothing here")
            kind = str(found.lastgroup)
            yield kind, found[kind], found.start(kind)
            at = found.end()
        yield "end", "the end", end

    def _fail(self, at: int, what: str) -> NoReturn:
        raise CatalogError(f"{what}, at character {at + 1} of the condition {_around(self._text, at)}")

    def _peek(self) -> tuple[str, str, int]:
        token: tuple[str, str, int] = self._tokens[self._at]
        return token

    def _is(self, *words: str) -> bool:
        kind, text, _ = self._peek()
        return kind in ("sign", "name") and text in words

    def _take(self, *words: str) -> bool:
        if self._is(*words):
            self._at += 1
            return True
        return False

    def _need(self, word: str) -> None:
        if not self._take(word):
            _, text, at = self._peek()
            self._fail(at, f"{word!r} is missing before {text!r}")

    def whole(self) -> Condition:
        found = self._any()
        kind, text, at = self._peek()
        if kind != "end":
            hint = " (== compares)" if text == "=" else ""
            self._fail(at, f"{text!r} is one too much{hint}")
        return found

    def _any(self) -> Condition:
        parts = [self._all()]
        while self._take("or"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else Join("or", tuple(parts))

    def _all(self) -> Condition:
        parts = [self._negation()]
        while self._take("and"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else Join("and", tuple(parts))

    def _negation(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._fail(self._peek()[2], "it is nested too deep")
        found = Not(self._negation()) if self._take("not") else self._comparison()
        self._depth -= 1
        return found

    def _comparison(self) -> Condition:
        if self._take("("):
            inner = self._any()
            self._need(")")
            return inner
        _, _, start = self._peek()
        left = self._value()
        if self._is(*_COMPARISONS):
            parts: list[Condition] = []
            while self._is(*_COMPARISONS):
                sign = self._peek()[1]
                self._at += 1
                right = self._value()
                parts.append(Compare(sign, left, right))
                left = right
            return parts[0] if len(parts) == 1 else Join("and", tuple(parts))
        if not isinstance(left, Column):
            self._fail(start, "a value alone is no condition")
        if self._take("is"):
            opposite = self._take("not")
            if not self._take("null", "None"):
                self._fail(self._peek()[2], "'is' asks for null: column is null, column is not null")
            return Not(IsNull(left)) if opposite else IsNull(left)
        opposite = self._take("not")
        if self._take("in"):
            one_of = OneOf(left, self._values())
            return Not(one_of) if opposite else one_of
        if opposite:
            self._fail(self._peek()[2], "'in' is missing after 'not'")
        return left

    def _values(self) -> tuple[Any, ...]:
        close = ")" if self._take("(") else "]"
        if close == "]":
            self._need("[")
        values = []
        while not self._is(close):
            _, _, at = self._peek()
            value = self._value()
            if not isinstance(value, Value):
                self._fail(at, "'in' takes values, not columns")
            values.append(value.value)
            if not self._take(","):
                break
        self._need(close)
        return tuple(values)

    def _value(self) -> Column | Value:
        kind, text, at = self._peek()
        self._at += kind != "end"
        if kind == "sign" and text == "-" and self._peek()[0] == "number":
            text = "-" + self._peek()[1]
            kind = "number"
            self._at += 1
        if kind == "number":
            number = float(text) if re.search(r"[.eE]", text) else int(text)
            if isinstance(number, int) and not -(2**63) <= number < 2**64:
                self._fail(at, f"{text} is beyond 64 bits")
            return Value(number)
        if kind == "text":
            return Value(re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL))
        if kind == "name" and text.lower() in ("true", "false"):
            return Value(text.lower() == "true")
        if kind == "quoted" or (kind == "name" and text not in ("and", "or", "not", "in", "is", "null")):
            return Column(text)
        self._fail(at, f"a column or a value is missing where {text!r} stands")


def _around(text: str, at: int) -> str:
    start, end = max(0, at - 40), at + 40
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


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
                import pyarrow as pa

                found = self._column(name)
                if not pa.types.is_boolean(found.type):
                    raise CatalogError(
                        f"the column {name!r} holds {found.type}, no truth; compare it with something"
                    )
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
                    f"{name!r} is stored with each sample and no column; only '{name} is not null' can be asked"
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
        refused = CatalogError(f"the column {column.name!r} holds {kind}, which {value!r} cannot be compared with")
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

        compare = getattr(pc, _COMPARISONS[sign])
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
