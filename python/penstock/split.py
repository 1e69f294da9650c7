"""Cutting a dataset into parts: exact sizes, strata, disjoint groups; from ids and a seed alone."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np

from penstock.errors import CatalogError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Self

    from penstock.catalog import Catalog
    from penstock.dataset import Dataset


class Parts(tuple["Dataset", ...]):  # noqa: SLOT001 - a tuple has no room for slots
    """The parts of a split: a tuple that knows their names.

    >>> parts = data.split(train=0.9, val=0.1)  # doctest: +SKIP
    >>> train, val = parts  # doctest: +SKIP
    >>> parts.val is parts["val"]  # doctest: +SKIP
    """

    names: tuple[str, ...]

    def __new__(cls, parts: Mapping[str, Dataset]) -> Self:
        """Make it of the parts by name."""
        made = super().__new__(cls, parts.values())
        made.names = tuple(parts)
        return made

    def __getattr__(self, name: str) -> Dataset:
        if not name.startswith("__") and name in self.__dict__.get("names", ()):
            return tuple.__getitem__(self, self.names.index(name))
        raise AttributeError(
            f"there is no part {name!r}; there are {', '.join(self.__dict__.get('names', ()))}"
        )

    @overload
    def __getitem__(self, index: SupportsIndex | str, /) -> Dataset: ...
    @overload
    def __getitem__(self, index: slice, /) -> tuple[Dataset, ...]: ...
    def __getitem__(self, index: Any, /) -> Any:
        if isinstance(index, str):
            if index not in self.names:
                raise KeyError(f"there is no part {index!r}; there are {', '.join(self.names)}")
            index = self.names.index(index)
        return super().__getitem__(index)

    def items(self) -> Iterator[tuple[str, Dataset]]:
        """Yield the name and the samples of each part."""
        return iter(zip(self.names, self, strict=True))

    def __repr__(self) -> str:
        return f"Parts({', '.join(f'{name}={len(part):,}' for name, part in self.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Parts, (dict(self.items()),))


def split(
    data: Dataset,
    parts: Mapping[str, float],
    *,
    by: str | Sequence[str] | None = None,
    group: str | Sequence[str] | None = None,
    balanced: bool = False,
    seed: int = 0,
) -> Parts:
    """Cut into parts; see `penstock.Dataset.split`."""
    ratios = _ratios(parts)
    if balanced and by is None:
        raise ValueError("balanced=True needs by=, the column whose values are to be equally many")
    catalog = data.catalog
    ranks = mixed(catalog.ids(), seed)
    strata, stratum_names = _codes(catalog, by, gaps=True)
    groups, group_names = _codes(catalog, group, gaps=False)
    if group is None:
        if balanced:
            kept = _equal_counts(strata, len(stratum_names), ranks, np.arange(len(data)))
            assigned = np.full(len(data), -1)
            assigned[kept] = _exact(strata[kept], stratum_names, ranks[kept], ratios, seed, alike=True)
        else:
            assigned = _exact(strata, stratum_names, ranks, ratios, seed)
    else:
        assigned = _by_group(groups, group_names, strata, len(stratum_names), ratios, seed)
        if balanced:
            for part in range(len(parts)):
                rows = np.flatnonzero(assigned == part)
                kept = _equal_counts(strata, len(stratum_names), ranks, rows)
                assigned[rows[~np.isin(rows, kept)]] = -1
    found = {}
    for part, name in enumerate(parts):
        found[name] = data.take(np.flatnonzero(assigned == part))
    return Parts(found)


def smallest(ids: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Return the positions, rising, of the ``n`` ids that come first in the order of the seed."""
    order = np.lexsort((ids, mixed(ids, seed)))
    return np.sort(order[:n])


def mixed(ids: np.ndarray, seed: int) -> np.ndarray:
    """Return for each id a number that looks random: of id and seed alone (splitmix64)."""
    key = int.from_bytes(hashlib.blake2b(f"penstock split {seed}".encode(), digest_size=8).digest(), "little")
    with np.errstate(over="ignore"):
        state = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found: np.ndarray = state ^ (state >> np.uint64(31))
    return found


