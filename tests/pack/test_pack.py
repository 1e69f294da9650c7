"""What a pack holds, and what it says of sources that are not as they should be."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest
from pack_makers import array_folder, photo_folder, tree

import penstock
from penstock.errors import (
    CatalogError,
    ChecksumError,
    DataError,
    DeadlineError,
    MissingError,
    PenstockError,
    StoreError,
    TruncatedError,
)
from penstock.formats import Format
from penstock.pack import OnError, PackFormat, PackOptions, pack, verify
from penstock.pack.checksum import crc32c
from penstock.pack.reader import LocalReader

if TYPE_CHECKING:
    from pathlib import Path

SMALL = PackOptions(shard_size=64 << 10, threads=2)


def stored_bytes(folder: Path, field: str) -> list[bytes]:
    """What the catalog's addresses of a field point to, read with nothing but ``open``."""
    table = pq.read_table(folder / "catalog.parquet")
    shards = json.loads(table.schema.metadata[b"penstock"])["objects"]
    found = []
    for shard, offset, length, checksum in zip(
        *(table[f"@{field}.{part}"].to_pylist() for part in ("object", "offset", "length", "crc32c")),
        strict=True,
    ):
        with (folder / shards[shard]).open("rb") as file:
            file.seek(offset)
            data = file.read(length)
        assert crc32c(data) == checksum
        found.append(data)
    return found


