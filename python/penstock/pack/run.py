"""Packs: plan, write the shards on threads, write the catalog; or goes on where an earlier run was stopped."""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.errors import CatalogError, DeadlineError, PenstockError, StoreError
from penstock.pack.convert import Fetcher
from penstock.pack.finish import write_finish
from penstock.pack.names import shard_name
from penstock.pack.options import OnError, PackOptions
from penstock.pack.plan import Plan, differences, make_plan
from penstock.pack.shard import ShardIndex, ShardWriter, Stopped
from penstock.pack.source import Source
from penstock.pack.work import WorkFolder, disk_error
from penstock.pack.writer import BUFFER_BYTES, WriteError
from penstock.progress import Progress
from penstock.sources.address import is_far, taken_apart
from penstock.sources.listing import local_path, redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.dataset import Dataset
    from penstock.pack.far_work import FarWork

Work: TypeAlias = "WorkFolder | FarWork"
_TICK = 0.2
_STOP_WITHIN = 0.7
"""Seconds that an interrupted pack waits for its threads: Ctrl-C ends within one."""


@dataclass(frozen=True)
class PackSummary:
    """What a pack has done."""

    dest: Path | str
    """The folder, or the URI without its secrets."""
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
    source: Dataset | str | os.PathLike[str],
    dest: str | Path,
    options: PackOptions | None = None,
    *,
    restart: bool = False,
    quiet: bool = True,
    on_shard: Callable[[int, int], None] | None = None,
    storage: Mapping[str, object] | None = None,
    dest_storage: Mapping[str, object] | None = None,
) -> PackSummary:
    """Write ``source`` as tar shards and a catalog to ``dest``, or finish what was begun there.

    ``source``: a dataset, or what ``penstock.open`` takes, with ``storage``. ``dest``: a folder, or a URI of an
    object store, with ``dest_storage``; shards then wait for their upload in the cache folder. ``restart``: throw
    away what an unfinished pack has left in ``dest`` first. ``quiet``: show no progress on stderr.
    ``on_shard(done, all)`` is called on this thread when a shard is finished.

    A pack that is killed goes on when it is called again, and ends in the same bytes. Raises DataError for a bad
    sample (unless skipped), StoreError where ``dest`` cannot be written, CatalogError where ``dest`` holds
    something else, DeadlineError when nothing moves for ``options.deadline`` seconds.

        pack("photos/", "packed/", PackOptions(shard_size=64 << 20, shuffle=7))
    """
    options = options or PackOptions()
    begun = time.monotonic()
    data = _open(source, options.where, storage)
    given = Source.of(data)
    held: Work = _far(dest, given, dest_storage) if is_far(str(dest)) else WorkFolder(_folder(dest, given))
    plan = make_plan(given, options)
    if isinstance(held, WorkFolder):
        _make(held)
    with held as work:
        summary = work.read_summary()
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
            raise disk_error(work.catalog_path(), error) from error
        work.remove()
    skipped = [*plan.skipped, *(text for index in indexes for text in index.skipped)]
    return PackSummary(
        dest=work.dest,
        shards=plan.shards,
        samples=samples,
        bytes=sum(index.bytes for index in indexes),
        skipped=tuple(skipped),
        new_shards=plan.shards - len(done),
        seconds=time.monotonic() - begun,
        source_bytes=run.source_bytes,
    )


def _open(
    source: Dataset | str | os.PathLike[str], where: str | None, storage: Mapping[str, object] | None
) -> Dataset:
    if isinstance(source, (str, os.PathLike)):
        import penstock

        source = penstock.open(source, storage=storage)
    return source if where is None else source.where(where)


def _folder(dest: str | Path, source: Source) -> Path:
    path = local_path(str(dest))
    if path is None:
        raise StoreError(
            errno.ENOTSUP,
            f"{redacted(str(dest))}: packing writes to folders and object stores; give one of these",
        )
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


def _far(dest: str | Path, source: Source, storage: Mapping[str, object] | None) -> FarWork:
    from penstock.pack.far_work import far_dest

    uri, options = taken_apart(str(dest), storage)
    origin = source.catalog.origin
    inside = origin is not None and f"{uri.rstrip('/')}/".startswith(f"{origin.uri.rstrip('/')}/")
    if inside:
        raise StoreError(
            errno.EINVAL,
            f"DEST {redacted(uri)} lies inside the source, whose objects it would join: give a place outside",
        )
    return far_dest(uri, options)


def _make(work: WorkFolder) -> None:
    try:
        work.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(work.path, error) from error


def _complete(summary: dict[str, Any], plan: Plan, work: Work, begun: float) -> PackSummary:
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


def _finished_before(work: Work, plan: Plan, options: PackOptions, *, restart: bool) -> dict[int, ShardIndex]:
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
        work: Work,
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
            f"packing to {work.name}",
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
        wanted = self._options.threads or max(self._options.worker_count(), self._work.threads)
        count = min(wanted, len(self._todo))
        self._work.check_room(self._todo, [self._plan.shard_bytes(shard) for shard in self._todo], count)
        for shard in self._todo:
            self._queue.put(shard)
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
        moved, seen = time.monotonic(), (-1, -1, -1)
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
            now = (reading.samples, reading.bytes, self._work.uploaded)
            if now != seen:
                seen, moved = now, time.monotonic()
            elif time.monotonic() - moved > self._options.deadline:
                raise DeadlineError(self._stalled())

    def _stalled(self) -> str:
        items = [item for item in (writer.current for writer in self._writers) if item is not None]
        where = (
            ", ".join(f"sample {item.id} ({item.key})" for item in items)
            or f"{self._work.dest} to take what is written"
        )
        return (
            f"the pack has not moved for {self._options.deadline:g} s; it waits for {where} in {self._plan.source.name}: "
            "see whether these answer, then run the same command again to go on"
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
            raise disk_error(path, error.error, self._plan.shard_bytes(shard)) from error
        except PenstockError:
            raise
        except OSError as error:
            raise disk_error(path, error, self._plan.shard_bytes(shard)) from error
        if self._stop.is_set():
            with suppress(FileNotFoundError):
                path.unlink()
            raise Stopped
        self._work.keep_shard(shard, index, self._stop)
        return index
