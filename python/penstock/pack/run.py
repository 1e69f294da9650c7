"""Packs: plan, write the shards on threads, write the catalog; or goes on where an earlier run was stopped."""

from __future__ import annotations

import errno
import queue
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import CatalogError, DeadlineError, PenstockError, StoreError
from penstock.pack.convert import Fetcher
from penstock.pack.finish import read_summary, write_finish
from penstock.pack.names import CATALOG, WORK_FOLDER, shard_name
from penstock.pack.options import OnError, PackOptions
from penstock.pack.plan import Plan, differences, make_plan
from penstock.pack.shard import ShardIndex, ShardWriter, Stopped
from penstock.pack.source import Source
from penstock.pack.work import WorkFolder, disk_error, free_bytes
from penstock.pack.writer import BUFFER_BYTES, WriteError
from penstock.progress import Progress, format_bytes
from penstock.sources.listing import local_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.dataset import Dataset

_TICK = 0.2
_STOP_WITHIN = 0.7
"""Seconds that an interrupted pack waits for its threads: Ctrl-C ends within one."""


@dataclass(frozen=True)
class PackSummary:
    """What a pack has done."""

    dest: Path
    shards: int
    samples: int
    """In DEST; those that were skipped are not among them."""
    bytes: int
    """Of all shards."""
    skipped: tuple[str, ...]
    """The errors of the samples that were left out."""
    new_shards: int
    """Shards that this run has written; 0 if DEST was complete before."""
    seconds: float
    source_bytes: int
    """Bytes that this run has read."""

    @property
    def was_complete(self) -> bool:
        """DEST was complete before; nothing has been written."""
        return self.new_shards == 0


def pack(
    source: Dataset | str,
    dest: str | Path,
    options: PackOptions | None = None,
    *,
    restart: bool = False,
    quiet: bool = True,
    on_shard: Callable[[int, int], None] | None = None,
) -> PackSummary:
    """Write ``source`` as tar shards and a catalog to the folder ``dest``, or finish what was begun there.

    ``source``: a dataset, or what ``penstock.open`` takes. ``restart``: throw away what an unfinished pack has
    left in ``dest`` first. ``quiet``: show no progress on stderr. ``on_shard(done, all)`` is called on this
    thread when a shard is finished.

    A pack that is killed goes on when it is called again, and ends in the same bytes. Raises DataError for a bad
    sample (unless skipped), StoreError where ``dest`` cannot be written, CatalogError where ``dest`` holds
    something else, DeadlineError when nothing moves for ``options.deadline`` seconds.

        pack("photos/", "packed/", PackOptions(shard_size=64 << 20, shuffle=7))
    """
    options = options or PackOptions()
    begun = time.monotonic()
    data = _open(source, options.where)
    given = Source.of(data)
    folder = _folder(dest, given)
    plan = make_plan(given, options)
    with _work_folder(folder) as work:
        summary = read_summary(folder)
        if summary is not None:
            return _complete(summary, plan, work, begun)
        done = _finished_before(work, plan, options, restart=restart)
        run = _Run(plan, work, options, done, quiet=quiet, on_shard=on_shard)
        run.write()
        indexes = [run.indexes[shard] for shard in range(plan.shards)]
        try:
            samples = write_finish(plan, work, indexes)
        except PenstockError:
            raise
        except OSError as error:
            raise disk_error(folder / CATALOG, error) from error
        work.remove()
    skipped = [*plan.skipped, *(text for index in indexes for text in index.skipped)]
    return PackSummary(
        dest=folder,
        shards=plan.shards,
        samples=samples,
        bytes=sum(index.bytes for index in indexes),
        skipped=tuple(skipped),
        new_shards=plan.shards - len(done),
        seconds=time.monotonic() - begun,
        source_bytes=run.source_bytes,
    )


def _open(source: Dataset | str, where: str | None) -> Dataset:
    if isinstance(source, str):
        import penstock

        source = penstock.open(source)
    return source if where is None else source.where(where)


def _folder(dest: str | Path, source: Source) -> Path:
    path = local_path(str(dest))
    if path is None:
        raise StoreError(errno.ENOTSUP, f"{dest}: packing writes to local disks; give a folder")
    folder = Path(path).resolve()
    root = source.folder
    if root is not None and (folder == root or root in folder.parents):
        raise StoreError(
            errno.EINVAL,
            f"DEST {folder} lies inside the source {root}, whose files it would join: give a folder outside",
        )
    if folder.exists() and not folder.is_dir():
        raise StoreError(errno.ENOTDIR, f"DEST {folder} is a file: give a folder")
    return folder


def _work_folder(folder: Path) -> WorkFolder:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        work = WorkFolder(folder)
        work.path.mkdir(exist_ok=True)
    except OSError as error:
        raise disk_error(folder / WORK_FOLDER, error) from error
    return work


def _complete(summary: dict[str, Any], plan: Plan, work: WorkFolder, begun: float) -> PackSummary:
    told = differences(summary, plan.content_identity())
    work.remove()
    if told:
        raise CatalogError(f"{work.dest} is complete and is another pack: {told}; give another DEST")
    return PackSummary(
        dest=work.dest,
        shards=len(summary["shards"]),
        samples=int(summary["samples"]),
        bytes=sum(int(shard["bytes"]) for shard in summary["shards"]),
        skipped=tuple(summary["skipped"]),
        new_shards=0,
        seconds=time.monotonic() - begun,
        source_bytes=0,
    )


