"""Tar shards are indexed once, in place, and the index is believed only while it is true."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import numpy as np
import pytest

from penstock.catalog import NO_OBJECT
from penstock.dataset import open_dataset
from penstock.errors import CatalogError, DataError
from penstock.sources import shards
from penstock.sources.shards import INDEX_NAME


def write_shard(path: Path, files: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def write_shards(folder: Path, shard_count: int = 3, samples: int = 4) -> None:
    folder.mkdir(exist_ok=True)
    for shard in range(shard_count):
        files = []
        for n in range(shard * samples, (shard + 1) * samples):
            files += [
                (f"train/{n:05}.txt", b"text %d" % n),
                (f"train/{n:05}.left.json", b"{}"),
                (f"train/{n:05}.cls", b"%d\n" % (n % 3)),
            ]
        write_shard(folder / f"s-{shard:04}.tar", files)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path / "set")
    return tmp_path / "set"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def read_shards(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shards whose headers were read."""
    read: list[str] = []
    real = shards.read_shard

    def counting(listing: object, shard: object) -> object:
        read.append(shard.key)
        return real(listing, shard)

    monkeypatch.setattr(shards, "read_shard", counting)
    return read


def test_samples_fields_and_labels_come_from_member_names(folder: Path) -> None:
    data = open_dataset(folder)

    assert len(data) == 12
    assert [(f.name, f.kind, f.source) for f in data.fields] == [
        ("text", "bytes", "stored"),
        ("left", "bytes", "stored"),
        ("label", "scalar", "column"),
    ]
    assert data.catalog.objects.to_pylist() == ["s-0000.tar", "s-0001.tar", "s-0002.tar"]
    for n, sample in enumerate(data):
        assert (sample.id, sample.key, sample["text"], sample["label"]) == (
            n,
            f"train/{n:05}",
            b"text %d" % n,
            n % 3,
        )


def test_the_second_open_reads_the_index_and_gives_the_same(folder: Path, read_shards: list[str]) -> None:
    first = open_dataset(folder)
    assert len(read_shards) == 3
    second = open_dataset(folder)

    assert len(read_shards) == 3
    assert (folder / INDEX_NAME).is_file()
    assert second.fingerprint() == first.fingerprint()
    assert second.catalog.to_arrow().equals(first.catalog.to_arrow())


@pytest.mark.parametrize("change", ["rewritten", "touched", "added", "removed"])
def test_the_index_is_made_anew_when_a_shard_changes(
    folder: Path, read_shards: list[str], change: str
) -> None:
    before = open_dataset(folder)
    read_shards.clear()
    count = 12
    match change:
        case "rewritten":
            write_shard(folder / "s-0001.tar", [("new.txt", b"new")])
            count = 9
        case "touched":
            os.utime(folder / "s-0001.tar", ns=(1, 1))
        case "added":
            write_shard(folder / "s-0003.tar", [("new.txt", b"new")])
            count = 13
        case "removed":
            (folder / "s-0002.tar").unlink()
            count = 8

    after = open_dataset(folder)

    assert len(after) == count
    assert "s-0000.tar" in read_shards
    assert (after.fingerprint() == before.fingerprint()) == (change == "touched")


@pytest.mark.parametrize("damage", [b"", b"PAR1 this is none PAR1"])
def test_a_damaged_index_is_made_anew(folder: Path, damage: bytes) -> None:
    before = open_dataset(folder).fingerprint()
    (folder / INDEX_NAME).write_bytes(damage)
    assert open_dataset(folder).fingerprint() == before


def test_a_flipped_byte_in_the_index_is_never_believed(folder: Path) -> None:
    wanted = open_dataset(folder).catalog.to_arrow()
    index = folder / INDEX_NAME
    good = index.read_bytes()
    for at in range(4, len(good), 7):
        index.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        try:
            found = open_dataset(folder).catalog.to_arrow()
        except CatalogError as error:
            assert "damaged" in str(error) or "make it again" in str(error)
        else:
            assert found.equals(wanted)


