"""Packing from and to object stores: the same bytes as on a disk, also after kill −9."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import penstock
from penstock import _native
from penstock.errors import CatalogError, StoreError
from penstock.pack import PackFormat, PackOptions, pack, verify

if TYPE_CHECKING:
    from tests.servers import S3, Static

    from .conftest import Bucket

SMALL = PackOptions(shard_size=32 << 10, threads=2, shuffle=1)


def digests(bucket: Bucket, prefix: str) -> dict[str, str]:
    store = bucket.store(prefix)
    return {key: hashlib.sha256(store.read(key)).hexdigest() for key, _, _ in store.list()}


def tree(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file()
    }


def penstock_command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", "from penstock.cli import main; main()", *map(str, arguments)]


def test_from_a_folder_to_a_bucket(bucket: Bucket, picture_folder: Path, tmp_path: Path) -> None:
    pack(str(picture_folder), tmp_path / "near", SMALL)
    done = pack(str(picture_folder), f"{bucket.uri}/out", SMALL, dest_storage=bucket.storage)
    assert digests(bucket, "out") == tree(tmp_path / "near")
    assert done.shards == len(list((tmp_path / "near").glob("shard-*.tar")))
    assert str(done.dest) == f"{bucket.uri}/out"
    again = pack(str(picture_folder), f"{bucket.uri}/out", SMALL, dest_storage=bucket.storage)
    assert again.was_complete
    assert verify(f"{bucket.uri}/out", storage=bucket.storage).bad == ()


@pytest.mark.parametrize("kind", ["pictures", "tars", "packed"])
def test_from_a_bucket_to_a_folder_and_to_a_bucket(
    bucket: Bucket, picture_folder: Path, tar_folder: Path, tmp_path: Path, kind: str
) -> None:
    root = {"pictures": picture_folder, "tars": tar_folder, "packed": tmp_path / "first"}[kind]
    if kind == "packed":
        pack(str(picture_folder), root, PackOptions(shard_size=50 << 10))
    uri = bucket.put_tree(root, "source/")
    pack(str(root), tmp_path / "near", SMALL)
    pack(uri, tmp_path / "far", SMALL, storage=bucket.storage)
    shards = {name: digest for name, digest in tree(tmp_path / "near").items() if name.endswith(".tar")}
    assert {n: d for n, d in tree(tmp_path / "far").items() if n.endswith(".tar")} == shards
    pack(uri, f"{bucket.uri}/out", SMALL, storage=bucket.storage, dest_storage=bucket.storage)
    assert {n: d for n, d in digests(bucket, "out").items() if n.endswith(".tar")} == shards
    one, two = penstock.open(tmp_path / "near"), penstock.open(f"{bucket.uri}/out", storage=bucket.storage)
    assert one.fingerprint() == two.fingerprint()


def test_raw_rows_from_a_bucket(bucket: Bucket, array_folder: Path, tmp_path: Path) -> None:
    uri = bucket.put_tree(array_folder, "arrays/")
    options = PackOptions(shard_size=4 << 10, format=PackFormat.RAW)
    pack(uri, tmp_path / "raw", options, storage=bucket.storage)
    data = penstock.open(tmp_path / "raw")
    assert [float(sample["array"][0, 0]) for sample in data] == list(range(100))


def test_large_shards_go_in_parts(bucket: Bucket, tmp_path: Path) -> None:
    root = tmp_path / "large"
    root.mkdir()
    rng = np.random.default_rng(0)
    for number in range(6):
        np.save(root / f"{number}.npy", rng.integers(0, 255, (7, 1 << 20), dtype=np.uint8))
    pack(str(root), f"{bucket.uri}/out", dest_storage=bucket.storage)
    sizes = {key: (size, version) for key, size, version in bucket.store("out").list()}
    assert sizes["shard-000000.tar"][0] > 2 * (16 << 20)
    assert sizes["shard-000000.tar"][1].strip('"').endswith("-3"), "not in parts"
    assert verify(f"{bucket.uri}/out", storage=bucket.storage).bad == ()
    assert set(sizes) == {"shard-000000.tar", "catalog.parquet", "pack.json"}


def test_damage_is_found(bucket: Bucket, picture_folder: Path) -> None:
    pack(str(picture_folder), f"{bucket.uri}/out", SMALL, dest_storage=bucket.storage)
    store = bucket.store("out")
    data = bytearray(store.read("shard-000001.tar"))
    data[700] ^= 1
    store.put("shard-000001.tar", bytes(data))
    (bad,) = verify(f"{bucket.uri}/out", storage=bucket.storage).bad
    assert "shard-000001.tar" in bad
    assert "crc32c" in bad


def test_what_is_there_is_not_written_over(bucket: Bucket, picture_folder: Path) -> None:
    bucket.put({"out/shard-000000.tar": b"mine"})
    with pytest.raises(CatalogError, match=r"holds shard-000000.tar, which this pack has not written"):
        pack(str(picture_folder), f"{bucket.uri}/out", SMALL, dest_storage=bucket.storage)
    assert bucket.store("out").read("shard-000000.tar") == b"mine"
    bucket.put({"photos/a/0.jpg": b"x"})
    with pytest.raises(StoreError, match="lies inside the source"):
        pack(
            f"{bucket.uri}/photos",
            f"{bucket.uri}/photos/packed",
            storage=bucket.storage,
            dest_storage=bucket.storage,
        )


def test_another_machine_that_packs_there_is_noticed(bucket: Bucket, picture_folder: Path) -> None:
    owner = {"host": "elsewhere", "pid": 7, "token": "x", "time": time.time()}
    bucket.put({"out/.pack/owner.json": json.dumps(owner).encode()})
    with pytest.raises(StoreError, match="process 7 on elsewhere"):
        pack(str(picture_folder), f"{bucket.uri}/out", SMALL, dest_storage=bucket.storage)
    owner["time"] = time.time() - 3600
    bucket.put({"out/.pack/owner.json": json.dumps(owner).encode()})
    pack(str(picture_folder), f"{bucket.uri}/out", SMALL, dest_storage=bucket.storage)
    assert ".pack/owner.json" not in digests(bucket, "out")


def parts_left(s3: S3, bucket: Bucket) -> int:
    """Parts of uploads that were neither ended nor given up, as the server's own folders show."""

    def entries(path: str) -> list[str]:
        address = f"http://127.0.0.1:{s3.filer_port}/buckets/{bucket.name.partition('/')[0]}/.uploads/{path}?limit=1000"
        call = urllib.request.Request(address, headers={"Accept": "application/json"})
        try:
            with urllib.request.urlopen(call, timeout=10) as answer:
                found = json.load(answer).get("Entries") or []
        except urllib.error.HTTPError as error:
            error.close()
            assert error.code == 404
            return []
        return [entry["FullPath"].rpartition("/")[2] for entry in found]

    return sum(len(entries(f"{upload}/")) for upload in entries(""))


