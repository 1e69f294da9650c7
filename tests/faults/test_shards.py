"""Shards and catalogs that do not match: an error that says which, and never other bytes than were packed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import (
    CatalogError,
    ChecksumError,
    DataError,
    MissingError,
    PenstockError,
    StoreError,
    TruncatedError,
)
from penstock.pack import PackOptions, pack

if TYPE_CHECKING:
    from pathlib import Path

SMALL = [penstock.Resize((16, 16))]


@pytest.fixture(scope="module")
def packed(picture_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 pictures in several shards."""
    dest = tmp_path_factory.mktemp("packed") / "set"
    pack(str(picture_folder), dest, PackOptions(shard_size=24 << 10))
    assert len(list(dest.glob("*.tar"))) >= 3
    return dest


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(packed, tmp_path / "set")


def run(data: penstock.Dataset, **options: object) -> list[int]:
    with penstock.Loader(data, 8, transform=SMALL, timeout=30, **options) as loader:
        return sorted(int(id) for batch in loader for id in batch.ids)


def test_a_missing_shard_is_named(copy: Path) -> None:
    shard = sorted(copy.glob("*.tar"))[1]
    shard.unlink()
    try:
        data = penstock.open(copy)
    except PenstockError as error:
        assert shard.name in str(error)
        return
    with pytest.raises(MissingError, match=shard.name):
        run(data)


def test_a_shard_that_goes_away_while_training_is_named(copy: Path) -> None:
    data = penstock.open(copy)
    shard = max(copy.glob("*.tar"))
    shard.unlink()
    with pytest.raises(MissingError, match=shard.name):
        run(data)


def test_a_shard_cut_short_loses_its_tail_and_nothing_else(copy: Path) -> None:
    data = penstock.open(copy)
    shard = min(copy.glob("*.tar"))
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size // 2)
    with pytest.raises(TruncatedError, match=shard.name):
        run(data)
    kept = run(data, on_error="skip", error_budget=60)
    assert 40 <= len(kept) < 60


def test_a_flipped_byte_is_never_handed_out(copy: Path) -> None:
    data = penstock.open(copy)
    at = data.catalog.addresses("image", data.catalog.ids().astype("int64"))
    for row in (0, 17, 59):
        shard = copy / data.catalog.objects[int(at.object[row])].as_py()
        content = bytearray(shard.read_bytes())
        content[int(at.offset[row]) + int(at.length[row]) // 2] ^= 4
        shard.write_bytes(content)
    with pytest.raises(ChecksumError, match="crc32c"):
        run(data)
    assert run(data, on_error="skip", error_budget=3) == [n for n in range(60) if n not in (0, 17, 59)]


def test_shards_that_changed_places_are_found_out(copy: Path) -> None:
    first, second = sorted(copy.glob("*.tar"))[:2]
    first.rename(copy / "away")
    second.rename(first)
    (copy / "away").rename(second)
    try:
        data = penstock.open(copy)
        with pytest.raises(DataError):
            run(data)
    except CatalogError as error:
        assert first.name in str(error)


def test_a_catalog_of_another_pack_does_not_read_these_shards(
    copy: Path, array_folder: Path, tmp_path: Path
) -> None:
    pack(str(array_folder), tmp_path / "other", PackOptions(shard_size=24 << 10))
    shutil.copy(tmp_path / "other" / "catalog.parquet", copy / "catalog.parquet")
    with pytest.raises(PenstockError):
        run(penstock.open(copy))


def test_a_catalog_that_is_no_catalog_is_told_so(copy: Path) -> None:
    catalog = copy / "catalog.parquet"
    for content in (b"", b"PAR1", catalog.read_bytes()[:-100], b"PAR1" + bytes(500) + b"PAR1"):
        catalog.write_bytes(content)
        with pytest.raises((CatalogError, StoreError), match="catalog"):
            run(penstock.open(copy))


def test_addresses_that_lead_nowhere_are_errors_of_their_samples(copy: Path) -> None:
    """A catalog that somebody wrote by hand: past the end, and into a table of objects that is too short."""
    path = copy / "catalog.parquet"
    table = pq.read_table(path)
    offsets = table.column("@image.offset").to_pylist()
    offsets[3] = 2**62
    changed = table.set_column(
        table.schema.get_field_index("@image.offset"), "@image.offset", [offsets]
    ).replace_schema_metadata(table.schema.metadata)
    pq.write_table(changed.cast(table.schema), path)
    with pytest.raises(PenstockError):
        run(penstock.open(copy))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_catalog_is_an_error_or_the_truth(
    packed: Path, tmp_path: Path, data: st.DataObject
) -> None:
    target = tmp_path / "damaged"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(packed, target)
    path = target / "catalog.parquet"
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        opened = penstock.open(target)
        ids = run(opened)
    except PenstockError:
        return
    assert ids == list(range(60))
