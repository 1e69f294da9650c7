"""Spans of other processes: each appends fixed-size records to a file of its own, and whoever keeps the trace reads them.

A file rather than a pipe, so that a worker never waits for the reader, and one that is killed loses what it had not
yet written (at most `_RECORDS` spans or `_SECONDS`) and nothing else. Records are whole or, at the end of a file whose
writer died, cut: a cut one is left out.
"""

from __future__ import annotations

import os
import struct
import threading
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.trace.spans import Span

if TYPE_CHECKING:
    from collections.abc import Callable

_RECORD = struct.Struct("<HxxiiqqqqqQ")
"""stage, thread, samples, start, end, epoch, step, sample, bytes."""
_RECORDS, _SECONDS = 256, 0.05
_NAMES = "stages"


class Spool:
    """The writing side, in any process: picklable, and right after a fork."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._writers: dict[int, _Writer] = {}

    def __getstate__(self) -> str:
        return self._folder

    def __setstate__(self, folder: str) -> None:
        self._folder = folder
        self._writers = {}

    def add(self, stage: str, start_ns: int, end_ns: int, *, samples: int, bytes: int, sample: int) -> None:
        """Add a span; times are `time.perf_counter_ns`, which all processes of a machine share."""
        pid = os.getpid()
        writer = self._writers.get(pid)
        if writer is None:  # a forked child leaves to its parent what that had pending
            writer = self._writers.setdefault(pid, _Writer(self._folder))
            # Worker processes of multiprocessing end without atexit, but run these.
            util.Finalize(self, writer.close, exitpriority=0)
        writer.add(stage, start_ns, end_ns, samples, bytes, sample)

    def flush(self) -> None:
        """Write what is pending in this process."""
        if writer := self._writers.get(os.getpid()):
            writer.flush()


class _Writer:
    """The file of one process."""

    def __init__(self, folder: str) -> None:
        self.pid = os.getpid()
        # Of its own: two copies of a dataset in one process are two writers.
        self._path = Path(folder) / f"{self.pid}-{id(self):x}.spans"
        self._names = self._path.with_suffix(f".{_NAMES}")
        self._file = -1
        self._stages: dict[str, int] = {}
        self._lock = threading.Lock()
        self._pending: list[bytes] = []
        self._flushed_ns = 0

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o600)

    def add(self, stage: str, start_ns: int, end_ns: int, samples: int, size: int, sample: int) -> None:
        thread = threading.get_native_id()
        with self._lock:
            if self._file < 0:
                self._open()
            code = self._stages.get(stage)
            if code is None:
                code = self._name(stage)
            self._pending.append(_RECORD.pack(code, thread, samples, start_ns, end_ns, 0, -1, sample, size))
            if len(self._pending) >= _RECORDS or end_ns - self._flushed_ns > _SECONDS * 1e9:
                self._flushed_ns = end_ns
                self._flush()

    def flush(self) -> None:
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Write what is pending, and end. Called in the process that made it, or not at all."""
        if self.pid == os.getpid() and self._file >= 0:
            with self._lock:
                self._flush()
                os.close(self._file)
                self._file = -1

    def _flush(self) -> None:
        if self._pending and self._file >= 0:
            os.write(self._file, b"".join(self._pending))
            self._pending.clear()

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
