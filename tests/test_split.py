"""Splits are exact, disjoint, stratified, and depend on ids, groups and the seed alone."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.arrow import strings
from penstock.catalog import Catalog, Header, Table
from penstock.dataset import Dataset, StoreSpec
from penstock.errors import CatalogError
from penstock.split import Parts, largest_remainder


def dataset(**columns: object) -> Dataset:
    made = {name: strings(list(c)) if isinstance(c[0], str) else np.asarray(c) for name, c in columns.items()}
    rows = len(next(iter(columns.values())))
    header = Header(
        rows,
        "",
        (),
        tuple(name for name in made if name != "id"),
        tuple(name for name in made if name != "id"),
    )
    return Dataset(Catalog(Table.of(header, made, [])), StoreSpec("file:///nowhere/"))


def numbered(rows: int) -> Dataset:
    return dataset(x=np.zeros(max(rows, 1), np.int64))[:rows]


def ids(data: Dataset) -> list[int]:
    return data.catalog.ids().tolist()


ratios = st.lists(st.integers(1, 60), min_size=1, max_size=4).filter(lambda parts: sum(parts) <= 100)


def named(percents: list[int]) -> dict[str, float]:
    return {f"p{n}": percent / 100 for n, percent in enumerate(percents)}


@given(st.integers(0, 400), ratios, st.integers(0, 5))
def test_parts_are_disjoint_and_exact_by_largest_remainder(rows: int, percents: list[int], seed: int) -> None:
    data = numbered(rows)
    parts = data.split(**named(percents), seed=seed)

    sizes = largest_remainder(rows, [*(Fraction(p, 100) for p in percents), 1 - Fraction(sum(percents), 100)])
    assert [len(part) for part in parts] == sizes[:-1]
    everything = [id for part in parts for id in ids(part)]
    assert len(set(everything)) == len(everything)
    assert set(everything) <= set(range(rows))
    if sum(percents) == 100:
        assert sorted(everything) == list(range(rows))
    for part in parts:
        assert ids(part) == sorted(ids(part))


@given(st.integers(0, 10_000), ratios)
def test_largest_remainders_add_up_and_stay_within_one(count: int, percents: list[int]) -> None:
    shares = [*(Fraction(p, 100) for p in percents), 1 - Fraction(sum(percents), 100)]
    sizes = largest_remainder(count, shares)
    assert sum(sizes) == count
    assert all(abs(size - count * share) < 1 for size, share in zip(sizes, shares, strict=True))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=200), ratios, st.integers(0, 3))
@settings(deadline=None)
def test_every_stratum_keeps_the_ratios(labels: list[int], percents: list[int], seed: int) -> None:
    data = dataset(label=labels)
    parts = data.split(**named(percents), by="label", seed=seed)

    exact = largest_remainder(
        len(labels), [*(Fraction(p, 100) for p in percents), 1 - Fraction(sum(percents), 100)]
    )
    assert [len(part) for part in parts] == exact[:-1]
    bound = 1 if len(percents) + (sum(percents) < 100) == 2 else 2
    for label in set(labels):
        for part, percent in zip(parts, percents, strict=True):
            found = int((part.catalog.column("label") == label).sum())
            assert abs(found - labels.count(label) * Fraction(percent, 100)) < bound


def test_small_strata_do_not_all_round_to_one_side() -> None:
    data = dataset(label=np.repeat(np.arange(200), 5))
    train, val = data.split(train=0.9, val=0.1, by="label", seed=1)
    assert (len(train), len(val)) == (900, 100)
    assert np.bincount(np.bincount(val.catalog.column("label"), minlength=200)).tolist() == [100, 100]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), ratios, st.integers(0, 3))
@settings(deadline=None)
def test_groups_lie_in_one_part_and_sizes_within_one_group(
    groups: list[int], percents: list[int], seed: int
) -> None:
    data = dataset(patient=[f"p{g}" for g in groups])
    parts = data.split(**named(percents), group="patient", seed=seed)

    found = [set(part.catalog.column("patient")) for part in parts]
    for index, one in enumerate(found):
        assert all(not one & other for other in found[index + 1 :])
    largest = max(groups.count(group) for group in groups)
    for part, percent in zip(parts, percents, strict=True):
        assert len(part) - len(groups) * Fraction(percent, 100) < largest + 1
        whole = {f"p{g}" for g in groups}
        for name in set(part.catalog.column("patient")) & whole:
            assert int((part.catalog.column("patient") == name).sum()) == groups.count(int(name[1:]))


def test_groups_and_strata_together() -> None:
    rng = np.random.default_rng(0)
    patients = rng.integers(0, 300, 6000)
    labels = patients % 3 + 3 * (rng.random(6000) < 0.1)
    data = dataset(patient=patients, label=labels)
    train, val = data.split(train=0.8, val=0.2, by="label", group="patient", seed=3)

    assert not set(train.catalog.column("patient")) & set(val.catalog.column("patient"))
    assert len(train) + len(val) == 6000
    for label in range(6):
        count = int((labels == label).sum())
        assert abs(int((val.catalog.column("label") == label).sum()) / count - 0.2) < 0.06


@given(st.lists(st.integers(0, 3), min_size=8, max_size=120), ratios, st.integers(0, 3))
@settings(deadline=None)
def test_balanced_parts_hold_as_many_of_each_class(labels: list[int], percents: list[int], seed: int) -> None:
    data = dataset(label=labels)
    parts = data.split(**named(percents), by="label", balanced=True, seed=seed)
    least = min(labels.count(label) for label in set(labels))
    shares = largest_remainder(
        least, [*(Fraction(p, 100) for p in percents), 1 - Fraction(sum(percents), 100)]
    )
    for part, share in zip(parts, shares, strict=False):
        found = part.catalog.column("label").tolist()
        assert [found.count(label) for label in sorted(set(labels))] == [share] * len(set(labels))
    everything = [id for part in parts for id in ids(part)]
    assert len(set(everything)) == len(everything)


def test_balanced_and_disjoint_in_group() -> None:
    rng = np.random.default_rng(1)
    patients = rng.integers(0, 100, 2000)
    data = dataset(patient=patients, label=(rng.random(2000) < 0.2).astype(np.int64))
    train, val = data.split(train=0.7, val=0.3, by="label", group="patient", balanced=True, seed=0)
    assert not set(train.catalog.column("patient")) & set(val.catalog.column("patient"))
    for part in (train, val):
        counts = np.bincount(part.catalog.column("label"))
        assert counts[0] == counts[1] > 0


def test_balance_that_groups_forbid_is_an_error() -> None:
    data = dataset(patient=["a"] * 4 + ["b"] * 4, label=[0] * 4 + [1] * 4)
    with pytest.raises(CatalogError, match="balanced=True cannot be held"):
        data.split(train=0.5, val=0.5, by="label", group="patient", balanced=True)


@given(st.permutations(range(60)), st.booleans(), st.booleans(), st.booleans())
@settings(deadline=None)
def test_the_order_of_rows_changes_nothing(order: list[int], by: bool, group: bool, balanced: bool) -> None:
    assume(by or not balanced)
    columns = {
        "id": np.arange(60, dtype=np.uint64),
        "label": np.arange(60) % 4,
        "patient": [f"p{n % 17}" for n in range(60)],
    }
    mixed = {name: [values[at] for at in order] for name, values in columns.items()}
    mixed["id"] = np.array(mixed["id"], np.uint64)
    how = {
        "by": "label" if by else None,
        "group": "patient" if group else None,
        "balanced": balanced,
        "seed": 5,
    }

    first = dataset(**columns).split(train=0.6, val=0.4, **how)
    second = dataset(**mixed).split(train=0.6, val=0.4, **how)

    for one, other in zip(first, second, strict=True):
        assert sorted(ids(one)) == sorted(ids(other))


def test_seeds_differ_and_repeat() -> None:
    data = numbered(1000)
    for how in ({}, {"by": "x"}, {"group": "g"}):
        data = dataset(x=np.arange(1000) % 2, g=np.arange(1000) % 200)
        a, b, c = (data.split(train=0.5, val=0.5, seed=seed, **how).train for seed in (1, 1, 2))
        assert ids(a) == ids(b) != ids(c)


def test_these_ids_come_from_this_seed() -> None:
    """What a seed means never changes: a split must be the same in a year."""
    data = dataset(label=np.arange(20) % 2, patient=[f"p{n // 4}" for n in range(20)])
    assert ids(data.split(train=0.8, val=0.2, seed=7).val) == WANTED["plain"]
    assert ids(data.split(train=0.8, val=0.2, by="label", seed=7).val) == WANTED["by"]
    assert ids(data.split(train=0.8, val=0.2, group="patient", seed=7).val) == WANTED["group"]
    assert ids(data.sample(4, seed=7)) == WANTED["sample"]


WANTED = {"plain": [3, 7, 8, 11], "by": [3, 7, 8, 10], "group": [12, 13, 14, 15], "sample": [0, 4, 12, 19]}


def test_gaps_in_groups_are_an_error_and_in_strata_a_stratum() -> None:
    import pyarrow as pa

    table = {"patient": pa.array(["a", None, "b", None], pa.string())}
    header = Header(4, "", (), (), ("patient",))
    data = Dataset(Catalog(Table.of(header, table, [])), StoreSpec("file:///nowhere/"))
    with pytest.raises(CatalogError, match=r"'patient' is empty in 2 rows.*where\('patient is not null'\)"):
        data.split(a=0.5, b=0.5, group="patient")
    assert [len(part) for part in data.split(a=0.5, b=0.5, by="patient")] == [2, 2]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "name the parts"),
        ({"a": 0.5, "b": 0.6}, "add up to 1.1, which is more than 1"),
        ({"a": 0.0}, "the ratio of a is 0.0; it must be above 0"),
        ({"a": -0.1}, "must be above 0"),
        ({"a": float("nan")}, "the ratio of a is nan"),
        ({"a": "half"}, "the ratio of a is 'half'"),
    ],
)
def test_ratios_that_make_no_sense_are_errors(parts: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        numbered(10).split(**parts)


def test_balance_needs_a_column() -> None:
    with pytest.raises(ValueError, match="balanced=True needs by="):
        numbered(10).split(a=0.5, balanced=True)
    with pytest.raises(CatalogError, match="no column 'label'; there are x"):
        numbered(10).split(a=0.5, by="label")


def test_thirds_as_floats_are_thirds() -> None:
    assert [len(part) for part in numbered(9).split(a=1 / 3, b=1 / 3, c=1 / 3)] == [3, 3, 3]


def test_several_columns_make_one_stratum() -> None:
    data = dataset(label=np.arange(80) % 2, site=[f"s{n // 2 % 2}" for n in range(80)])
    val = data.split(train=0.9, val=0.1, by=("label", "site")).val
    pairs = list(zip(val.catalog.column("label").tolist(), val.catalog.column("site"), strict=True))
    assert sorted(pairs) == sorted([(0, "s0"), (0, "s1"), (1, "s0"), (1, "s1")] * 2)


def test_parts_know_their_names_and_pickle() -> None:
    parts = numbered(10).split(train=0.8, val=0.2)
    train, val = parts
    assert isinstance(parts, Parts)
    assert parts.names == ("train", "val")
    assert parts.train is train is parts["train"] is parts[0]
    assert dict(parts.items())["val"] is val
    assert repr(parts) == "Parts(train=8, val=2)"
    again = pickle.loads(pickle.dumps(parts))
    assert [ids(part) for part in again] == [ids(part) for part in parts]
    with pytest.raises(AttributeError, match="no part 'test'; there are train, val"):
        _ = parts.test
    with pytest.raises(KeyError):
        _ = parts["test"]


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 4))
def test_fewer_samples_are_a_subset_of_more(few: int, more: int, seed: int) -> None:
    assume(few <= more)
    data = numbered(100)
    one, other = ids(data.sample(few, seed=seed)), ids(data.sample(more, seed=seed))
    assert len(one) == few
    assert len(set(other)) == more
    assert set(one) <= set(other)
    assert one == sorted(one)


def test_more_samples_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot draw 11 of 10 samples"):
        numbered(10).sample(11)
