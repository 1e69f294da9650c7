"""A ring of spans, and sums that are never lost."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from penstock import _native
    from penstock.trace.summary import Summary

DEFAULT_CAPACITY = 65_536
"""Spans that a ring keeps: some minutes of a fast loader."""


class Span(NamedTuple):
    """One stretch of work on one step.

    ``stage``: get (a sample of a dataset), request (to a far store, until the first byte), fetch (until the last), decode,
    copy (fetch and decode in one), finish, collate, transform (a callable of the user's), transfer (to the device), wait (the
    trainer for the loader) or step (the loader for the trainer); a `Recording` may have names of the user's besides. Times are
    nanoseconds since the trace began. ``thread``: worker number, −1 for the trainer's, −2 for requests to a far store, which
    overlap.
    """

    stage: str
    step: int
    """Step of the epoch; −1 where it is not known, as in a dataset's own code."""
    start_ns: int
    end_ns: int
    thread: int
    epoch: int = 0
    samples: int = 0
    bytes: int = 0
    sample: int = -1
    """Index of the one sample that was worked on; −1 where it was several."""
    process: int = 0
    """Process id of a worker process; 0 for the process that keeps the trace."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.start_ns) / 1e9


class Trace:
    """The newest spans of a run, in a ring, and sums over its whole life."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self._own: deque[Span] = deque(maxlen=max(capacity, 1))
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()
        self._origin = time.perf_counter_ns()

    def now(self) -> int:
        """Nanoseconds since the trace began."""
        return time.perf_counter_ns() - self._origin

    def add(
        self,
        stage: str,
        epoch: int,
        step: int,
        start_ns: int,
        end_ns: int,
        samples: int = 0,
        bytes: int = 0,
        *,
        sample: int = -1,
        thread: int = -1,
    ) -> None:
        """Adds a span."""
        with self._lock:
            self._own.append(Span(stage, step, start_ns, end_ns, thread, epoch, samples, bytes, sample))
            self._seconds[stage] = self._seconds.get(stage, 0.0) + (end_ns - start_ns) / 1e9

    def spans(self) -> list[Span]:
        """The spans in the ring, by start."""
        with self._lock:
            return sorted(self._own, key=lambda span: span.start_ns)

    def seconds(self) -> dict[str, float]:
        """Seconds by stage over the whole run, summed over threads."""
        with self._lock:
            return dict(self._seconds)

    def summary(self) -> Summary:
        """A row a stage: how often, how long, how many bytes; of the spans in the ring. It prints as a table."""
        from penstock.trace.summary import summarise

        return summarise(self.spans())

    def save(self, path: str | Path) -> None:
        """Writes the spans: ``.parquet`` as a table of spans, anything else as Chrome trace JSON.

        Perfetto and chrome://tracing open the JSON; with a name that ends in ``.gz`` it is compressed.
        """
        from penstock.trace.export import save

        save(path, self.spans())


class Decision(NamedTuple):
    """One decision about how many requests to a far store may be in flight."""

    seconds: float
    """Since the loader was made."""
    reason: str
    """growing, full, holding, probing up, probing down, kept, reverted, slowed down, recovering, starved."""
    limit: int
    """Requests that may be in flight from then on."""
    rate: float
    """Bytes a second just before."""
    latency: float
    """Seconds of a request just before, the middle one."""
    unloaded: float
    """Seconds of a request on an unloaded wire, as far as was known."""


class LoaderTrace(Trace):
    """A Loader's trace: what its native threads and its Python side did."""

    def __init__(self, pipeline: _native.Pipeline, capacity: int) -> None:
        super().__init__(capacity)
        self._pipeline = pipeline

    def now(self) -> int:
        """Nanoseconds since the loader was made."""
        return self._pipeline.now()

    def spans(self) -> list[Span]:
        """The spans in the ring, by start."""
        native = [
            Span(stage, step, start, end, thread, epoch, samples, size)
            for stage, thread, epoch, step, samples, size, start, end in self._pipeline.spans()
        ]
        return sorted([*native, *super().spans()], key=lambda span: span.start_ns)

    def decisions(self) -> list[Decision]:
        """How the number of requests in flight came to be, oldest first; empty where the store is near."""
        return [Decision(*decision) for decision in self._pipeline.decisions()]

    def seconds(self) -> dict[str, float]:
        """Seconds by stage over the whole run, summed over threads."""
        totals = {stage: seconds for stage, (seconds, _, _) in self._pipeline.totals().items()}
        return totals | super().seconds()