def largest_remainder(count: int, ratios: Sequence[Fraction]) -> list[int]:
    """Return whole sizes that add up to the whole of the ratios' share, each within one of its own.

    >>> largest_remainder(10, [Fraction(2, 3), Fraction(1, 3)])
    [7, 3]
    """
    quotas = [count * ratio for ratio in ratios]
    sizes = [int(quota) for quota in quotas]
    left = round(sum(quotas)) - sum(sizes)
    order = sorted(range(len(ratios)), key=lambda part: (sizes[part] - quotas[part], part))
    for part in order[:left]:
        sizes[part] += 1
    return sizes


def _ratios(parts: Mapping[str, float]) -> list[Fraction]:
    """Return the ratios as they were written, and as the last one what is left over."""
    if not parts:
        raise ValueError("name the parts and their ratios: data.split(train=0.9, val=0.1)")
    ratios: list[Fraction] = []
    for name, ratio in parts.items():
        try:
            exact = Fraction(str(ratio))
        except (ValueError, ZeroDivisionError):
            raise ValueError(
                f"the ratio of {name} is {ratio!r}; it must be a number above 0 and at most 1"
            ) from None
        if not 0 < exact <= 1:
            raise ValueError(f"the ratio of {name} is {ratio}; it must be above 0 and at most 1")
        ratios.append(exact)
    total = sum(ratios, Fraction(0))
    rest = 1 - total
    if rest < Fraction(-1, 10**9):
        raise ValueError(f"the ratios of {', '.join(parts)} add up to {float(total):g}, which is more than 1")
    if abs(rest) <= Fraction(1, 10**9):  # such as 1/3 three times, as floats
        return [*(ratio / total for ratio in ratios), Fraction(0)]
    return [*ratios, rest]


def _codes(
    catalog: Catalog, names: str | Sequence[str] | None, *, gaps: bool
) -> tuple[np.ndarray, list[str]]:
    """Return for each row a number for its values in the columns, and what each number stands for.

    The numbers are in the order of what they stand for, so that nothing depends on the order of rows.
    """
    if names is None:
        return np.zeros(len(catalog), np.int64), [""]
    codes = np.zeros(len(catalog), np.int64)
    meanings: list[str] = [""]
    for name in [names] if isinstance(names, str) else names:
        found, inner = _column_codes(catalog, name, gaps=gaps)
        codes = codes * len(inner) + found
        used, codes = np.unique(codes, return_inverse=True)
        meanings = [f"{meanings[at // len(inner)]}\0{inner[at % len(inner)]}" for at in used.tolist()]
    order = sorted(range(len(meanings)), key=meanings.__getitem__)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[codes], [meanings[at] for at in order]


def _column_codes(catalog: Catalog, name: str, *, gaps: bool) -> tuple[np.ndarray, list[str]]:
    values = catalog.column(name)
    if values.dtype == object:
        table: dict[Any, int] = {}
        codes = np.empty(len(values), np.int64)
        for row, value in enumerate(values.tolist()):
            try:
                codes[row] = table.setdefault(value, len(table))
            except TypeError:
                raise CatalogError(
                    f"the column {name!r} holds lists or records, which cannot say where to cut"
                ) from None
        distinct: list[Any] = list(table)
    else:
        found, codes = np.unique(values, return_inverse=True)
        distinct = found.tolist()
    empty = [at for at, value in enumerate(distinct) if value is None or value != value]
    if empty and not gaps:
        count = int(np.isin(codes, empty).sum())
        raise CatalogError(
            f"the column {name!r} is empty in {count:,} rows, whose group is not known; fill it, or leave "
            "them out "
            f"with where({name + ' is not null'!r})"
        )
    return codes, [f"{type(value).__name__} {value}" for value in distinct]


def _shuffle_keys(names: Sequence[str], seed: int) -> np.ndarray:
    """Return a number that looks random for each name: of name and seed alone."""
    salt = f"{seed}".encode()
    keys = (
        hashlib.blake2b(name.encode(), digest_size=8, salt=b"penstock", key=salt[:64]).digest()
        for name in names
    )
    return np.frombuffer(b"".join(keys), np.uint64)


