from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import Format, split_name
from penstock.pack import PackOptions, parse_size
from penstock.pack.checksum import combine, crc32c
from penstock.pack.names import member_suffix, safe_names
from penstock.pack.plan import cut, packed_order


@given(st.lists(st.integers(0, 300), max_size=200), st.integers(1, 1000))
def test_shards_hold_every_sample_once_and_as_many_as_fit(weights: list[int], shard_size: int) -> None:
    sizes = np.array(weights, np.uint64)
    bounds = cut(sizes, shard_size)
    assert bounds[0] == 0
    assert bounds[-1] == len(weights)
    assert (np.diff(bounds) > 0).all()
    for first, last in itertools.pairwise(bounds):
        assert last - first == 1 or sizes[first:last].sum() <= shard_size
        if last < len(weights):  # one more would not have fitted
            assert sizes[first : last + 1].sum() > shard_size


@given(st.integers(0, 500), st.integers(0, 2**64 - 1))
def test_a_shuffled_order_is_a_permutation_and_depends_on_the_seed_alone(count: int, seed: int) -> None:
    order = packed_order(count, seed)
    assert sorted(order.tolist()) == list(range(count))
    assert (order == packed_order(count, seed)).all()


def test_a_shuffled_order_is_the_same_in_every_release() -> None:
    assert packed_order(10, 7).tolist() == [9, 5, 4, 2, 3, 1, 0, 8, 7, 6]


def test_shuffled_orders_of_different_seeds_differ_and_mix() -> None:
    orders = [packed_order(10_000, seed) for seed in range(5)]
    for left, right in itertools.pairwise(orders):
        assert (left == right).mean() < 0.01
    moved = np.abs(orders[0] - np.arange(10_000)).mean()
    assert 3000 < moved < 3700  # a third of the length, for a uniform permutation


@given(st.binary(max_size=3000), st.integers(0, 3000))
def test_checksums_of_parts_combine(data: bytes, at: int) -> None:
    first, second = data[:at], data[at:]
    assert combine(crc32c(first), crc32c(second), len(second)) == crc32c(data)


def test_the_checksum_is_the_castagnoli_one() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("256MiB", 256 << 20),
        ("1.5GB", 1_500_000_000),
        ("4096", 4096),
        ("2 k", 2000),
        ("1kib", 1024),
        ("3B", 3),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "MiB", "-3", "1 XB", "1e9"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_size(text)


@pytest.mark.parametrize(
    "wrong", [{"shard_size": 0}, {"threads": 0}, {"shuffle": -1}, {"shuffle": 2**64}, {"deadline": 0.0}]
)
def test_options_check_themselves(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PackOptions(**wrong)


@pytest.mark.parametrize(
    "field", ["image", "mask", "seg", "array", "label", "json", "text", "depth", "odd_name"]
)
@pytest.mark.parametrize("format", [f for f in Format if f not in (Format.RAW, Format.NPY_DEFLATE)])
def test_a_member_name_says_field_and_format_again(field: str, format: Format) -> None:
    parts = split_name("00000017." + member_suffix(field, format))
    assert parts is not None
    assert (parts.key, parts.field, parts.format) == ("00000017", field, format)


@given(st.lists(st.text(max_size=20), unique=True, max_size=10))
def test_field_names_become_file_names_that_differ(fields: list[str]) -> None:
    names = safe_names(fields)
    assert list(names) == fields
    assert len(set(names.values())) == len(fields)
    assert all(name and not set(name) & set("/.\0") for name in names.values())
