"""The folder ``DEST/.pack``: who is packing, by which plan, and what is finished.

A shard is finished when its index is here and its file has its name. Files appear under their names only
when they are whole and on the disk, so a kill at any moment leaves nothing but files to throw away.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from typing import TYPE_CHECKING, Any, Self

from penstock.errors import CatalogError, StoreError
from penstock.pack.names import CATALOG, SUMMARY, WORK_FOLDER, shard_name
from penstock.pack.shard import FieldWork, ShardIndex
from penstock.progress import format_bytes

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType


def disk_error(path: Path, error: OSError, needed: int | None = None) -> StoreError:
    """The error for a file of DEST that cannot be written, with what was needed and what is free."""
    code = error.errno or errno.EIO
    reason = error.strerror or str(error)
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        want = f"{format_bytes(needed)} needed, " if needed is not None else ""
        limit = {
            errno.ENOSPC: "the disk is full",
            errno.EDQUOT: "the quota is used up",
            errno.EFBIG: "the largest file that this process may write is smaller",
        }[code]
        reason = (
            f"{limit} ({want}{format_bytes(free_bytes(path.parent))} free there); "
            "what is finished stays: make room and run the same command again to go on"
        )
    return StoreError(code, f"cannot write {path}: {reason}")


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write to the file system of ``folder``."""
    while not folder.exists():
        folder = folder.parent
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


