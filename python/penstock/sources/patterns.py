"""Patterns that name many shards: ``train-{0000..0099}.tar``, ``{train,val}/*.tar``."""

from __future__ import annotations

import fnmatch
import re
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.errors import CatalogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.sources.listing import Listing

_MOST = 1_000_000
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
_GLOB = re.compile(r"[*?\[]")


def is_pattern(text: str) -> bool:
    """Whether a path holds what this module expands."""
    return re.search(r"[{*?\[]", text) is not None


def braces(pattern: str) -> Iterator[str]:
    """Yield what ``{0..9}``, ``{00..10}`` and ``{a,b}`` stand for, nested ones too.

    >>> list(braces("s-{08..10}.{tar,json}"))[:3]
    ['s-08.tar', 's-08.json', 's-09.tar']
    """
    start = pattern.find("{")
    if start < 0:
        yield pattern
        return
    end, commas = _matching(pattern, start)
    before, inside, after = pattern[:start], pattern[start + 1 : end], pattern[end + 1 :]
    span = _RANGE.fullmatch(inside)
    if span:
        first, last = span.groups()
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        step = 1 if int(first) <= int(last) else -1
        choices: Iterator[str] = (str(n).zfill(width) for n in range(int(first), int(last) + step, step))
    elif commas:
        cuts = [start, *commas, end]
        choices = iter([pattern[a + 1 : b] for a, b in pairwise(cuts)])
    else:
        raise CatalogError(f"the braces in {pattern} hold neither a range as 00..99 nor names cut by commas")
    for choice in choices:
        for head in braces(choice):
            for tail in braces(after):
                yield before + head + tail


def _matching(pattern: str, start: int) -> tuple[int, list[int]]:
    depth = 0
    commas: list[int] = []
    for at in range(start, len(pattern)):
        depth += {"{": 1, "}": -1}.get(pattern[at], 0)
        if depth == 0:
            return at, commas
        if depth == 1 and pattern[at] == ",":
            commas.append(at)
    raise CatalogError(f"a brace is opened and not closed in {pattern}")


def expand(pattern: str, listing_at: Callable[[str], Listing]) -> tuple[str, list[str]]:
    """Return the root folder of all that a path or URI with patterns names, and the sorted keys below it.

    ``listing_at(root)`` gives the listing of a root, which is asked only for ``*``, ``?`` and ``[]``.
    """
    if pattern.count("{") > 32:
        raise CatalogError(f"{pattern} has more braces than make sense")
    paths: list[str] = []
    for path in braces(pattern):
        paths.append(path)
        if len(paths) > _MOST:
            raise CatalogError(f"{pattern} names more than {_MOST:,} shards; narrow it")
    fixed = [path[: found.start()] if (found := _GLOB.search(path)) else path for path in paths]
    first, last = min(fixed), max(fixed)  # what these share they all share
    root = first[
        : next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    ]
    root = root[: root.rfind("/") + 1]
    keys: set[str] = set()
    names: list[str] | None = None
    for path in paths:
        key = path[len(root) :]
        if not _GLOB.search(key):
            keys.add(key)
            continue
        if names is None:
            names = [entry.key for entry in listing_at(root).list(sizes=False)]
        depth = key.count("/")
        keys.update(name for name in names if name.count("/") == depth and fnmatch.fnmatchcase(name, key))
    if not keys:
        raise CatalogError(f"nothing matches {pattern}; check the path")
    return root, sorted(keys)
