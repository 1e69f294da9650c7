"""Spans of other processes: each appends fixed-size records to a file of its own, and whoever keeps the trace reads them.

A file rather than a pipe, so that a worker never waits for the reader, and one that is killed loses what it had not
yet written (at most `_RECORDS` spans a thread, or `_FLUSH_NS`) and nothing else. Records are whole or, at the end of a file whose
writer died, cut: a cut one is left out.
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
from typing import TYPE_CHECKING, Any

from penstock.trace.spans import Span

if TYPE_CHECKING:
    from collections.abc import Callable

_RECORD = struct.Struct("<HxxiiqqqqqQ")
"""stage, thread, samples, start, end, epoch, step, sample, bytes."""
_RECORDS, _FLUSH_NS = 256, 50_000_000
_THREADS = 256
"""Threads of a process, from which on those that ended are looked for."""
_NAMES = "stages"


class Spool:
    """The writing side, in any process: picklable, and right after a fork.

    Adding a span is appending to a list of the thread's own: samples of some microseconds are timed too.
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
        self._local = _Local()
        _spools.add(self)

    def add(self, stage: str, start_ns: int, end_ns: int, samples: int, bytes: int, sample: int) -> None:
        """Add a span; times are `time.perf_counter_ns`, which all processes of a machine share."""
        local = self._local
        if local.pending is None:
            self._enter(local)
        pending, writer = local.pending, local.writer
        pending.append((stage, start_ns, end_ns, samples, bytes, sample))
        if len(pending) >= _RECORDS or end_ns - writer.flushed_ns > _FLUSH_NS:
            writer.flush()

    def _enter(self, local: _Local) -> None:
        with self._begin:
            if self._writer is None:
                self._writer = _Writer(self._folder)
                # Worker processes of multiprocessing end without atexit, but run these.
                util.Finalize(self, self._writer.close, exitpriority=0)
        local.writer = self._writer
        local.pending = self._writer.enter()

    def flush(self) -> None:
        """Write what is pending in this process."""
        if self._writer is not None:
            self._writer.flush()


_spools: weakref.WeakSet[Spool] = weakref.WeakSet()


def _renew_all() -> None:
    for spool in list(_spools):
        spool.renew()


os.register_at_fork(after_in_child=_renew_all)


class _Local(threading.local):
    """What a thread has not written yet."""

    pending: Any = None
    writer: Any = None


class _Writer:
    """The file of one process."""

    def __init__(self, folder: str) -> None:
        self.pid = os.getpid()
        self.flushed_ns = time.perf_counter_ns()
        # Of its own: two copies of a dataset in one process are two writers.
        self._path = Path(folder) / f"{self.pid}-{id(self):x}.spans"
        self._names = self._path.with_suffix(f".{_NAMES}")
        self._file = -1
        self._stages: dict[str, int] = {}
        self._lock = threading.Lock()
        self._threads: list[tuple[int, list[Any]]] = []

    def enter(self) -> list[Any]:
        """Give the calling thread its list."""
        pending: list[Any] = []
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
        self.flushed_ns = time.perf_counter_ns()
        records = []
        for thread, pending in self._threads:
            count = len(pending)  # its thread goes on adding
            for stage, start, end, samples, size, sample in pending[:count]:
                code = self._stages.get(stage)
                if code is None:
                    code = self._name(stage)
                records.append(_RECORD.pack(code, thread, samples, start, end, 0, -1, sample, size))
            del pending[:count]
        if not records:
            return
        if self._file < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o600)
        os.write(self._file, b"".join(records))

    def _name(self, stage: str) -> int:
        code = self._stages[stage] = len(self._stages)
        with self._names.open("a", encoding="utf-8") as names:
            names.write(stage.replace("\n", " ") + "\n")
        return code


def collect(folder: str, origin_ns: int, own: int, number: Callable[[int, int], int]) -> list[Span]:
    """The spans of all processes; ``number`` gives a small number for (process, thread)."""
    spans = []
    for path in sorted(Path(folder).glob("*.spans")):
        pid = int(path.stem.partition("-")[0])
        names = path.with_suffix(f".{_NAMES}").read_text(encoding="utf-8").splitlines()
        data = path.read_bytes()
        for record in _RECORD.iter_unpack(data[: len(data) // _RECORD.size * _RECORD.size]):
            code, thread, samples, start, end, epoch, step, sample, size = record
            spans.append(
                Span(
                    names[code],
                    step,
                    start - origin_ns,
                    end - origin_ns,
                    number(pid, thread),
                    epoch,
                    samples,
                    size,
                    sample,
                    0 if pid == own else pid,
                )
            )
    return spans