def _exact(
    strata: np.ndarray,
    names: Sequence[str],
    ranks: np.ndarray,
    ratios: Sequence[Fraction],
    seed: int,
    *,
    alike: bool = False,
) -> np.ndarray:
    """Return the part of each row, -1 for what is left over.

    ``alike``: every stratum has the same sizes, as equal counts ask for; else the sizes over all are exact.
    """
    counts = np.bincount(strata, minlength=len(names))
    if alike:
        sizes = np.array([largest_remainder(int(count), ratios) for count in counts]).reshape(
            len(names), len(ratios)
        )
    else:
        sizes = _rounded(counts, ratios, _shuffle_keys(names, seed))
    order = np.lexsort((ranks, strata))
    starts = np.concatenate([[0], np.cumsum(counts)])
    assigned = np.empty(len(strata), np.int64)
    for stratum in range(len(names)):
        rows = order[starts[stratum] : starts[stratum + 1]]
        assigned[rows] = np.repeat(np.arange(len(ratios)), sizes[stratum])
    assigned[assigned == len(ratios) - 1] = -1
    return assigned


def _rounded(counts: np.ndarray, ratios: Sequence[Fraction], keys: np.ndarray) -> np.ndarray:
    """Return sizes by stratum and part: rows add up to the counts, columns to the largest remainder.

    Each is its quota rounded down; units that are left go where the fraction is largest, ties by ``keys``.
    """
    wanted = largest_remainder(int(counts.sum()), ratios)
    denominator = 1
    for ratio in ratios:
        denominator = denominator * ratio.denominator // np.gcd(denominator, ratio.denominator)
    weights = [int(ratio * int(denominator)) for ratio in ratios]
    sizes = [[int(count) * weight // int(denominator) for weight in weights] for count in counts.tolist()]
    left = [int(count) - sum(row) for count, row in zip(counts.tolist(), sizes, strict=True)]
    need = [wanted[part] - sum(row[part] for row in sizes) for part in range(len(ratios))]
    pairs = sorted(
        (-(int(count) * weight % int(denominator)), int(key), stratum, part)
        for stratum, (count, key) in enumerate(zip(counts.tolist(), keys.tolist(), strict=True))
        for part, weight in enumerate(weights)
    )
    for _, _, stratum, part in pairs:
        if left[stratum] and need[part] > 0:
            sizes[stratum][part] += 1
            left[stratum] -= 1
            need[part] -= 1
    for stratum in np.argsort(keys, kind="stable").tolist():  # what fractions alone could not settle
        while left[stratum]:
            part = max(range(len(ratios)), key=lambda part: need[part])
            sizes[stratum][part] += 1
            left[stratum] -= 1
            need[part] -= 1
    return np.array(sizes, np.int64).reshape(len(counts), len(ratios))


def _equal_counts(strata: np.ndarray, count: int, ranks: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return those of the rows that leave as many of each stratum, the first in the order of ``ranks``."""
    counts = np.bincount(strata[rows], minlength=count)
    least = int(counts.min()) if len(counts) else 0
    if least == 0 and len(rows):
        raise CatalogError(
            "balanced=True cannot be held: a part would have no sample of some value of by=, because "
            "groups keep "
            "together; give it a larger ratio, or leave balanced out"
        )
    order = rows[np.lexsort((ranks[rows], strata[rows]))]
    starts = np.concatenate([[0], np.cumsum(counts)])
    within = np.arange(len(order)) - np.repeat(starts[:-1], counts)
    return np.sort(order[within < least])


def _by_group(
    groups: np.ndarray,
    names: Sequence[str],
    strata: np.ndarray,
    stratum_count: int,
    ratios: Sequence[Fraction],
    seed: int,
) -> np.ndarray:
    """Return the part of each row so that no group lies in two.

    Groups come in an order that the seed shuffles, and each goes to the part that lacks its strata most; where
    parts lack them alike, to the one that lacks most of all. A part is then never larger than its share by more
    than one group.
    """
    totals = np.bincount(strata, minlength=stratum_count)
    missing = np.array([largest_remainder(int(count), ratios) for count in totals], np.float64)
    scale = 1.0 / np.maximum(totals, 1)
    order = np.lexsort((strata, groups))
    starts = np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=len(names)))])
    part_of = np.empty(len(names), np.int64)
    for group in np.argsort(_shuffle_keys(names, seed), kind="stable").tolist():
        mine, counts = np.unique(strata[order[starts[group] : starts[group + 1]]], return_counts=True)
        need = ((counts * scale[mine])[:, None] * missing[mine]).sum(axis=0)
        alike = np.flatnonzero(need >= need.max() - 1e-9)
        part = int(alike[np.argmax(missing[:, alike].sum(axis=0))])
        missing[mine, part] -= counts
        part_of[group] = part
    assigned: np.ndarray = part_of[groups]
    assigned[assigned == len(ratios) - 1] = -1
    return assigned