def test_a_folder_becomes_shards_that_tar_and_penstock_read_alike(tmp_path: Path) -> None:
    source = photo_folder(tmp_path / "src")
    done = pack(str(source), tmp_path / "dst", SMALL)
    files = sorted(source.rglob("*.jpg"))
    assert done.samples == len(files) == 60
    assert done.shards == len(list((tmp_path / "dst").glob("shard-*.tar"))) > 3
    assert stored_bytes(tmp_path / "dst", "image") == [file.read_bytes() for file in files]
    through_tar = {}
    for shard in sorted((tmp_path / "dst").glob("shard-*.tar")):
        assert shard.stat().st_size <= 64 << 10
        with tarfile.open(shard) as archive:
            through_tar |= {member.name: archive.extractfile(member).read() for member in archive}
    assert through_tar == {f"{n:08d}.jpg": file.read_bytes() for n, file in enumerate(files)}
    data = penstock.open(tmp_path / "dst")
    assert data.classes == ("class-0", "class-1", "class-2")
    assert data.catalog.column("label").tolist() == [n // 20 for n in range(60)]
    assert data.catalog.keys() == [str(file.relative_to(source)) for file in files]
    assert data.catalog.ids().tolist() == list(range(60))
    assert not (tmp_path / "dst" / ".pack").exists()


def test_packing_does_not_touch_the_source(tmp_path: Path) -> None:
    source = photo_folder(tmp_path / "src")
    before = {path: path.stat() for path in source.rglob("*")}
    contents = tree(source)
    pack(str(source), tmp_path / "dst", SMALL)
    assert tree(source) == contents
    for path, was in before.items():
        now = path.stat()
        assert (now.st_mtime_ns, now.st_size, now.st_ino, now.st_mode) == (
            was.st_mtime_ns,
            was.st_size,
            was.st_ino,
            was.st_mode,
        )


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_bytes_depend_on_source_and_settings_and_not_on_threads(tmp_path: Path, threads: int) -> None:
    source = photo_folder(tmp_path / "src")
    pack(str(source), tmp_path / "one", PackOptions(shard_size=40_000, threads=1, shuffle=5))
    pack(str(source), tmp_path / "more", PackOptions(shard_size=40_000, threads=threads, shuffle=5))
    assert tree(tmp_path / "one") == tree(tmp_path / "more")


def test_two_copies_of_a_source_pack_to_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pack(str(photo_folder(tmp_path / name / "src")), tmp_path / name / "dst", SMALL)
    assert tree(tmp_path / "a" / "dst") == tree(tmp_path / "b" / "dst")


def test_shuffle_moves_samples_with_their_labels_and_keys(tmp_path: Path) -> None:
    source = photo_folder(tmp_path / "src")
    pack(str(source), tmp_path / "dst", PackOptions(shard_size=64 << 10, shuffle=1))
    data = penstock.open(tmp_path / "dst")
    keys = data.catalog.keys()
    assert keys != sorted(keys)
    assert sorted(keys) == [str(path.relative_to(source)) for path in sorted(source.rglob("*.jpg"))]
    assert [f"class-{label}" for label in data.catalog.column("label")] == [
        key.partition("/")[0] for key in keys
    ]
    assert stored_bytes(tmp_path / "dst", "image") == [(source / key).read_bytes() for key in keys]


def test_where_keeps_what_it_names(tmp_path: Path) -> None:
    source = photo_folder(tmp_path / "src")
    done = pack(str(source), tmp_path / "dst", PackOptions(where="label == 1"))
    assert done.samples == 20
    assert set(penstock.open(tmp_path / "dst").catalog.column("label").tolist()) == {1}


def test_columns_of_a_table_come_along(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for at in range(5):
        (source / f"{at}.jpg").write_bytes(bytes([at] * 100))
    lines = ["file,label,patient,age", *(f"{at}.jpg,{'ab'[at % 2]},p{at // 2},{at + 0.5}" for at in range(5))]
    (source / "labels.csv").write_text("\n".join(lines))
    pack(str(source), tmp_path / "dst")
    before, after = penstock.open(source), penstock.open(tmp_path / "dst")
    assert set(after.columns) == set(before.columns) >= {"patient", "age"}
    for name in before.columns:
        assert after.catalog.column(name).tolist() == before.catalog.column(name).tolist()
    assert after.classes == before.classes


def test_several_fields_a_sample_and_samples_without_one(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    with tarfile.open(source / "set-000.tar", "w") as archive:
        for at in range(6):
            parts = {"jpg": b"j" * (at + 1), "mask.png": b"m" * (2 * at + 1), "cls": b"%d" % at}
            if at == 3:
                del parts["mask.png"]
            for extension, data in parts.items():
                entry = tarfile.TarInfo(f"s{at}.{extension}")
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
    pack(str(source), tmp_path / "dst")
    data = penstock.open(tmp_path / "dst")
    assert data.catalog.keys() == penstock.open(source).catalog.keys()
    assert data.catalog.has_field("mask").tolist() == [True, True, True, False, True, True]
    with tarfile.open(tmp_path / "dst" / "shard-000000.tar") as archive:
        names = archive.getnames()
    assert {"00000000.jpg", "00000000.mask.png"} <= set(names)
    assert "00000003.mask.png" not in names
    assert verify(tmp_path / "dst").bad == ()
    again = pack(str(tmp_path / "dst"), tmp_path / "dst2")
    assert again.samples == 6
    assert tree(tmp_path / "dst")["shard-000000.tar"] == tree(tmp_path / "dst2")["shard-000000.tar"]


def test_a_sample_larger_than_shard_and_buffer_has_a_shard_of_its_own(tmp_path: Path) -> None:
    source = tmp_path / "src" / "c"
    source.mkdir(parents=True)
    large = np.random.default_rng(0).bytes((9 << 20) + 13)
    for name, data in (("a", b"1"), ("b", large), ("d", b"2")):
        (source / f"{name}.jpg").write_bytes(data)
    done = pack(str(source.parent), tmp_path / "dst", PackOptions(shard_size=1 << 20))
    assert done.shards == 3
    assert stored_bytes(tmp_path / "dst", "image") == [b"1", large, b"2"]
    assert verify(tmp_path / "dst").bad == ()


class TestRaw:
    def test_arrays_of_one_shape_become_blocks_of_rows(self, tmp_path: Path) -> None:
        source = array_folder(tmp_path / "src", count=30, shape=(3, 5))
        done = pack(str(source), tmp_path / "dst", PackOptions(shard_size=2048 + 600, format=PackFormat.RAW))
        assert done.shards == 3
        arrays = [np.load(path) for path in sorted(source.glob("*.npy"))]
        assert stored_bytes(tmp_path / "dst", "array") == [array.tobytes() for array in arrays]
        data = penstock.open(tmp_path / "dst")
        (field,) = data.catalog.stored
        assert (field.dtype, field.shape) == ("float32", (3, 5))
        np.testing.assert_array_equal(data[17]["array"], arrays[17])
        with tarfile.open(tmp_path / "dst" / "shard-000001.tar") as archive:
            (name,) = archive.getnames()
            assert name == "00000010-00000019.array.raw"
            assert archive.extractfile(name).read() == np.stack(arrays[10:20]).tobytes()
        assert verify(tmp_path / "dst").bad == ()

    @pytest.mark.parametrize("format", [PackFormat.KEEP, PackFormat.RAW])
    def test_rows_of_a_big_array_and_back_again(self, tmp_path: Path, format: PackFormat) -> None:
        rows = np.random.default_rng(0).integers(0, 255, (40, 4, 4), dtype=np.uint8)
        np.save(tmp_path / "rows.npy", rows)
        pack(
            str(tmp_path / "rows.npy"), tmp_path / "a", PackOptions(shard_size=8000, format=format, shuffle=3)
        )
        pack(str(tmp_path / "a"), tmp_path / "b", PackOptions(format=PackFormat.RAW))
        pack(str(tmp_path / "b"), tmp_path / "c", PackOptions(format=PackFormat.KEEP))
        order = None
        for name in "abc":
            data = penstock.open(tmp_path / name)
            found = np.stack([sample[data.catalog.stored[0].name] for sample in data])
            order = found if order is None else order
            np.testing.assert_array_equal(found, order)
        assert sorted(row.tobytes() for row in order) == sorted(row.tobytes() for row in rows)
        with tarfile.open(tmp_path / "c" / "shard-000000.tar") as archive:
            first = archive.getmembers()[0]
            assert first.name.endswith(".npy")
            np.testing.assert_array_equal(np.load(io.BytesIO(archive.extractfile(first).read())), order[0])

    def test_column_major_and_deflated_arrays_become_plain_rows(self, tmp_path: Path) -> None:
        source = tmp_path / "src"
        source.mkdir()
        arrays = [np.random.default_rng(n).standard_normal((4, 6)) for n in range(4)]
        np.save(source / "0.npy", arrays[0])
        np.save(source / "1.npy", np.asfortranarray(arrays[1]))
        np.save(source / "2.npy", arrays[2])
        np.save(source / "3.npy", np.asfortranarray(arrays[3]))
        pack(str(source), tmp_path / "dst", PackOptions(format=PackFormat.RAW))
        assert stored_bytes(tmp_path / "dst", "array") == [array.tobytes() for array in arrays]

    def test_another_shape_is_an_error_that_names_the_sample(self, tmp_path: Path) -> None:
        source = array_folder(tmp_path / "src", count=5, shape=(3, 5))
        np.save(source / "0003.npy", np.zeros((5, 3), np.float32))
        with pytest.raises(DataError, match=r"0003\.npy.*float32 5×3 where the first sample is float32 3×5"):
            pack(str(source), tmp_path / "dst", PackOptions(format=PackFormat.RAW))
        done = pack(str(source), tmp_path / "dst", PackOptions(format=PackFormat.RAW, on_error=OnError.SKIP))
        assert done.samples == 4
        assert len(done.skipped) == 1
        assert penstock.open(tmp_path / "dst").catalog.ids().tolist() == [0, 1, 2, 4]
        assert verify(tmp_path / "dst").bad == ()

    def test_pickled_objects_are_refused(self, tmp_path: Path) -> None:
        source = tmp_path / "src"
        source.mkdir()
        np.save(source / "0.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
        with pytest.raises(PenstockError, match="Python objects"):
            pack(str(source), tmp_path / "dst", PackOptions(format=PackFormat.RAW))

    def test_pictures_alone_are_not_raw(self, tmp_path: Path) -> None:
        source = photo_folder(tmp_path / "src", each=2)
        with pytest.raises(PenstockError, match="no field of .* is one"):
            pack(str(source), tmp_path / "dst", PackOptions(format=PackFormat.RAW))


def test_arrays_of_an_npz_are_inflated_to_npy_members(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    arrays = {}
    for at in range(3):
        arrays[at] = np.arange(200, dtype=np.int32).reshape(10, 20) * at
        np.savez_compressed(source / f"{at}.npz", depth=arrays[at])
    opened = penstock.open(source)
    name = opened.catalog.stored[0].name
    assert opened.catalog.addresses(name, np.arange(1)).format.tolist() == [Format.NPY_DEFLATE]
    pack(str(source), tmp_path / "dst")
    for at, data in enumerate(stored_bytes(tmp_path / "dst", name)):
        np.testing.assert_array_equal(np.load(io.BytesIO(data)), arrays[at])


def test_what_inflates_to_more_than_it_says_is_refused_within_bounded_memory() -> None:
    from penstock.pack import npy

    head = npy.header_bytes(np.dtype("u1"), (1000,))
    bomb = zlib.compressobj(9, wbits=-15)
    data = bomb.compress(head + bytes(50 << 20)) + bomb.flush()
    with pytest.raises(ValueError, match="inflates to more"):
        npy.inflate(memoryview(data))
    liar = zlib.compressobj(9, wbits=-15)
    data = liar.compress(npy.header_bytes(np.dtype("u1"), (1 << 50,))) + liar.flush()
    with pytest.raises(ValueError, match="more than .* deflated bytes can hold"):
        npy.inflate(memoryview(data))


class TestBadSources:
    def test_a_missing_file_is_named_before_anything_is_written(self, tmp_path: Path) -> None:
        source = photo_folder(tmp_path / "src", each=5)
        data = penstock.open(source)
        (source / "class-1" / "0002.jpg").unlink()
        with pytest.raises(MissingError, match=r"sample 7 \(class-1/0002\.jpg in .*src"):
            pack(data, tmp_path / "dst")
        assert list((tmp_path / "dst").glob("*")) == [] if (tmp_path / "dst").exists() else True

    def test_missing_files_are_skipped_and_counted(self, tmp_path: Path) -> None:
        source = photo_folder(tmp_path / "src", each=5)
        data = penstock.open(source)
        (source / "class-1" / "0002.jpg").unlink()
        (source / "class-2" / "0000.jpg").unlink()
        done = pack(data, tmp_path / "dst", PackOptions(on_error=OnError.SKIP))
        assert done.samples == 13
        assert len(done.skipped) == 2
        assert "class-1/0002.jpg" in done.skipped[0]
        assert json.loads((tmp_path / "dst" / "pack.json").read_text())["skipped"] == list(done.skipped)
        assert "class-1/0002.jpg" not in penstock.open(tmp_path / "dst").catalog.keys()  # noqa: SIM118

    @pytest.mark.parametrize("change", ["shrinks", "grows", "goes"])
    def test_a_file_that_changes_while_it_is_packed(self, tmp_path: Path, monkeypatch, change: str) -> None:
        source = photo_folder(tmp_path / "src", each=5)
        target = source / "class-1" / "0003.jpg"
        target.write_bytes(b"x" * 1000)
        change_when_first_read(monkeypatch, target, change)
        options = PackOptions(threads=1)
        with pytest.raises(DataError, match=r"sample 8 \(class-1/0003\.jpg") as caught:
            pack(str(source), tmp_path / "dst", options)
        kinds = {"shrinks": TruncatedError, "grows": TruncatedError, "goes": MissingError}
        assert type(caught.value) is kinds[change]
        assert not list((tmp_path / "dst").rglob("*.part"))
        assert not list((tmp_path / "dst").glob("shard-*"))

    def test_a_file_that_changes_while_it_is_packed_is_skipped_with_no_trace(
        self, tmp_path: Path, monkeypatch
    ) -> None:
        source = photo_folder(tmp_path / "src", each=5)
        target = source / "class-1" / "0003.jpg"
        large = b"x" * (9 << 20)  # more than the buffer: half of it is in the file when the end is missed
        target.write_bytes(large)
        change_when_first_read(monkeypatch, target, "shrinks")
        done = pack(str(source), tmp_path / "dst", PackOptions(threads=1, on_error=OnError.SKIP))
        assert done.samples == 14
        ids = penstock.open(tmp_path / "dst").catalog.ids().tolist()
        assert ids == [n for n in range(15) if n != 8]
        with tarfile.open(tmp_path / "dst" / "shard-000000.tar") as archive:
            assert archive.getnames() == [f"{n:08d}.jpg" for n in ids]
        assert verify(tmp_path / "dst").bad == ()

    def test_an_empty_picture_is_bad(self, tmp_path: Path) -> None:
        source = photo_folder(tmp_path / "src", each=2)
        (source / "class-0" / "0001.jpg").write_bytes(b"")
        with pytest.raises(TruncatedError, match=r"class-0/0001\.jpg.*empty"):
            pack(str(source), tmp_path / "dst")

    def test_a_tar_shard_cut_short_after_it_was_indexed(self, tmp_path: Path) -> None:
        pack(str(photo_folder(tmp_path / "src")), tmp_path / "once", SMALL)
        data = penstock.open(tmp_path / "once")
        shard = tmp_path / "once" / "shard-000001.tar"
        os.truncate(shard, shard.stat().st_size // 2)
        with pytest.raises(TruncatedError, match=r"shard-000001\.tar.*cut short"):
            pack(data, tmp_path / "twice")
        done = pack(data, tmp_path / "twice", PackOptions(on_error=OnError.SKIP))
        assert 0 < len(done.skipped) < 30
        assert done.samples == 60 - len(done.skipped)
        assert verify(tmp_path / "twice").bad == ()

    def test_a_source_with_checksums_is_checked(self, tmp_path: Path) -> None:
        pack(str(photo_folder(tmp_path / "src")), tmp_path / "once", SMALL)
        flip(tmp_path / "once" / "shard-000001.tar", 600)
        with pytest.raises(ChecksumError, match=r"shard-000001\.tar.*crc32c"):
            pack(str(tmp_path / "once"), tmp_path / "twice")

    def test_all_samples_bad_is_an_error(self, tmp_path: Path) -> None:
        source = photo_folder(tmp_path / "src", each=1)
        data = penstock.open(source)
        for path in source.rglob("*.jpg"):
            path.unlink()
        with pytest.raises(CatalogError, match="all 3 are bad"):
            pack(data, tmp_path / "dst", PackOptions(on_error=OnError.SKIP))

    def test_a_store_that_does_not_answer_ends_in_an_error_with_the_sample(
        self, tmp_path: Path, monkeypatch
    ) -> None:
        source = photo_folder(tmp_path / "src", each=3)
        release = threading.Event()
        read = LocalReader.read_into

        def hang(self: LocalReader, key: str, offset: int, views: list[memoryview]) -> int:
            if key == "class-1/0001.jpg":
                release.wait(30)
            return read(self, key, offset, views)

        monkeypatch.setattr(LocalReader, "read_into", hang)
        begun = time.monotonic()
        with pytest.raises(DeadlineError, match=r"has not moved for 0\.5 s.*sample 4 \(class-1/0001\.jpg\)"):
            pack(str(source), tmp_path / "dst", PackOptions(deadline=0.5, threads=1))
        assert time.monotonic() - begun < 5
        release.set()


def change_when_first_read(monkeypatch, target: Path, change: str) -> None:
    """Shrink, grow or remove a file the moment before its first byte is read."""
    read = LocalReader.read_into

    def changed(self: LocalReader, key: str, offset: int, views: list[memoryview]) -> int:
        if key.endswith(f"{target.parent.name}/{target.name}") and offset == 0:
            size = target.stat().st_size
            if change == "shrinks":
                os.truncate(target, size * 3 // 4)
            elif change == "grows":
                os.truncate(target, size + 100)
            else:
                target.unlink()
        return read(self, key, offset, views)

    monkeypatch.setattr(LocalReader, "read_into", changed)


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 4]))


class TestVerify:
    def test_a_flipped_bit_is_found_and_named(self, tmp_path: Path) -> None:
        pack(str(photo_folder(tmp_path / "src")), tmp_path / "dst", SMALL)
        assert verify(tmp_path / "dst").bad == ()
        flip(tmp_path / "dst" / "shard-000000.tar", 512)
        flip(tmp_path / "dst" / "shard-000002.tar", 512)
        bad = verify(tmp_path / "dst", threads=2).bad
        assert len(bad) == 2
        assert "sample 0 (shard-000000.tar" in bad[0]
        assert "crc32c" in bad[0]
        assert "shard-000002.tar" in bad[1]

    def test_a_damaged_header_is_found_though_samples_are_whole(self, tmp_path: Path) -> None:
        pack(str(photo_folder(tmp_path / "src")), tmp_path / "dst", SMALL)
        flip(tmp_path / "dst" / "shard-000001.tar", 3)
        (bad,) = verify(tmp_path / "dst").bad
        assert "shard-000001.tar" in bad
        assert "header" in bad

    @pytest.mark.parametrize("at", range(0, 20_000, 1777))
    def test_no_flipped_bit_of_a_sample_goes_unseen(self, tmp_path: Path, at: int) -> None:
        pack(str(photo_folder(tmp_path / "src", each=3)), tmp_path / "dst")
        table = pq.read_table(tmp_path / "dst" / "catalog.parquet")
        inside = any(
            offset <= at < offset + length
            for offset, length in zip(
                table["@image.offset"].to_pylist(), table["@image.length"].to_pylist(), strict=True
            )
        )
        flip(tmp_path / "dst" / "shard-000000.tar", at)
        assert bool(verify(tmp_path / "dst").bad) or not inside

    def test_a_missing_or_short_shard_is_an_error(self, tmp_path: Path) -> None:
        pack(str(photo_folder(tmp_path / "src")), tmp_path / "dst", SMALL)
        data = penstock.open(tmp_path / "dst")
        shard = tmp_path / "dst" / "shard-000001.tar"
        os.truncate(shard, shard.stat().st_size - 5000)
        with pytest.raises(CatalogError, match=r"shard-000001\.tar"):
            verify(tmp_path / "dst")
        assert any("shard-000001.tar" in text and "cut short" in text for text in verify(data).bad)
        shard.unlink()
        assert any("shard-000001.tar" in text and "no such object" in text for text in verify(data).bad)

    def test_a_source_without_checksums_has_nothing_to_compare(self, tmp_path: Path) -> None:
        with pytest.raises(CatalogError, match="no checksums"):
            verify(photo_folder(tmp_path / "src", each=2))


class TestDest:
    def test_a_complete_pack_is_left_alone(self, tmp_path: Path) -> None:
        source = photo_folder(tmp_path / "src")
        pack(str(source), tmp_path / "dst", SMALL)
        before = {
            path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in (tmp_path / "dst").iterdir()
        }
        again = pack(str(source), tmp_path / "dst", SMALL)
        assert again.was_complete
        assert again.samples == 60
        after = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in (tmp_path / "dst").iterdir()}
        assert after == before

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            (PackOptions(shard_size=50_000, threads=2), "--shard-size was 65,536 bytes and is 50,000 bytes"),
            (PackOptions(shard_size=64 << 10, shuffle=3), "--shuffle was None and is 3"),
            (PackOptions(shard_size=64 << 10, where="label == 0"), "--where"),
        ],
    )
    def test_a_complete_pack_of_other_settings_is_an_error(self, tmp_path: Path, options, told: str) -> None:
        source = photo_folder(tmp_path / "src")
        pack(str(source), tmp_path / "dst", SMALL)
        before = tree(tmp_path / "dst")
        with pytest.raises(CatalogError, match="is complete and is another pack") as caught:
            pack(str(source), tmp_path / "dst", options)
        assert told in str(caught.value)
        assert tree(tmp_path / "dst") == before

    def test_a_complete_pack_of_another_source_is_an_error(self, tmp_path: Path) -> None:
        pack(str(photo_folder(tmp_path / "src")), tmp_path / "dst", SMALL)
        with pytest.raises(CatalogError, match="another pack: samples of the source have other sizes"):
            pack(str(photo_folder(tmp_path / "src2", seed=9)), tmp_path / "dst", SMALL)

    @pytest.mark.parametrize("name", ["shard-000003.tar", "catalog.parquet", "pack.json"])
    def test_files_that_pack_has_not_written_are_not_written_over(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "dst").mkdir()
        (tmp_path / "dst" / name).write_bytes(b"the user's")
        with pytest.raises(CatalogError, match=name):
            pack(str(photo_folder(tmp_path / "src", each=2)), tmp_path / "dst")
        assert (tmp_path / "dst" / name).read_bytes() == b"the user's"

    def test_a_dest_inside_the_source_is_refused(self, tmp_path: Path) -> None:
        source = photo_folder(tmp_path / "src", each=2)
        for dest in (source, source / "packed"):
            with pytest.raises(StoreError, match="lies inside the source"):
                pack(str(source), dest)
        assert not (source / "packed").exists()

    def test_two_packs_into_one_dest_exclude_each_other(self, tmp_path: Path) -> None:
        source = photo_folder(tmp_path / "src")
        told: list[BaseException] = []

        def second(done: int, shards: int) -> None:
            if not told:
                with pytest.raises(StoreError, match="another penstock pack is writing") as caught:
                    pack(str(source), tmp_path / "dst", SMALL)
                told.append(caught.value)

        pack(str(source), tmp_path / "dst", SMALL, on_shard=second)
        assert told
        assert verify(tmp_path / "dst").bad == ()

    def test_a_dest_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "dst").write_text("x")
        with pytest.raises(StoreError, match="is a file"):
            pack(str(photo_folder(tmp_path / "src", each=2)), tmp_path / "dst")


