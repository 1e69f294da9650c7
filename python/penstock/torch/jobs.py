"""A batch while it is being fetched, and the book in which fetchers enter what arrives."""

from __future__ import annotations

import threading
from collections import deque
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.torch.pace import Pace


SIGNAL_S = 0.5
"""Longest wait in one piece, in seconds: a Ctrl-C that comes just before one is seen after it."""


class Job:
    """The items of one batch: taken apart for the fetchers, complete when the last one arrives.

    ``parts``: how many requests it takes; one if the dataset gives a batch in one call. An item is known by
    its position, never by its index, so that duplicates in a batch are just two positions. ``left`` and
    ``missing`` are the book's, from when the job is entered there.
    """

    __slots__ = ("error", "error_at", "indices", "items", "left", "missing", "number", "whole")

    def __init__(self, number: int, indices: Sequence[Any], *, whole: bool) -> None:
        self.number = number
        self.indices = indices
        self.whole = whole
        parts = 1 if whole else len(indices)
        self.items: list[Any] = [None] * parts
        self.missing: set[int] = set()
        self.left = parts
        self.error: BaseException | None = None
        self.error_at = parts

    def request(self, position: int) -> Any:
        """Give what the dataset is asked for at ``position``."""
        return self.indices if self.whole else self.indices[position]

    def result(self) -> Any:
        """Give the items, or raise the error of the first position that has one."""
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # the traceback holds this frame: without this, a cycle
        return self.items[0] if self.whole else self.items

    def owed(self) -> str:
        """Say which indices have not arrived."""
        missing = sorted(self.missing)
        if self.whole:
            return f"the indices {some(list(self.indices))}, asked for in one call"
        return (
            f"{'index' if len(missing) == 1 else 'the indices'} {some([self.indices[at] for at in missing])}"
        )


def some(values: Sequence[Any], most: int = 8) -> str:
    """Show up to ``most`` values, and say how many more there are."""
    shown = ", ".join(repr(value) for value in values[:most])
    return shown if len(values) <= most else f"{shown} and {len(values) - most} more"


class Book:
    """Requests that wait for a fetcher, jobs that are finished, and who is at what; shared by all fetchers.

    Everything here happens under ``lock``. ``wake`` is called, outside the lock, after a job was finished.
    """

    def __init__(self, pace: Pace, wake: Callable[[], None] | None = None) -> None:
        self.pace = pace
        self.wake = wake
        self.lock = threading.RLock()  # the collector may close a crew from inside one of its own threads
        self.done = threading.Condition(self.lock)
        self.pending: deque[tuple[Job, int]] = deque()
        self.open: dict[int, Job] = {}
        self.finished: dict[int, Job] = {}
        self.busy: dict[str, tuple[Job, int]] = {}
        self.closed = False

    def enter(self, job: Job, *, start: int = 0) -> None:
        """Put the requests of ``job`` from position ``start`` on into the queue (with the lock held)."""
        job.missing = set(range(start, len(job.items)))
        job.left = len(job.missing)
        if not job.left:
            self.finished[job.number] = job
            self.done.notify_all()
            return
        self.open[job.number] = job
        self.pending.extend((job, position) for position in range(start, len(job.items)))

    def next(self, who: str) -> tuple[Job, int] | None:
        """Give ``who`` the next request, oldest batch first (with the lock held)."""
        while self.pending:
            job, position = self.pending.popleft()
            if position > job.error_at:  # an earlier item failed: this one cannot matter any more
                self._settle(job, position)
                continue
            self.busy[who] = (job, position)
            return job, position
        return None

    def arrive(self, who: str, job: Job, position: int, item: Any, error: BaseException | None) -> bool:
        """Enter what ``who`` got (with the lock held); whether that finished the job."""
        self.busy.pop(who, None)
        if error is None:
            job.items[position] = item
        elif position < job.error_at:
            job.error, job.error_at = error, position
        self.pace.arrived(perf_counter(), starved=not self.pending)
        return self._settle(job, position)

    def _settle(self, job: Job, position: int) -> bool:
        job.missing.discard(position)
        job.left -= 1
        if job.left:
            return False
        self.open.pop(job.number, None)
        self.finished[job.number] = job
        self.done.notify_all()
        return True

    def wait(self, number: int | None, deadline: float) -> Job | None:
        """Wait until job ``number`` (None: any) is finished, and give it; it stays here until it is dropped.

        ``deadline`` is on the monotonic clock; None if it is not finished by then.
        """
        with self.lock:
            while True:
                key = next(iter(self.finished), None) if number is None else number
                if key is not None and key in self.finished:
                    return self.finished[key]
                left = deadline - monotonic()
                if left <= 0.0 or self.closed:
                    return None
                self.done.wait(min(left, SIGNAL_S))

    def drop(self, number: int) -> None:
        """Forget the finished job ``number``: somebody has it."""
        with self.lock:
            self.finished.pop(number, None)

    def take(self) -> Job | None:
        """Give and forget a finished job; None: there is none."""
        with self.lock:
            return self.finished.pop(next(iter(self.finished))) if self.finished else None

    def debts(self, number: int | None = None) -> str:
        """Say what batch ``number`` (None: the oldest) still lacks, and which fetcher is at which index."""
        with self.lock:
            number = min(self.open, default=None) if number is None else number
            job = self.open.get(number) if number is not None else None
            if job is None:
                return "no batch is being fetched"
            at = [
                f"{who} at {'the whole batch' if job.whole else f'index {job.indices[position]!r}'}"
                for who, (whose, position) in self.busy.items()
                if whose is job
            ]
            holders = f"; fetchers: {', '.join(at[:8])}" if at else "; no fetcher has taken them yet"
            return f"batch {job.number} lacks {job.owed()}{holders}"
