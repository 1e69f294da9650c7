"""A pack that is stopped, by whatever, goes on and ends in the same bytes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pack_makers import array_folder, penstock, photo_folder, run_penstock, tree

from penstock.errors import CatalogError, StoreError
from penstock.pack import OnError, PackOptions, pack, run, verify

if TYPE_CHECKING:
    from penstock.pack.shard import ShardIndex, ShardWork

SMALL = PackOptions(shard_size=32 << 10, threads=2)


class Interrupted(Exception):
    """Raised by a test in the middle of a pack."""


def stop_after(shards: int):
    """An ``on_shard`` that ends the pack from outside."""

    def on_shard(done: int, all: int) -> None:
        if done >= shards:
            raise Interrupted

    return on_shard


def half_pack(source: Path, dest: Path, options: PackOptions = SMALL, shards: int = 2) -> None:
    with pytest.raises(Interrupted):
        pack(str(source), dest, options, on_shard=stop_after(shards))


@pytest.mark.parametrize("mode", ["once", "twice", "raw"])
def test_killed_at_every_seventh_moment_it_goes_on_to_the_same_bytes(tmp_path: Path, mode: str) -> None:
    killed_at_moments(tmp_path, mode, every=7)


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("mode", ["once", "twice", "raw"])
def test_killed_at_every_moment_it_goes_on_to_the_same_bytes(tmp_path: Path, mode: str) -> None:
    killed_at_moments(tmp_path, mode, every=1, timeout=900)


def killed_at_moments(tmp_path: Path, mode: str, every: int, timeout: float = 110) -> None:
    source = tmp_path / "src"
    if mode == "raw":
        array_folder(source, count=200, shape=(10, 10))
    else:
        photo_folder(source, classes=2, each=10)
    found = subprocess.run(
        [sys.executable, Path(__file__).parent / "killed.py", source, tmp_path, mode, str(every)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert told["wrong"] == []
    assert told["shards"] >= 3
    assert told["moments"] * every > 10 * told["shards"]
    assert told["with_files"] * every > 10


def test_a_process_killed_from_outside_goes_on(tmp_path: Path) -> None:
    source = photo_folder(tmp_path / "src", each=40)
    pack(str(source), tmp_path / "whole", SMALL)
    dest = tmp_path / "dst"
    arguments = ("pack", source, dest, "--shard-size", SMALL.shard_size, "--threads", 1, "--quiet")
    kills = 0
    for shards in (1, 4, 9):
        process = subprocess.Popen(penstock(*arguments))
        deadline = time.monotonic() + 30
        while process.poll() is None and len(list(dest.glob("shard-*.tar"))) < shards:
            assert time.monotonic() < deadline
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait(10)
    assert run_penstock(*arguments).returncode == 0
    assert kills
    assert tree(dest) == tree(tmp_path / "whole")


def test_only_what_is_missing_is_written_again(tmp_path: Path) -> None:
    source = photo_folder(tmp_path / "src")
    dest = tmp_path / "dst"
    half_pack(source, dest)
    before = {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in dest.glob("shard-*.tar")}
    assert 2 <= len(before) < 8
    done = pack(str(source), dest, SMALL)
    assert done.new_shards == done.shards - len(before)
    for name, was in before.items():
        assert ((dest / name).stat().st_ino, (dest / name).stat().st_mtime_ns) == was
    assert verify(dest).bad == ()


def test_a_finished_shard_that_was_damaged_in_size_is_written_again(tmp_path: Path) -> None:
    source = photo_folder(tmp_path / "src")
    pack(str(source), tmp_path / "whole", SMALL)
    half_pack(source, tmp_path / "dst")
    shard = next(iter((tmp_path / "dst").glob("shard-*.tar")))
    os.truncate(shard, 100)
    pack(str(source), tmp_path / "dst", SMALL)
    assert tree(tmp_path / "dst") == tree(tmp_path / "whole")


class TestAnotherPlan:
    @pytest.mark.parametrize(
        ("options", "told"),
        [
            (PackOptions(shard_size=33 << 10), "--shard-size was 32,768 bytes and is 33,792 bytes"),
            (PackOptions(shard_size=32 << 10, shuffle=1), "--shuffle was None and is 1"),
        ],
    )
    def test_other_settings_are_an_error_that_says_which(self, tmp_path: Path, options, told: str) -> None:
        source = photo_folder(tmp_path / "src")
        half_pack(source, tmp_path / "dst")
        before = tree(tmp_path / "dst")
        with pytest.raises(CatalogError, match="is half packed and cannot be gone on with") as caught:
            pack(str(source), tmp_path / "dst", options)
        assert told in str(caught.value)
        assert "--restart" in str(caught.value)
        assert tree(tmp_path / "dst") == before

    def test_another_source_is_an_error_that_says_so(self, tmp_path: Path) -> None:
        half_pack(photo_folder(tmp_path / "src"), tmp_path / "dst")
        with pytest.raises(CatalogError, match=r"the source was file://.*/src/ and is file://.*/other/"):
            pack(str(photo_folder(tmp_path / "other")), tmp_path / "dst", SMALL)

    def test_a_source_written_to_since_is_an_error(self, tmp_path: Path) -> None:
        source = photo_folder(tmp_path / "src")
        half_pack(source, tmp_path / "dst")
        target = source / "class-2" / "0019.jpg"
        target.write_bytes(target.read_bytes()[::-1])  # the same size
        os.utime(target, ns=(0, 0))
        with pytest.raises(CatalogError, match="written to"):
            pack(str(source), tmp_path / "dst", SMALL)
        target.unlink()
        with pytest.raises(CatalogError, match="the source had 60 samples and has 59"):
            pack(str(source), tmp_path / "dst", SMALL)

    def test_restart_throws_away_what_pack_has_written_and_nothing_else(self, tmp_path: Path) -> None:
        source = photo_folder(tmp_path / "src")
        other = PackOptions(shard_size=50_000)
        pack(str(source), tmp_path / "whole", other)
        half_pack(source, tmp_path / "dst")
        (tmp_path / "dst" / "notes.txt").write_text("the user's")
        pack(str(source), tmp_path / "dst", other, restart=True)
        found = tree(tmp_path / "dst")
        assert found.pop("notes.txt")
        assert found == tree(tmp_path / "whole")

    def test_nothing_is_lost_where_no_shard_was_finished(self, tmp_path: Path) -> None:
        source = photo_folder(tmp_path / "src")
        (tmp_path / "dst" / ".pack").mkdir(parents=True)
        (tmp_path / "dst" / ".pack" / "plan.json").write_text('{"version": 1}')
        pack(str(source), tmp_path / "dst", SMALL)
        assert verify(tmp_path / "dst").bad == ()

    def test_after_a_bad_sample_skipping_goes_on(self, tmp_path: Path) -> None:
        source = photo_folder(tmp_path / "src")
        (source / "class-2" / "0010.jpg").write_bytes(b"")
        with pytest.raises(Exception, match="empty"):
            pack(str(source), tmp_path / "dst", PackOptions(shard_size=32 << 10, threads=1))
        skip = PackOptions(shard_size=32 << 10, threads=1, on_error=OnError.SKIP)
        done = pack(str(source), tmp_path / "dst", skip)
        assert done.new_shards < done.shards
        assert done.samples == 59
        pack(str(source), tmp_path / "whole", skip)
        assert tree(tmp_path / "dst") == tree(tmp_path / "whole")

    def test_a_pack_with_skipped_samples_is_not_gone_on_with_as_if_there_were_none(
        self, tmp_path: Path
    ) -> None:
        source = photo_folder(tmp_path / "src")
        (source / "class-0" / "0003.jpg").write_bytes(b"")
        skip = PackOptions(shard_size=32 << 10, threads=1, on_error=OnError.SKIP)
        half_pack(source, tmp_path / "dst", skip)
        with pytest.raises(CatalogError, match=r"without 1 bad samples.*--on-error skip"):
            pack(str(source), tmp_path / "dst", PackOptions(shard_size=32 << 10, threads=1))

    @pytest.mark.parametrize("text", ["{", "[]", ""])
    def test_a_damaged_plan_is_an_error_that_says_what_to_do(self, tmp_path: Path, text: str) -> None:
        source = photo_folder(tmp_path / "src")
        half_pack(source, tmp_path / "dst")
        (tmp_path / "dst" / ".pack" / "plan.json").write_text(text)
        with pytest.raises(CatalogError, match=r"plan\.json.*--restart"):
            pack(str(source), tmp_path / "dst", SMALL)

    def test_a_damaged_index_is_an_error_that_says_what_to_do(self, tmp_path: Path) -> None:
        source = photo_folder(tmp_path / "src")
        half_pack(source, tmp_path / "dst")
        index = next(iter((tmp_path / "dst" / ".pack").glob("shard-*.parquet")))
        os.truncate(index, index.stat().st_size // 2)
        with pytest.raises(CatalogError, match=r"no index of a shard.*delete it"):
            pack(str(source), tmp_path / "dst", SMALL)
        index.unlink()
        pack(str(source), tmp_path / "dst", SMALL)
        assert verify(tmp_path / "dst").bad == ()


@contextlib.contextmanager
def small_disk(path: Path, size: int):
    """A real file system of ``size`` bytes; the test is left out where none may be mounted."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


