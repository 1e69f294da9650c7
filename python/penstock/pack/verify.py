"""Reads every byte of a packed dataset back and compares checksums, on threads, a shard at a time."""

from __future__ import annotations

import functools
import itertools
import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.catalog import NO_OBJECT, WHOLE
from penstock.errors import CatalogError, DataError, DeadlineError, StoreError
from penstock.pack.convert import Fetcher
from penstock.pack.options import PackOptions
from penstock.pack.source import Source
from penstock.pack.writer import BUFFER_BYTES
from penstock.progress import Progress
from penstock.sources.listing import listing_of
from penstock.sources.tar import TarReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.dataset import Dataset

_TICK = 0.2
_STOP_WITHIN = 0.7
_REPORT_BYTES = 1 << 20


@dataclass(frozen=True)
class VerifySummary:
    """What was read and what is wrong with it."""

    samples: int
    objects: int
    bytes: int
    """Of samples; headers and padding are looked at too and not counted."""
    bad: tuple[str, ...]
    """A sentence for each thing that is wrong; empty if all is well."""
    seconds: float


def verify(
    source: Dataset | str | Path,
    *,
    threads: int | None = None,
    quiet: bool = True,
    deadline: float = 300.0,
    storage: Mapping[str, object] | None = None,
) -> VerifySummary:
    """Read every stored byte of ``source`` and compare it with its crc32c; see that its tar files are sound.

    Raises CatalogError where the catalog has no checksums, DeadlineError when nothing moves for ``deadline`` seconds.
    What is wrong with samples is not raised but listed.

        verify("packed/").bad
    """
    begun = time.monotonic()
    data = _open(source, storage)
    given = Source.of(data)
    parts = _parts(given)
    options = PackOptions(threads=threads, deadline=deadline)
    run = _Run(given, parts, options, quiet=quiet)
    bad = run.read()
    return VerifySummary(len(given), len(parts), run.bytes, tuple(bad), time.monotonic() - begun)


def _open(source: Dataset | str | Path, storage: Mapping[str, object] | None) -> Dataset:
    if isinstance(source, (str, Path)):
        import penstock

        return penstock.open(str(source), storage=storage)
    return source


@dataclass(frozen=True)
class _Part:
    """The stored fields that lie in one object."""

    object: int
    rows: dict[str, npt.NDArray[np.int64]]
    bytes: int


def _parts(source: Source) -> list[_Part]:
    """What lies in which object. Raises CatalogError for a field without checksums."""
    everything = np.arange(len(source), dtype=np.int64)
    rows: dict[int, dict[str, npt.NDArray[np.int64]]] = {}
    sizes: dict[int, int] = {}
    for field in source.catalog.stored:
        at = source.catalog.addresses(field.name, everything)
        if at.crc32c is None:
            raise CatalogError(
                f"the catalog of {source.name} has no checksums of {field.name!r}, so there is nothing to compare: "
                "`penstock pack` writes a copy that has"
            )
        order = np.argsort(at.object, kind="stable")
        objects, starts = np.unique(at.object[order], return_index=True)
        for index, chosen in zip(objects.tolist(), np.split(order, starts[1:]), strict=True):
            if index == NO_OBJECT:
                continue
            chosen = chosen[np.argsort(at.offset[chosen], kind="stable")]
            rows.setdefault(index, {})[field.name] = chosen
            lengths = at.length[chosen]
            sizes[index] = sizes.get(index, 0) + int(lengths[lengths != WHOLE].sum())
    return [_Part(index, fields, sizes[index]) for index, fields in sorted(rows.items())]