def _finished_before(
    work: WorkFolder, plan: Plan, options: PackOptions, *, restart: bool
) -> dict[int, ShardIndex]:
    """Make ``.pack`` that of this plan; gives the shards that are finished."""
    if restart:
        work.restart()
    theirs = work.read_plan()
    if theirs is None:
        foreign = work.foreign()
        if foreign:
            more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
            raise CatalogError(
                f"{work.dest} holds {foreign[0]}{more}, which this pack has not written and would write over: "
                "give an empty DEST"
            )
    elif work.has_finished_shards():
        told = differences(theirs, plan.identity)
        if told:
            raise CatalogError(
                f"{work.dest} is half packed and cannot be gone on with: {told}; {work.how_to_restart()}"
            )
    if theirs != plan.identity:
        work.write_plan(plan.identity)
    work.clear_parts()
    done = work.finished(plan.shards, plan.fields)
    if options.on_error is OnError.RAISE:
        for shard, index in done.items():
            if index.skipped:
                raise CatalogError(
                    f"{shard_name(shard)} in {work.dest} was packed without {len(index.skipped)} bad samples "
                    f"({index.skipped[0]}): go on with --on-error skip, or {work.how_to_restart()}"
                )
    return done


class _Run:
    """The threads that write the shards which are not there yet."""

    def __init__(
        self,
        plan: Plan,
        work: WorkFolder,
        options: PackOptions,
        done: dict[int, ShardIndex],
        *,
        quiet: bool,
        on_shard: Callable[[int, int], None] | None,
    ) -> None:
        self.indexes = dict(done)
        self._plan = plan
        self._work = work
        self._options = options
        self._on_shard = on_shard
        self._todo = [shard for shard in range(plan.shards) if shard not in done]
        self.source_bytes = sum(plan.source_bytes(shard) for shard in self._todo)
        self._stop = threading.Event()
        self._queue: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[int, ShardIndex | BaseException]] = queue.SimpleQueue()
        self._writers: list[ShardWriter] = []
        self._bar = Progress(
            f"packing to {work.dest.name}",
            total_samples=len(plan.rows),
            total_bytes=plan.source_bytes(),
            done_samples=sum(plan.samples_in(shard) for shard in done),
            done_bytes=sum(plan.source_bytes(shard) for shard in done),
            quiet=quiet,
        )

    def write(self) -> None:
        """Write them all; on any error the others end at their next sample."""
        if not self._todo:
            return
        needed = sum(self._plan.shard_bytes(shard) for shard in self._todo)
        free = free_bytes(self._work.dest)
        if needed > free:
            raise StoreError(
                errno.ENOSPC,
                f"the disk of {self._work.dest} is too full: {len(self._todo)} shards from "
                f"{shard_name(self._todo[0])} on need {format_bytes(needed)} and {format_bytes(free)} are free; "
                "make room, or give another DEST",
            )
        for shard in self._todo:
            self._queue.put(shard)
        count = min(self._options.worker_count(), len(self._todo))
        threads = [
            threading.Thread(target=self._thread, name=f"penstock-pack-{n}", daemon=True)
            for n in range(count)
        ]
        with self._bar:
            try:
                for thread in threads:
                    thread.start()
                self._collect()
            finally:
                self._stop.set()
                until = time.monotonic() + _STOP_WITHIN
                for thread in threads:
                    if thread.ident is not None:
                        thread.join(max(0.0, until - time.monotonic()))

    def _collect(self) -> None:
        waiting = len(self._todo)
        moved, seen = time.monotonic(), (-1, -1)
        while waiting:
            try:
                shard, outcome = self._results.get(timeout=_TICK)
            except queue.Empty:
                pass
            else:
                if isinstance(outcome, BaseException):
                    raise outcome
                self.indexes[shard] = outcome
                waiting -= 1
                moved = time.monotonic()
                if self._on_shard is not None:
                    self._on_shard(len(self.indexes), self._plan.shards)
            self._bar.show()
            reading = self._bar.reading()
            if (reading.samples, reading.bytes) != seen:
                seen, moved = (reading.samples, reading.bytes), time.monotonic()
            elif time.monotonic() - moved > self._options.deadline:
                raise DeadlineError(self._stalled())

    def _stalled(self) -> str:
        items = [item for item in (writer.current for writer in self._writers) if item is not None]
        where = (
            ", ".join(f"sample {item.id} ({item.key})" for item in items) or f"the disk of {self._work.dest}"
        )
        return (
            f"the pack has not moved for {self._options.deadline:g} s; it waits for {where} in {self._plan.source.name}: "
            "see whether that disk answers, then run the same command again to go on"
        )

    def _thread(self) -> None:
        fetcher = Fetcher(self._plan.source.reader())
        writer = ShardWriter(
            fetcher,
            memoryview(bytearray(BUFFER_BYTES)),
            self._stop,
            lambda samples, size: self._bar.advance(samples=samples, bytes=size),
        )
        self._writers.append(writer)
        try:
            while not self._stop.is_set():
                try:
                    shard = self._queue.get_nowait()
                except queue.Empty:
                    return
                try:
                    self._results.put((shard, self._one(shard, writer)))
                except BaseException as error:  # noqa: BLE001 - raised where the results are taken
                    self._results.put((shard, error))
                    return
        finally:
            fetcher.close()

    def _one(self, shard: int, writer: ShardWriter) -> ShardIndex:
        path = self._work.part_path(shard)
        try:
            index = writer.write(self._plan.work(shard), path)
        except WriteError as error:
            target = self._work.dest / shard_name(shard)
            raise disk_error(target, error.error, self._plan.shard_bytes(shard)) from error
        except PenstockError:
            raise
        except OSError as error:
            raise disk_error(path, error, self._plan.shard_bytes(shard)) from error
        if self._stop.is_set():
            with suppress(FileNotFoundError):
                path.unlink()
            raise Stopped
        self._work.keep_shard(shard, index)
        return index
