"""A DEST in an object store: shards are written to a scratch folder on a local disk and uploaded when they are whole.

Below DEST lies ``.pack`` while it is being packed, as in a folder: ``plan.json``, the index of each shard that is written,
``owner.json`` (who is packing), and the id of each upload in parts that is under way, so that a run after a kill can give
it up and nobody pays for parts that belong to nothing. A shard appears whole or not at all, after its index; the catalog
appears last. Nothing is deleted but what a pack has put there itself.

Two packs on one machine are kept apart by a lock on the scratch folder; packs on two machines by ``owner.json``, which its
owner writes anew every `BEAT` seconds, and which counts for nothing when it is older than `STALE`.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from penstock.errors import CatalogError, PenstockError, StoreError
from penstock.pack.names import CATALOG, SUMMARY, WORK_FOLDER, shard_name
from penstock.pack.shard import FieldWork, ShardIndex, Stopped
from penstock.pack.work import WorkFolder, disk_error, free_bytes
from penstock.progress import format_bytes
from penstock.sources import cache
from penstock.sources.far import LISTING_TIMEOUT, FarListing, said
from penstock.sources.listing import redacted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

PART = 16 << 20
"""Bytes of a part of an upload; more where a shard would have too many."""
MOST_PARTS = 10_000
TOGETHER = 4
"""Parts in one call: between calls is looked whether the pack is to stop."""
UPLOAD_TIMEOUT = 300.0
"""Seconds for one call."""
BEAT = 20.0
STALE = 120.0


class FarWork:
    """``.pack`` of one DEST in an object store, held by one process as long as it is open."""

    scratch: Path
    """The folder for shards on their way."""
    threads = 4
    """Shards at the same time, at least: while one is uploaded others are read."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        self._listing = FarListing(uri, options)
        self._store = self._listing.store
        self.dest = redacted(uri.rstrip("/"))
        self.name = self.dest.rpartition("/")[2]
        self.uploaded = 0
        name = hashlib.sha256(cache.identity(self._listing).encode()).hexdigest()[:32]
        self.scratch = cache.cache_folder() / "pack" / name
        self._me = {"host": socket.gethostname(), "pid": os.getpid(), "token": secrets.token_hex(8)}
        self._lock = -1
        self._over = threading.Event()
        self._heart: threading.Thread | None = None

    # Who packs.

    def __enter__(self) -> Self:
        try:
            self.scratch.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.scratch / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._let_go()
            raise self._busy("on this machine") from error
        except OSError as error:
            self._let_go()
            raise disk_error(self.scratch, error) from error
        try:
            self._take()
        except BaseException:
            self._let_go()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._heart is not None:
            self._heart.join(0.2)
            with suppress(PenstockError):
                self._delete("owner.json")
        self._let_go()

    def _let_go(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _busy(self, where: str) -> StoreError:
        return StoreError(
            errno.EBUSY,
            f"another penstock pack {where} is writing to {self.dest}: wait for it, or give another DEST",
        )

    def _take(self) -> None:
        raw = self._get("owner.json")
        with suppress(ValueError, KeyError, TypeError):
            owner = json.loads(raw) if raw is not None else {}
            # Of this machine's own processes the lock tells more.
            if (
                owner
                and owner["host"] != self._me["host"]
                and abs(time.time() - float(owner["time"])) < STALE
            ):
                raise self._busy(
                    f"(process {owner['pid']} on {owner['host']}, {time.time() - owner['time']:.0f} s ago)"
                )

    def _beat(self) -> None:
        while True:
            with suppress(PenstockError):
                self._put("owner.json", json.dumps({**self._me, "time": time.time()}).encode())
            if self._over.wait(BEAT):
                return

    # Small objects.

    def _get(self, name: str) -> bytes | None:
        try:
            return self._listing.read(f"{WORK_FOLDER}/{name}")
        except StoreError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def _put(self, name: str, data: bytes) -> None:
        with said(self.dest):
            self._store.put(f"{WORK_FOLDER}/{name}", data, UPLOAD_TIMEOUT)

    def _delete(self, name: str) -> None:
        with said(self.dest):
            self._store.delete(f"{WORK_FOLDER}/{name}", UPLOAD_TIMEOUT)

    def _working(self) -> list[str]:
        """Names below ``.pack``."""
        with said(self.dest):
            try:
                rows = self._store.list(f"{WORK_FOLDER}/", LISTING_TIMEOUT)
            except FileNotFoundError:  # a web server without such a folder
                return []
        return [key.partition("/")[2] for key, _, _ in rows]

    def _there(self) -> dict[str, int]:
        """Names directly in DEST, and their bytes."""
        with said(self.dest):
            try:
                rows, _ = self._store.level("", LISTING_TIMEOUT)
            except FileNotFoundError:
                return {}
        return {key: size for key, size, _ in rows}

    # What an earlier run has left.

    def read_summary(self) -> dict[str, Any] | None:
        """What ``pack.json`` of a complete DEST says; None where DEST is not complete."""
        if self._listing.stat(CATALOG) is None or self._listing.stat(SUMMARY) is None:
            return None
        return WorkFolder.summary_of(self._listing.read(SUMMARY), f"{self.dest}/{SUMMARY}")

    def read_plan(self) -> dict[str, Any] | None:
        """The identity of the plan that an earlier run followed, if there is one."""
        raw = self._get("plan.json")
        where = f"{self.dest}/{WORK_FOLDER}/plan.json"
        return None if raw is None else WorkFolder.plan_of(raw, where)

    @staticmethod
    def how_to_restart() -> str:
        """What to do with a half-packed DEST that cannot be gone on with."""
        return WorkFolder.how_to_restart()

    def write_plan(self, identity: dict[str, Any]) -> None:
        """Remember the plan."""
        self._put("plan.json", json.dumps(identity, indent=1, sort_keys=True).encode())

    def has_finished_shards(self) -> bool:
        """Whether an earlier run got anywhere."""
        return any(name.endswith(".tar.parquet") for name in self._working())

    def finished(self, shards: int, fields: tuple[FieldWork, ...]) -> dict[int, ShardIndex]:
        """The shards that are whole."""
        there, working = self._there(), set(self._working())
        names = {shard: f"{shard_name(shard)}.parquet" for shard in range(shards)}
        known = [shard for shard, name in names.items() if name in working and shard_name(shard) in there]
        raw = self._listing.read_many([(f"{WORK_FOLDER}/{names[shard]}", 0, None) for shard in known])
        done: dict[int, ShardIndex] = {}
        for shard, data in zip(known, raw, strict=True):
            path = self.scratch / names[shard]
            path.write_bytes(data)
            index = ShardIndex.load(path, fields)
            path.unlink()
            if there[shard_name(shard)] == index.bytes:
                done[shard] = index
        return done

    def clear_parts(self) -> None:
        """Give up the uploads of a killed run, and begin to say that this one is at work."""
        for path in self.scratch.iterdir():
            if path.name != "lock":
                path.unlink(missing_ok=True)
        for name in self._working():
            if name.endswith(".upload"):
                upload = self._get(name)
                if upload:
                    with said(self.dest):
                        self._store.abort_upload(
                            name.removesuffix(".upload"), upload.decode(), UPLOAD_TIMEOUT
                        )
                self._delete(name)
        if self._heart is None:
            self._heart = threading.Thread(target=self._beat, name="penstock-pack-beat", daemon=True)
            self._heart.start()

    def restart(self) -> None:
        """Remove what an unfinished pack has written so far: its own objects, nothing else."""
        if self._get("plan.json") is None or self._listing.stat(CATALOG) is not None:
            return
        names = self._working()
        with said(self.dest):
            self._store.delete(SUMMARY, UPLOAD_TIMEOUT)
            for name in names:
                if name.endswith(".tar.parquet"):
                    self._store.delete(name.removesuffix(".parquet"), UPLOAD_TIMEOUT)
        for name in names:
            if not name.endswith(".upload"):
                self._delete(name)

    def foreign(self) -> list[str]:
        """Names in DEST that pack would write over and did not write."""
        there = self._there()
        names = [name for name in (CATALOG, SUMMARY) if name in there]
        return names + sorted(n for n in there if n.startswith("shard-") and n.endswith(".tar"))

    # Writing.

    def check_room(self, shards: Sequence[int], bytes_of: Sequence[int], threads: int) -> None:
        """Raise StoreError where the scratch folder cannot hold the shards on their way."""
        needed, free = max(bytes_of, default=0) * min(threads, len(shards)), free_bytes(self.scratch)
        if needed > free:
            raise StoreError(
                errno.ENOSPC,
                f"the disk of the scratch folder {self.scratch} is too full: {format_bytes(needed)} are needed and "
                f"{format_bytes(free)} are free; make room, or set PENSTOCK_CACHE to a folder that has some",
            )

    def part_path(self, shard: int) -> Path:
        """Where a shard is written until it is whole."""
        return self.scratch / f"{shard_name(shard)}.part"

    def keep_shard(self, shard: int, index: ShardIndex, stop: threading.Event) -> None:
        """Upload the index of a written shard, then the shard."""
        name, path = shard_name(shard), self.part_path(shard)
        whole = self.scratch / f"{name}.parquet.part"
        try:
            index.save(whole)
            self._put(f"{name}.parquet", whole.read_bytes())
            self._upload(name, path, stop)
        except (PenstockError, Stopped):
            raise
        except OSError as error:
            raise disk_error(path, error) from error
        finally:
            whole.unlink(missing_ok=True)
            path.unlink(missing_ok=True)

    def _upload(self, key: str, path: Path, stop: threading.Event) -> None:
        size = path.stat().st_size
        part = max(PART, -(-size // MOST_PARTS))
        with said(f"{self.dest}/{key}"):
            if size <= part or not self._store.takes_parts:
                self._store.put(key, path.read_bytes(), max(UPLOAD_TIMEOUT, size / 1e6))
                self.uploaded += size
                return
            upload = self._store.begin_upload(key)
        try:
            self._put(f"{key}.upload", upload.encode())
            self._send(key, upload, path, size, part, stop)
        except BaseException:
            with suppress(PenstockError, OSError):
                self._store.abort_upload(key, upload, 10.0)
                self._delete(f"{key}.upload")
            raise
        self._delete(f"{key}.upload")

    def _send(self, key: str, upload: str, path: Path, size: int, part: int, stop: threading.Event) -> None:
        parts: list[str] = []
        count = -(-size // part)
        while len(parts) < count:
            if stop.is_set():
                raise Stopped
            some = min(TOGETHER, count - len(parts))
            with said(f"{self.dest}/{key}"):
                parts += self._store.put_parts(key, upload, str(path), len(parts), some, part, UPLOAD_TIMEOUT)
            self.uploaded += some * part
        with said(f"{self.dest}/{key}"):
            self._store.end_upload(key, upload, parts, size, UPLOAD_TIMEOUT)

    def write_summary(self, data: bytes) -> None:
        """Write ``pack.json``."""
        with said(self.dest):
            self._store.put(SUMMARY, data, UPLOAD_TIMEOUT)

    def catalog_path(self) -> Path:
        """Where the catalog is written until it is whole."""
        return self.scratch / CATALOG

    def keep_catalog(self) -> None:
        """Upload the catalog: with it the pack is complete."""
        self._upload(CATALOG, self.catalog_path(), threading.Event())

    def remove(self) -> None:
        """Take ``.pack`` and the scratch folder away: the pack is complete."""
        self._over.set()
        if self._heart is not None:
            self._heart.join(UPLOAD_TIMEOUT)
            self._heart = None
        for name in sorted(self._working(), key=lambda name: name == "plan.json"):
            self._delete(name)
        shutil.rmtree(self.scratch, ignore_errors=True)


def far_dest(uri: str, options: Mapping[str, str]) -> FarWork:
    """The work folder of a DEST in an object store."""
    if uri.partition("://")[2].strip("/") == "":
        raise CatalogError(f"{redacted(uri)} names no bucket: give s3://bucket/prefix")
    return FarWork(uri, options)