def killed_at_moments(s3: S3, bucket: Bucket, tmp_path: Path, every: int) -> None:
    root = tmp_path / "source"
    root.mkdir()
    rng = np.random.default_rng(0)
    for number in range(9):
        (root / f"{number}.txt").write_bytes(rng.bytes(3 << 20))
    found = subprocess.run(
        [sys.executable, Path(__file__).parent / "killed.py", root, bucket.uri, str(every)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, **s3.environment()},
    )
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert told["wrong"] == []
    assert told["whole"] == 3 + 2
    assert told["moments"] * every > 20
    assert told["with_shards"]
    # An upload that was begun in the very instant of the kill may be left, without a part.
    assert parts_left(s3, bucket) == 0, "parts of killed uploads are left"


def test_killed_at_every_fifth_moment_it_ends_in_the_same_bytes(
    s3: S3, bucket: Bucket, tmp_path: Path
) -> None:
    killed_at_moments(s3, bucket, tmp_path, every=5)


@pytest.mark.slow
def test_killed_at_every_moment_it_ends_in_the_same_bytes(s3: S3, bucket: Bucket, tmp_path: Path) -> None:
    killed_at_moments(s3, bucket, tmp_path, every=1)


def test_the_command_line(s3: S3, bucket: Bucket, picture_folder: Path, tmp_path: Path) -> None:
    uri = bucket.put_tree(picture_folder, "photos/")
    dest = f"{bucket.uri}/out"
    environment = {**os.environ, **s3.environment()}

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            penstock_command(*arguments),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment,
        )

    packed = run("pack", uri, dest, "--shard-size", "32KiB", "--verify", "--quiet")
    assert packed.returncode == 0, packed.stderr
    assert "60 samples" in packed.stdout
    assert "every checksum is right" in packed.stdout
    shown = run("inspect", dest)
    assert shown.returncode == 0, shown.stderr
    assert "60" in shown.stdout
    told = json.loads(run("inspect", uri, "--json").stdout)
    assert told["samples"] == 60
    assert told["histogram"] == {"ant": 20, "bee": 20, "cat": 20}
    assert told["bytes"] == sum(path.stat().st_size for path in picture_folder.rglob("*.jpg"))
    del environment["AWS_ENDPOINT_URL"]
    by_query = run("inspect", f"{dest}?endpoint={s3.endpoint}")
    assert by_query.returncode == 0, by_query.stderr
    by_option = run("inspect", dest, "--storage", f"endpoint={s3.endpoint}")
    assert by_option.returncode == 0, by_option.stderr
    for result in (packed, shown, by_query, by_option):
        assert s3.secret_key not in result.stdout + result.stderr


def test_to_a_web_server_that_takes_puts(web, picture_folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "www"
    root.mkdir()
    (root / "out").mkdir()
    server: Static = web(root, listing="json", writable=True)
    pack(str(picture_folder), tmp_path / "near", SMALL)
    pack(str(picture_folder), f"{server.endpoint}/out", SMALL)
    assert tree(root / "out") == tree(tmp_path / "near")
    assert verify(f"{server.endpoint}/out").bad == ()
    assert isinstance(_native.Store.object(server.endpoint, {}).list(), list)