class TestFullDisk:
    def test_too_small_a_disk_is_said_before_anything_is_written(self, tmp_path: Path) -> None:
        source = photo_folder(tmp_path / "src")
        with small_disk(tmp_path / "disk", 128 << 10) as disk:
            with pytest.raises(
                StoreError, match=r"too full: .* shards .* need 2\d\d\.\d KiB and \d+\.\d KiB are free"
            ) as caught:
                pack(str(source), disk / "dst", SMALL)
            assert caught.value.errno == errno.ENOSPC
            assert not list((disk / "dst").glob("shard-*"))

    def test_a_disk_that_fills_up_names_shard_and_bytes_and_goes_on_when_there_is_room(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = photo_folder(tmp_path / "src")
        one_thread = PackOptions(shard_size=32 << 10, threads=1)
        pack(str(source), tmp_path / "whole", one_thread)
        with small_disk(tmp_path / "disk", 2 << 20) as disk:
            ballast = disk / "ballast"

            class AnotherFillsTheDisk(run.ShardWriter):
                def write(self, work: ShardWork, path: Path) -> ShardIndex:
                    if work.number == 2:
                        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                            while True:
                                file.write(bytes(4096))
                    return super().write(work, path)

            monkeypatch.setattr(run, "ShardWriter", AnotherFillsTheDisk)

            with pytest.raises(
                StoreError,
                match=r"shard-000002\.tar.*: the disk is full \(.*needed, .* free there\).*run the same command",
            ) as caught:
                pack(str(source), disk / "dst", one_thread)
            assert caught.value.errno == errno.ENOSPC
            assert list((disk / "dst").rglob("*.part")) == []
            monkeypatch.undo()
            ballast.unlink()
            done = pack(str(source), disk / "dst", one_thread)
            assert done.new_shards == done.shards - 2
            assert tree(disk / "dst") == tree(tmp_path / "whole")

    def test_a_limit_on_file_sizes_names_the_shard(self, tmp_path: Path) -> None:
        source = photo_folder(tmp_path / "src")
        limited = subprocess.run(
            penstock("pack", source, tmp_path / "dst", "--shard-size", "100KiB"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10)),
        )
        assert limited.returncode == 1
        assert "shard-00000" in limited.stderr
        assert "largest file" in limited.stderr
        assert "Traceback" not in limited.stderr
        assert list((tmp_path / "dst").rglob("*.part")) == []
        pack(str(source), tmp_path / "dst", PackOptions(shard_size=100 << 10))
        assert verify(tmp_path / "dst").bad == ()

    def test_a_folder_that_may_not_be_written_to(self, tmp_path: Path) -> None:
        source = photo_folder(tmp_path / "src", each=2)
        with small_disk(tmp_path / "disk", 1 << 20) as disk:
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
            with pytest.raises(StoreError, match="Read-only file system"):
                pack(str(source), disk / "dst")