def test_where_the_folder_cannot_be_written_the_index_goes_to_the_cache(
    folder: Path, cache: Path, read_shards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_writing_in(folder, monkeypatch)
    open_dataset(folder)
    again = open_dataset(folder)

    assert not (folder / INDEX_NAME).exists()
    assert len(list(cache.rglob("*.parquet"))) == 1
    assert len(read_shards) == 3
    assert again[3]["text"] == b"text 3"


def test_where_nothing_can_be_written_the_index_stays_in_memory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_writing_in(tmp_path, monkeypatch)
    assert open_dataset(folder)[11]["text"] == b"text 11"
    assert sorted(path.name for path in folder.iterdir()) == ["s-0000.tar", "s-0001.tar", "s-0002.tar"]


def refuse_writing_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make writing fail below the folder, whoever runs the test: root may write where the mode says no."""
    from penstock.sources.listing import LocalListing

    real = LocalListing.create

    def create(self: LocalListing, key: str) -> object:
        if Path(self.root).is_relative_to(folder):
            raise PermissionError(13, "Permission denied", key)
        return real(self, key)

    monkeypatch.setattr(LocalListing, "create", create)


def test_the_index_may_be_read_by_all_who_may_read_files_here(folder: Path) -> None:
    open_dataset(folder)
    (folder / "other").touch()
    assert stat.S_IMODE((folder / INDEX_NAME).stat().st_mode) == stat.S_IMODE(
        (folder / "other").stat().st_mode
    )


def test_nothing_is_left_behind_when_the_index_cannot_be_finished(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device", target)

    monkeypatch.setattr(os, "replace", full)
    assert len(open_dataset(folder)) == 12
    assert sorted(path.name for path in folder.iterdir()) == ["s-0000.tar", "s-0001.tar", "s-0002.tar"]


def test_a_pattern_names_some_shards(folder: Path) -> None:
    some = open_dataset(f"{folder}/s-{{0001..0002}}.tar")
    assert some.catalog.keys() == [f"train/{n:05}" for n in range(4, 12)]
    assert some.catalog.objects.to_pylist() == ["s-0001.tar", "s-0002.tar"]
    assert len(open_dataset(f"{folder}/s-*1.tar")) == 4
    assert len(open_dataset(folder / "s-0002.tar")) == 4


def test_shards_that_a_pattern_names_and_that_are_not_there_are_listed(folder: Path) -> None:
    with pytest.raises(CatalogError, match=r"2 of the 5 shards .* are not there: s-0003.tar, s-0004.tar"):
        open_dataset(f"{folder}/s-{{0000..0004}}.tar")


def test_a_pattern_that_matches_nothing_is_an_error(folder: Path) -> None:
    with pytest.raises(CatalogError, match="nothing matches"):
        open_dataset(f"{folder}/t-*.tar")


def test_files_of_a_sample_apart_are_an_error(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", [("1.txt", b""), ("2.txt", b""), ("1.json", b"")])
    with pytest.raises(CatalogError, match=r"a.tar at byte 1,536: files of the sample 1 lie in two places"):
        open_dataset(tmp_path)


def test_a_field_twice_in_a_sample_is_an_error(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", [("1.jpg", b""), ("1.png", b"")])
    with pytest.raises(CatalogError, match="the sample 1 has the field 'image' twice"):
        open_dataset(tmp_path)


def test_a_shard_cut_short_is_named(folder: Path) -> None:
    path = folder / "s-0001.tar"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(CatalogError, match=r"s-0001.tar is cut short"):
        open_dataset(folder)


def test_a_shard_that_shrank_after_it_was_opened_is_an_error_of_its_samples(folder: Path) -> None:
    data = open_dataset(folder)
    os.truncate(folder / "s-0002.tar", 1000)
    with pytest.raises(DataError, match=r"sample 9 \(train/00009 in .*s-0002.tar has 1,000 bytes"):
        data[9]
    (folder / "s-0002.tar").unlink()
    with pytest.raises(FileNotFoundError, match=r"sample 9 .*s-0002.tar is not there"):
        data[9]


def test_shards_without_samples_are_an_error(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", [("README", b"hello"), (".hidden.jpg", b"")])
    with pytest.raises(CatalogError, match="no sample is in a.tar"):
        open_dataset(tmp_path)


def test_a_sample_may_lack_a_field(tmp_path: Path) -> None:
    write_shard(
        tmp_path / "a.tar",
        [("1.txt", b"a"), ("1.json", b"{}"), ("2.txt", b"b"), ("3.txt", b"c"), ("3.json", b"[]")],
    )
    data = open_dataset(tmp_path)

    assert data.catalog.addresses("json", np.arange(3)).object.tolist() == [0, NO_OBJECT, 0]
    assert data.where("json is not null").catalog.keys() == ["1", "3"]
    assert data.select("text")[1]["text"] == b"b"
    with pytest.raises(
        DataError, match=r"it has no 'json'; leave such samples out with where\('json is not null'\)"
    ):
        data[1]


@pytest.mark.parametrize("bad", [b"cat", b"", b"1.5", b"9" * 30])
def test_labels_that_are_no_numbers_stay_with_their_samples(tmp_path: Path, bad: bytes) -> None:
    write_shard(tmp_path / "a.tar", [("1.cls", b"4"), ("2.cls", bad)])
    data = open_dataset(tmp_path)
    assert [(f.name, f.source) for f in data.fields] == [("label", "stored")]
    assert data[0]["label"] == 4
    with pytest.raises(DataError, match=r"sample 1 .*field 'label': as cls: .* is not an integer"):
        data[1]


def test_unknown_extensions_are_given_as_bytes(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", [("1.mp4", b"film"), ("1.left.flac", b"sound")])
    assert dict(open_dataset(tmp_path)[0]) == {"mp4": b"film", "left": b"sound"}