class WorkFolder:
    """``.pack`` of one DEST, held by one process as long as it is open."""

    threads = 1
    """Shards at the same time, at least."""
    uploaded = 0
    """Bytes; of other places than folders."""

    def __init__(self, dest: Path) -> None:
        self.dest = dest
        self.name = dest.name
        self.path = dest / WORK_FOLDER
        self._lock = -1

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _take_lock(self) -> None:
        path = self.path / "lock"
        while True:
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:  # who held it finished and took the folder away
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.exists() and os.fstat(fd).st_ino == path.stat().st_ino:
                    self._lock = fd
                    return
            except FileNotFoundError:
                pass
            except BlockingIOError as error:
                os.close(fd)
                raise StoreError(
                    errno.EBUSY,
                    f"another penstock pack is writing to {self.dest}: wait for it, or give another DEST",
                ) from error
            os.close(fd)

    @property
    def plan_path(self) -> Path:
        """Where the identity of the plan stands."""
        return self.path / "plan.json"

    def index_path(self, shard: int) -> Path:
        """Where the index of a shard stands."""
        return self.path / f"{shard_name(shard)}.parquet"

    def part_path(self, shard: int) -> Path:
        """Where a shard is written until it is whole."""
        return self.path / f"{shard_name(shard)}.part"

    def read_plan(self) -> dict[str, Any] | None:
        """The identity of the plan that an earlier run followed, if there is one."""
        try:
            raw = self.plan_path.read_bytes()
        except FileNotFoundError:
            return None
        return self.plan_of(raw, str(self.plan_path))

    @classmethod
    def plan_of(cls, raw: bytes, where: str) -> dict[str, Any]:
        """The plan that a plan.json says; CatalogError where it says none."""
        try:
            plan = json.loads(raw)
        except ValueError as error:
            raise CatalogError(f"{where} is damaged ({error}); {cls.how_to_restart()}") from error
        if not isinstance(plan, dict):
            raise CatalogError(f"{where} is no plan; {cls.how_to_restart()}")
        return plan

    def read_summary(self) -> dict[str, Any] | None:
        """What ``pack.json`` of a complete DEST says; None where DEST is not complete.

        Raises CatalogError where there is a catalog that pack has not written.
        """
        path = self.dest / SUMMARY
        if not (self.dest / CATALOG).exists() or not path.exists():
            return None
        return self.summary_of(path.read_bytes(), str(path))

    @staticmethod
    def summary_of(raw: bytes, where: str) -> dict[str, Any]:
        """The summary that a pack.json says; CatalogError where it says none."""
        try:
            summary = json.loads(raw)
        except ValueError as error:
            raise CatalogError(f"{where} is damaged ({error}): give another DEST") from error
        if not isinstance(summary, dict) or not {"shards", "samples", "skipped"} <= set(summary):
            raise CatalogError(f"{where} lacks what a finished pack writes: give another DEST")
        return summary

    @staticmethod
    def how_to_restart() -> str:
        """What to do with a half-packed DEST that cannot be gone on with."""
        return "give another DEST, or --restart to throw away what is half packed there and begin anew"

    def write_plan(self, identity: dict[str, Any]) -> None:
        """Remember the plan."""
        write_whole(self.plan_path, json.dumps(identity, indent=1, sort_keys=True).encode())

    def has_finished_shards(self) -> bool:
        """Whether an earlier run got anywhere."""
        return next(self.path.glob("shard-*.tar.parquet"), None) is not None

    def finished(self, shards: int, fields: tuple[FieldWork, ...]) -> dict[int, ShardIndex]:
        """The shards that are whole."""
        done: dict[int, ShardIndex] = {}
        for shard in range(shards):
            path = self.index_path(shard)
            if not path.exists():
                continue
            index = ShardIndex.load(path, fields)
            try:
                size = (self.dest / shard_name(shard)).stat().st_size
            except FileNotFoundError:
                continue
            if size == index.bytes:
                done[shard] = index
        return done

    def check_room(self, shards: Sequence[int], bytes_of: Sequence[int], threads: int) -> None:  # noqa: ARG002
        """Raise StoreError where the disk cannot hold these shards."""
        needed, free = sum(bytes_of), free_bytes(self.dest)
        if needed > free:
            raise StoreError(
                errno.ENOSPC,
                f"the disk of {self.dest} is too full: {len(shards)} shards from "
                f"{shard_name(shards[0])} on need {format_bytes(needed)} and {format_bytes(free)} are free; "
                "make room, or give another DEST",
            )

    def keep_shard(self, shard: int, index: ShardIndex, stop: threading.Event) -> None:  # noqa: ARG002
        """Keep the index of a written shard, then give the shard its name: each on the disk before the next.

        In this order every shard that stands in DEST has an index that says whose it is.
        """
        path = self.index_path(shard)
        part = path.with_name(f"{path.name}.part")
        try:
            index.save(part)
            _sync_file(part)
            part.replace(path)
            sync_folder(self.path)
            self.part_path(shard).replace(self.dest / shard_name(shard))
            sync_folder(self.dest)
        except OSError as error:
            part.unlink(missing_ok=True)
            self.part_path(shard).unlink(missing_ok=True)
            raise disk_error(path, error) from error

    def write_summary(self, data: bytes) -> None:
        """Write ``pack.json``."""
        write_whole(self.dest / SUMMARY, data, self.path / f"{SUMMARY}.part")

    def catalog_path(self) -> Path:
        """Where the catalog is written until it is whole."""
        return self.path / CATALOG

    def keep_catalog(self) -> None:
        """Give the catalog its name: with it the pack is complete."""
        self.catalog_path().replace(self.dest / CATALOG)
        sync_folder(self.dest)

    def clear_parts(self) -> None:
        """Remove what a killed run left half written."""
        for part in self.path.glob("*.part"):
            part.unlink(missing_ok=True)

    def restart(self) -> None:
        """Remove what an unfinished pack has written so far: its own files, nothing else."""
        if not self.plan_path.exists() or (self.dest / CATALOG).exists():
            return
        (self.dest / SUMMARY).unlink(missing_ok=True)
        for index in self.path.glob("shard-*.tar.parquet"):
            (self.dest / index.name.removesuffix(".parquet")).unlink(missing_ok=True)
            index.unlink()
        self.plan_path.unlink(missing_ok=True)
        self.clear_parts()

    def remove(self) -> None:
        """Take the folder away: the pack is complete."""
        for path in sorted(self.path.iterdir(), key=lambda path: path.name == "lock"):
            path.unlink(missing_ok=True)
        self.path.rmdir()
        sync_folder(self.dest)

    def foreign(self) -> list[str]:
        """Names in DEST that pack would write over and did not write."""
        names = [name for name in (CATALOG, SUMMARY) if (self.dest / name).exists()]
        return names + sorted(path.name for path in self.dest.glob("shard-*.tar"))


def write_whole(path: Path, data: bytes, part: Path | None = None) -> None:
    """Write a small file so that it is there whole, on the disk, or not at all; ``part`` is its name until then."""
    part = part or path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(data)
        _sync_file(part)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise disk_error(path, error, len(data)) from error
    sync_folder(path.parent)


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    _sync_file(path)