class _Run:
    """The threads that read."""

    def __init__(self, source: Source, parts: list[_Part], options: PackOptions, *, quiet: bool) -> None:
        self.bytes = sum(part.bytes for part in parts)
        self._source = source
        self._parts = parts
        self._options = options
        self._stop = threading.Event()
        self._queue: queue.SimpleQueue[_Part] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[int, list[str] | BaseException]] = queue.SimpleQueue()
        self._bar = Progress("verifying", total_samples=len(source), total_bytes=self.bytes, quiet=quiet)

    def read(self) -> list[str]:
        """All that is wrong, shard by shard."""
        for part in self._parts:
            self._queue.put(part)
        count = min(self._options.worker_count(), len(self._parts))
        threads = [
            threading.Thread(target=self._thread, name=f"penstock-verify-{n}", daemon=True)
            for n in range(count)
        ]
        found: dict[int, list[str]] = {}
        with self._bar:
            try:
                for thread in threads:
                    thread.start()
                self._collect(found)
            finally:
                self._stop.set()
                until = time.monotonic() + _STOP_WITHIN
                for thread in threads:
                    if thread.ident is not None:
                        thread.join(max(0.0, until - time.monotonic()))
        return list(itertools.chain.from_iterable(found[index] for index in sorted(found)))

    def _collect(self, found: dict[int, list[str]]) -> None:
        moved, seen = time.monotonic(), -1
        while len(found) < len(self._parts):
            try:
                index, outcome = self._results.get(timeout=_TICK)
            except queue.Empty:
                pass
            else:
                if isinstance(outcome, BaseException):
                    raise outcome
                found[index] = outcome
                moved = time.monotonic()
            self._bar.show()
            now = self._bar.reading().bytes
            if now != seen:
                seen, moved = now, time.monotonic()
            elif time.monotonic() - moved > self._options.deadline:
                raise DeadlineError(
                    f"verifying has not moved for {self._options.deadline:g} s: see whether the disk of "
                    f"{self._source.name} answers"
                )

    def _thread(self) -> None:
        fetcher = Fetcher(self._source.reader())
        try:
            while not self._stop.is_set():
                try:
                    part = self._queue.get_nowait()
                except queue.Empty:
                    return
                try:
                    self._results.put((part.object, self._one(part, fetcher)))
                except BaseException as error:  # noqa: BLE001 - raised where the results are taken
                    self._results.put((part.object, error))
                    return
        finally:
            fetcher.close()

    def _one(self, part: _Part, fetcher: Fetcher) -> list[str]:
        (key,) = self._source.object_keys(np.array([part.object], np.uint32))
        bad: list[str] = []
        try:
            members = _Members(self._source, key) if key.endswith(".tar") else None
        except (CatalogError, StoreError) as error:
            bad.append(str(error))
            members = None
        buffer = memoryview(bytearray(BUFFER_BYTES))
        first = next(iter(part.rows))
        for field, rows in part.rows.items():
            sizes, _, wrong = self._source.measure(field, rows, 1)
            items = self._source.items(field, rows, sizes)
            fetcher.expect(item for at, item in enumerate(items) if item is not None and at not in wrong)
            for at, item in enumerate(items):
                if self._stop.is_set():
                    return bad
                if item is None:
                    continue
                try:
                    if at in wrong:
                        raise wrong[at]
                    fetcher.stream(item, _pieces(buffer, item.size))
                    if members is not None and not members.hold(item.offset, item.size):
                        raise item.bad(DataError, "does not lie inside a member of its tar file")
                except DataError as error:
                    bad.append(str(error))
                self._bar.advance(samples=int(field == first), bytes=item.size)
        return bad


def _pieces(buffer: memoryview, size: int) -> Iterator[memoryview]:
    while size > 0:
        piece = buffer[:size]
        yield piece
        size -= len(piece)


class _Members:
    """Where the members of a tar file lie. Raises CatalogError if it is not sound to its end."""

    def __init__(self, source: Source, key: str) -> None:
        listing = listing_of(source.store.uri, source.store.options)
        entry = listing.stat(key)
        if entry is None:
            raise CatalogError(f"{key} in {source.name}: there is no such object")
        read = functools.partial(listing.read, key)
        spans = [(m.offset, m.length) for m in TarReader(read, entry.size, f"{key} in {source.name}")]
        self._starts = np.fromiter((start for start, _ in spans), np.int64, len(spans))
        self._ends = self._starts + np.fromiter((length for _, length in spans), np.int64, len(spans))

    def hold(self, offset: int, size: int) -> bool:
        """Whether these bytes lie in one member."""
        at = int(np.searchsorted(self._starts, offset, side="right")) - 1
        return at >= 0 and offset + size <= int(self._ends[at])