def test_memory_does_not_grow_with_the_source(tmp_path: Path) -> None:
    """Packing 96 MiB in a process that may map little more than it does when idle."""
    source = tmp_path / "src" / "c"
    source.mkdir(parents=True)
    block = np.random.default_rng(0).bytes(12 << 20)
    for at in range(8):
        (source / f"{at}.jpg").write_bytes(block)
    script = (
        "import resource, sys, penstock.pack as p, penstock, pyarrow.parquet\n"
        "from pathlib import Path\n"
        "base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "p.pack(sys.argv[1], sys.argv[2], p.PackOptions(shard_size=20 << 20, threads=2))\n"
        "p.verify(sys.argv[2], threads=2)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, source.parent, tmp_path / "dst"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert (
        int(found.stdout) < 48 << 10
    )  # KiB: two threads with 4 MiB each, and what libraries load on the way


def test_samples_that_lack_a_field_are_packed_under_the_names_of_what_they_have(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "1.txt").write_bytes(b"one")
    (source / "2.json").write_bytes(b"{}")
    pack(source, tmp_path / "packed", quiet=True)
    data = penstock.open(tmp_path / "packed")
    assert data.catalog.keys() == ["1.txt", "2.json"]
    assert data.select("text")[0]["text"] == b"one"
    assert data.where("text is null").select("json")[0]["json"] == b"{}"
