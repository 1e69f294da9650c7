"""Spans and counters of a run, and how to look at them."""

from __future__ import annotations

import json
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock import _native


class Span(NamedTuple):
    """One stretch of work on one step.

    ``stage``: fetch, decode, copy (fetch and decode in one), finish, wait (the trainer for the loader), transform (a
    callable of the user's) or step (the loader for the trainer). Times are nanoseconds since the loader was made.
    ``thread``: worker number, or −1 for the trainer's.
    """

    stage: str
    step: int
    start_ns: int
    end_ns: int
    thread: int
    epoch: int = 0
    samples: int = 0
    bytes: int = 0


class Trace:
    """The newest spans of a loader, in a ring, and sums over its whole life."""

    def __init__(self, pipeline: _native.Pipeline, capacity: int) -> None:
        self._pipeline = pipeline
        self._own: deque[Span] = deque(maxlen=max(capacity, 1))
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    def now(self) -> int:
        """Nanoseconds since the loader was made."""
        return self._pipeline.now()

    def add(self, stage: str, epoch: int, step: int, start_ns: int, end_ns: int, samples: int) -> None:
        """Adds a span of the Python side."""
        with self._lock:
            self._own.append(Span(stage, step, start_ns, end_ns, -1, epoch, samples))
            self._seconds[stage] = self._seconds.get(stage, 0.0) + (end_ns - start_ns) / 1e9

    def spans(self) -> list[Span]:
        """The spans in the ring, by start."""
        native = [
            Span(stage, step, start, end, thread, epoch, samples, size)
            for stage, thread, epoch, step, samples, size, start, end in self._pipeline.spans()
        ]
        with self._lock:
            native.extend(self._own)
        return sorted(native, key=lambda span: span.start_ns)

    def seconds(self) -> dict[str, float]:
        """Seconds by stage over the whole run, summed over threads."""
        totals = {stage: seconds for stage, (seconds, _, _) in self._pipeline.totals().items()}
        with self._lock:
            return totals | self._seconds

    def save(self, path: str | Path) -> None:
        """Writes the spans as Chrome trace JSON, which Perfetto and chrome://tracing open."""
        events = [
            {
                "name": f"{span.stage} {span.step}",
                "cat": span.stage,
                "ph": "X",
                "ts": span.start_ns / 1e3,
                "dur": (span.end_ns - span.start_ns) / 1e3,
                "pid": 1,
                "tid": span.thread + 1,
                "args": {
                    "epoch": span.epoch,
                    "step": span.step,
                    "samples": span.samples,
                    "bytes": span.bytes,
                },
            }
            for span in self.spans()
        ]
        names = [
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": {"name": name}}
            for tid, name in self._names(events)
        ]
        Path(path).write_text(json.dumps({"traceEvents": [*names, *events]}), encoding="utf-8")

    @staticmethod
    def _names(events: list[dict[str, object]]) -> list[tuple[int, str]]:
        tids = sorted({tid for event in events if isinstance(tid := event["tid"], int)})
        return [(tid, "trainer" if tid == 0 else f"worker {tid - 1}") for tid in tids]
