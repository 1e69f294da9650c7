"""Spans of other processes: each appends its own to a file of its own, and whoever keeps the trace reads them.

A file rather than a pipe, so that a worker never waits for the reader, and one that is killed loses what it had not
yet written (the spans since the last one that ended `_FLUSH_NS` after the last writing) and nothing else.

**What is in it.** Blocks of 64-bit numbers, a block a thread and writing: how many spans and which thread, then for
each span stage, start, end, samples, bytes and sample. At the end of a file whose writer died a span may be cut: it
is left out. Until it is written a span is 48 bytes at the end of an array of its thread's own: no lock, no object, and
less of the processor's cache than the numbers would take.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
import weakref
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.trace.spans import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HEAD = struct.Struct("=qq")
_SPAN = struct.Struct("=6q")
pack = _SPAN.pack
_FLUSH_NS = 50_000_000
_THREADS = 256
"""Threads of a process, from which on those that ended are looked for."""
_NAMES = "stages"


class Spool:
    """The writing side, in any process: picklable, and right after a fork.

    Adding a span is appending to an array of the thread's own: samples of some microseconds are timed too.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.renew()

    def __getstate__(self) -> str:
        return self._folder

    def __setstate__(self, folder: str) -> None:
        self._folder = folder
        self.renew()

    def renew(self) -> None:
        """Begin with nothing pending: a forked child leaves to its parent what that had."""
        self._writer: _Writer | None = None
        self._begin = threading.Lock()
        self.local = threading.local()
        self.codes: dict[str, int] = {}
        self.due_ns = 0
        _spools.add(self)

    def add(self, stage: str, start_ns: int, end_ns: int, samples: int, bytes: int, sample: int) -> None:
        """Add a span; times are `time.perf_counter_ns`, which all processes of a machine share."""
        try:
            self.local.extend(pack(self.codes[stage], start_ns, end_ns, samples, bytes, sample))
        except (AttributeError, KeyError):  # the thread's first, or the stage's
            self.enter(stage)
            self.local.extend(pack(self.codes[stage], start_ns, end_ns, samples, bytes, sample))
        if end_ns > self.due_ns:
            self.flush()

    def enter(self, stage: str) -> None:
        """Make ready for the first span of this thread, and for those of ``stage``."""
        with self._begin:
            if self._writer is None:
                self._writer = _Writer(self._folder)
                self.due_ns = time.perf_counter_ns() + _FLUSH_NS
                # Worker processes of multiprocessing end without atexit, but run these.
                util.Finalize(self, self._writer.close, exitpriority=0)
            if stage not in self.codes:
                self._writer.name(stage)
                self.codes[stage] = len(self.codes)
            if not hasattr(self.local, "extend"):
                self.local.extend = self._writer.enter().extend

    def flush(self) -> None:
        """Write what is pending in this process."""
        if self._writer is not None:
            self.due_ns = time.perf_counter_ns() + _FLUSH_NS
            self._writer.flush()


_spools: weakref.WeakSet[Spool] = weakref.WeakSet()


def _renew_all() -> None:
    for spool in list(_spools):
        spool.renew()


os.register_at_fork(after_in_child=_renew_all)


class _Writer:
    """The file of one process."""

    def __init__(self, folder: str) -> None:
        self.pid = os.getpid()
        # Of its own: two copies of a dataset in one process are two writers.
        self._path = Path(folder) / f"{self.pid}-{id(self):x}.spans"
        self._names = self._path.with_suffix(f".{_NAMES}")
        self._file = -1
        self._lock = threading.Lock()
        self._threads: list[tuple[int, bytearray]] = []

    def enter(self) -> bytearray:
        """Give the calling thread its array."""
        pending = bytearray()
        with self._lock:
            if len(self._threads) >= _THREADS:
                alive = {thread.native_id for thread in threading.enumerate()}
                self._threads = [one for one in self._threads if one[1] or one[0] in alive]
            self._threads.append((threading.get_native_id(), pending))
        return pending

    def flush(self) -> None:
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Write what is pending, and end. Called in the process that made it, or not at all."""
        if self.pid == os.getpid():
            with self._lock:
                # The recording and its folder are gone: nobody is left to read what is pending.
                with contextlib.suppress(FileNotFoundError):
                    self._flush()
                if self._file >= 0:
                    os.close(self._file)
                    self._file = -1

    def _flush(self) -> None:
        blocks = []
        for thread, pending in self._threads:
            size = len(pending)  # its thread goes on adding, a span at a time
            if size:
                blocks += [_HEAD.pack(size // _SPAN.size, thread), bytes(pending[:size])]
                del pending[:size]
        if not blocks:
            return
        if self._file < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o600)
        os.write(self._file, b"".join(blocks))

    def name(self, stage: str) -> None:
        """Write the name of the stage that has the next code."""
        with self._names.open("a", encoding="utf-8") as names:
            names.write(stage.replace("\n", " ") + "\n")


def collect(folder: str, origin_ns: int, own: int, number: Callable[[int, int], int]) -> list[Span]:
    """The spans of all processes; ``number`` gives a small number for (process, thread)."""
    spans = []
    for path in sorted(Path(folder).glob("*.spans")):
        pid = int(path.stem.partition("-")[0])
        names = path.with_suffix(f".{_NAMES}").read_text(encoding="utf-8").splitlines()
        data = path.read_bytes()
        for thread, block in _blocks(data):
            mine = number(pid, thread)
            for code, start, end, samples, size, sample in _SPAN.iter_unpack(block):
                span = Span(
                    names[code], -1, start - origin_ns, end - origin_ns, mine, 0, samples, size, sample
                )
                spans.append(span if pid == own else span._replace(process=pid))
    return spans


def _blocks(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The thread and the whole spans of each block."""
    at = 0
    while at + _HEAD.size <= len(data):
        count, thread = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        size = min(count, (len(data) - at) // _SPAN.size) * _SPAN.size
        yield thread, data[at : at + size]
        at += count * _SPAN.size
