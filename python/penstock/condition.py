"""Conditions on a catalog's columns, written as text in a small language that is parsed, never executed.

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

A column is a bare name or, when its name is odd, in backquotes. ``id`` and ``key`` are columns too, and a
stored field may be asked ``is not null``. A class may be named: ``label == 'cat'``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeAlias

from penstock.errors import CatalogError

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
_WORDS = frozenset({"and", "or", "not", "in", "is", "null"})
COMPARISONS = {
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
        if self._is(*COMPARISONS):
            parts: list[Condition] = []
            while self._is(*COMPARISONS):
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
        if kind != "quoted" and (kind != "name" or text in _WORDS):
            self._fail(at, f"a column or a value is missing where {text!r} stands")
        return Column(text)


def _around(text: str, at: int) -> str:
    start, end = max(0, at - 40), at + 40
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
