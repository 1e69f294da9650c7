"""penstock.open of what lies in a bucket: the same samples as of what lies in a folder."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.servers import ServerMissing, slowwire

import penstock
from penstock.errors import CatalogError, MissingError, StoreError
from penstock.pack import PackOptions, pack

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import S3

    from penstock import Dataset

    from .conftest import Bucket


def assert_same(far: Dataset, near: Dataset) -> None:
    assert len(far) == len(near)
    assert far.columns == near.columns
    assert far.classes == near.classes
    assert [f.name for f in far.fields] == [f.name for f in near.fields]
    for at in range(0, len(near), 7):
        one, two = far[at], near[at]
        assert (one.id, one.key) == (two.id, two.key)
        for name in near[at]:
            np.testing.assert_array_equal(one[name], two[name])


@pytest.fixture
def packed_folder(picture_folder: Path, tmp_path: Path) -> Path:
    pack(str(picture_folder), tmp_path / "packed", PackOptions(shard_size=32 << 10))
    return tmp_path / "packed"


def test_packed_shards(bucket: Bucket, packed_folder: Path) -> None:
    uri = bucket.put_tree(packed_folder, "sets/pets/")
    near = penstock.open(packed_folder)
    assert_same(penstock.open(uri, storage=bucket.storage), near)
    assert_same(penstock.open(f"{uri}/", storage=bucket.storage), near)
    assert_same(penstock.open(f"{uri}/catalog.parquet", storage=bucket.storage), near)


def test_a_bucket_itself(bucket: Bucket, packed_folder: Path) -> None:
    bucket.name = "whole"
    assert_same(
        penstock.open(bucket.put_tree(packed_folder), storage=bucket.storage), penstock.open(packed_folder)
    )


def test_tar_shards_by_folder_by_pattern_and_one(bucket: Bucket, tar_folder: Path) -> None:
    uri = bucket.put_tree(tar_folder, "tars/")
    near = penstock.open(tar_folder)
    assert_same(penstock.open(uri, storage=bucket.storage), near)
    assert_same(penstock.open(f"{uri}/shard-{{0..1}}.tar", storage=bucket.storage), near)
    assert_same(penstock.open(f"{uri}/shard-*.tar", storage=bucket.storage), near)
    one = penstock.open(f"{uri}/shard-1.tar", storage=bucket.storage)
    assert [s.key for s in one] == [s.key for s in near][10:]
    assert not any("penstock-index" in key for key in bucket.all_keys()), "written to without being asked"


def test_an_index_beside_the_shards_when_asked_for(bucket: Bucket, tar_folder: Path, cache: Path) -> None:
    uri = bucket.put_tree(tar_folder, "tars/")
    storage = {**bucket.storage, "index": "beside"}
    assert_same(penstock.open(uri, storage=storage), penstock.open(tar_folder))
    assert "tars/.penstock-index.parquet" in bucket.all_keys()
    shutil.rmtree(cache)
    # Another machine finds it, and reads no shard.
    bucket.store("tars").put("shard-0.tar.part", b"")
    assert_same(penstock.open(uri, storage=bucket.storage), penstock.open(tar_folder))
    assert not (cache / "index").exists()


def test_an_index_ends_with_the_shards_that_it_is_of(bucket: Bucket, tar_folder: Path) -> None:
    uri = bucket.put_tree(tar_folder, "tars/")
    assert len(penstock.open(uri, storage=bucket.storage)) == 20
    swapped = {f"tars/shard-{n}.tar": (tar_folder / f"shard-{1 - n}.tar").read_bytes() for n in (0, 1)}
    bucket.put(swapped)
    keys = [sample.key for sample in penstock.open(uri, storage=bucket.storage)]
    assert keys == [f"{n:04}" for n in (*range(10, 20), *range(10))]


def test_class_folders_and_their_pickles(bucket: Bucket, picture_folder: Path) -> None:
    uri = bucket.put_tree(picture_folder, "photos/")
    far, near = penstock.open(uri, storage=bucket.storage), penstock.open(picture_folder)
    assert_same(far, near)
    train, rest = far.where("label != 'ant'").split(train=0.5, rest=0.5, by="label", seed=3)
    assert len(train) + len(rest) == 40
    assert len(far.sample(7, seed=1)) == 7
    assert far.fingerprint() == penstock.open(uri, storage=bucket.storage).fingerprint()
    assert_same(pickle.loads(pickle.dumps(train)), train)


def test_a_pickle_opens_in_another_process_without_listing_again(
    bucket: Bucket, picture_folder: Path, tmp_path: Path
) -> None:
    uri = bucket.put_tree(picture_folder, "photos/")
    data = penstock.open(uri, storage=bucket.storage)
    (tmp_path / "pickle").write_bytes(pickle.dumps(data[5:9]))
    program = (
        "import pickle, sys, penstock\n"
        "from penstock.sources import far\n"
        "def refuse(*_, **__): raise AssertionError('listed again')\n"
        "far.FarListing._below = refuse\n"
        "data = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print([sample.id for sample in data], data[0]['image'].shape)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "pickle"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("[5, 6, 7, 8]")


def test_a_pickle_of_a_folder_that_changed_is_an_error(
    bucket: Bucket, picture_folder: Path, tmp_path: Path, cache: Path
) -> None:
    uri = bucket.put_tree(picture_folder, "photos/")
    raw = pickle.dumps(penstock.open(uri, storage=bucket.storage))
    (tmp_path / "pickle").write_bytes(raw)
    bucket.put({"photos/ant/zzz.jpg": b"new"})
    shutil.rmtree(cache)
    program = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
    found = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "pickle"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "has changed since this dataset was opened" in found.stderr
    assert bucket.storage["secret_access_key"] not in found.stderr


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_tables_of_labels(bucket: Bucket, picture_folder: Path, tmp_path: Path, kind: str) -> None:
    import pandas as pd

    root = tmp_path / "flat"
    root.mkdir()
    rows = []
    for path in sorted(picture_folder.rglob("*.jpg")):
        shutil.copy(path, root / path.name)
        rows.append({"file": path.name, "label": path.parent.name, "age": len(rows)})
    table = pd.DataFrame(rows)
    if kind == "csv":
        table.to_csv(root / "labels.csv", index=False)
    elif kind == "jsonl":
        table.to_json(root / "labels.jsonl", orient="records", lines=True)
    else:
        table.to_parquet(root / "labels.parquet")
    uri = bucket.put_tree(root, "flat/")
    far = penstock.open(uri, storage=bucket.storage)
    assert_same(far, penstock.open(root))
    assert len(far.where("age < 30 and label == 'bee'")) == 10


def test_arrays(bucket: Bucket, array_folder: Path, tmp_path: Path) -> None:
    uri = bucket.put_tree(array_folder, "arrays/")
    assert_same(penstock.open(uri, storage=bucket.storage), penstock.open(array_folder))
    root = tmp_path / "files"
    root.mkdir()
    rng = np.random.default_rng(0)
    np.save(root / "all.npy", rng.standard_normal((50, 3, 4)).astype(np.float32))
    np.savez(root / "set.npz", x=rng.integers(0, 9, (40, 5)), y=np.arange(40))
    uri = bucket.put_tree(root, "files/")
    for name in ("all.npy", "set.npz"):
        assert_same(penstock.open(f"{uri}/{name}", storage=bucket.storage), penstock.open(root / name))


def test_labels_in_files_of_their_own(bucket: Bucket, tmp_path: Path) -> None:
    objects = {f"d/{n:03}.txt": b"text" for n in range(30)} | {f"d/{n:03}.cls": b"%d" % n for n in range(30)}
    bucket.put(objects)
    data = penstock.open(f"{bucket.uri}/d", storage=bucket.storage)
    assert data.catalog.column("label").tolist() == list(range(30))


def test_what_is_not_there_is_said(bucket: Bucket) -> None:
    bucket.put({"a/b.jpg": b"x"})
    with pytest.raises(StoreError, match="there is nothing at s3://"):
        penstock.open(f"{bucket.uri}/nowhere", storage=bucket.storage)
    with pytest.raises(StoreError, match="no bucket of that name"):
        penstock.open("s3://no-such-bucket/data/", storage=bucket.storage)
    bucket.put({"t/s-0.tar": b""})
    with pytest.raises(CatalogError, match=r"1 of the 2 shards .* are not there: s-1.tar"):
        penstock.open(f"{bucket.uri}/t/s-{{0..1}}.tar", storage=bucket.storage)


def test_shards_that_are_missing_or_short_are_named(bucket: Bucket, packed_folder: Path) -> None:
    uri = bucket.put_tree(packed_folder, "p/")
    store = bucket.store("p")
    store.put("shard-000001.tar", b"short")
    with pytest.raises(CatalogError, match=r"does not match its shards: shard-000001.tar \(5 bytes"):
        penstock.open(uri, storage=bucket.storage)
    store.delete("shard-000001.tar")
    with pytest.raises(CatalogError, match=r"names shards that are not there: shard-000001.tar"):
        penstock.open(uri, storage=bucket.storage)


def test_a_sample_that_went_away_is_named(bucket: Bucket, picture_folder: Path) -> None:
    uri = bucket.put_tree(picture_folder, "photos/")
    data = penstock.open(uri, storage=bucket.storage)
    bucket.store("photos").delete("ant/000.jpg")
    with pytest.raises(MissingError, match=r"sample 0 .*ant/000.*is not there"):
        _ = data[0]


def test_a_catalog_is_fetched_once_and_again_when_it_changes(
    bucket: Bucket, packed_folder: Path, picture_folder: Path, cache: Path, tmp_path: Path
) -> None:
    uri = bucket.put_tree(packed_folder, "p/")
    penstock.open(uri, storage=bucket.storage)
    (kept,) = (cache / "objects").iterdir()
    before = kept.stat().st_ino
    penstock.open(uri, storage=bucket.storage)
    assert kept.stat().st_ino == before
    # A copy that was damaged is not trusted.
    kept.write_bytes(b"x" * 500 + kept.read_bytes()[500:])
    assert_same(penstock.open(uri, storage=bucket.storage), penstock.open(packed_folder))
    assert kept.stat().st_ino != before
    pack(str(picture_folder / "ant"), tmp_path / "other", PackOptions(shard_size=1 << 20))
    store = bucket.store("p")
    for key, _, _ in store.list():
        store.delete(key)
    bucket.put_tree(tmp_path / "other", "p/")
    assert len(penstock.open(uri, storage=bucket.storage)) == 20
    assert len(list((cache / "objects").iterdir())) == 2


def test_without_a_cache_folder_all_is_read_where_it_lies(
    bucket: Bucket, packed_folder: Path, tar_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", "/proc/nowhere")
    assert_same(
        penstock.open(bucket.put_tree(packed_folder, "p/"), storage=bucket.storage),
        penstock.open(packed_folder),
    )
    assert_same(
        penstock.open(bucket.put_tree(tar_folder, "t/"), storage=bucket.storage), penstock.open(tar_folder)
    )


def test_names_that_urls_would_spoil(bucket: Bucket) -> None:
    names = ["a b.txt", "ä+%20.txt", "q?x=1&y.txt", "#hash.txt", "(x)'\"!.txt", "sub dir/ü.txt"]
    bucket.put({f"odd/{name}": name.encode() for name in names})
    data = penstock.open(f"{bucket.uri}/odd", storage=bucket.storage)
    assert sorted(bytes(sample["text"]) for sample in data) == sorted(name.encode() for name in names)


@pytest.mark.parametrize(("size", "count"), [(2_000, 2_000), (2_000_000, 12)])
def test_tars_are_indexed_with_few_requests_or_few_bytes(
    bucket: Bucket, s3: S3, tmp_path: Path, size: int, count: int
) -> None:
    import io
    import tarfile

    root = tmp_path / "tars"
    root.mkdir()
    for shard in range(2):
        with tarfile.open(root / f"{shard}.tar", "w") as tar:
            for number in range(count):
                info = tarfile.TarInfo(f"{shard}-{number:05}.txt")
                info.size = size
                tar.addfile(info, io.BytesIO(bytes(size)))
    uri = bucket.put_tree(root)
    total = sum(path.stat().st_size for path in root.iterdir())
    try:
        with slowwire(s3.port, folder=tmp_path, rtt_ms=10, rate_mb=50) as wire:
            data = penstock.open(uri, storage={**bucket.storage, "endpoint": wire.endpoint})
            assert len(data) == 2 * count
            stats = wire.stats()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    if size < 10_000:  # dense: a request brings the headers of thousands of samples
        assert stats["requests"] < 30
    else:  # sparse: what lies between the headers is not read
        assert stats["bytes_down"] < total / 3
