"""Getting the items of batches: in the calling thread while they are light, by a crew once they wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter, thread_time
from typing import Any

from penstock.torch.access import access, is_stateful
from penstock.torch.clock import BusyClock
from penstock.torch.crew import Crew, LoopCrew, LoopThread, ThreadCrew
from penstock.torch.jobs import Job
from penstock.torch.pace import MOST_TASKS, MOST_THREADS, WAITS, Pace


def fresh_pace(fetchers: int | None) -> Pace:
    """Give the pace to begin with: the user's number of fetchers, or a tuned one."""
    if fetchers is None:
        return Pace()
    return Pace(depth=max(1, fetchers), most=max(1, fetchers), fixed=True, fetchers=fetchers > 1)


class Fetching:
    """The items of one map-style dataset, for one consumer.

    ``fetchers``: how many at once; None: tuned; 0 or 1: one after another in the calling thread, as torch
    does. ``lockstep``: the dataset has a state, so that no item is got before the batch ahead of it was
    delivered; unless ``fetchers`` says else. ``bounded``: every wait must have a deadline, so nothing is got
    in the calling thread. ``wake``: called by a fetcher whenever a batch is finished. ``note``: called with
    (batch, position, count) before items are got in the calling thread.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batched: bool,
        fetchers: int | None,
        pace: Pace,
        home: LoopThread | None = None,
        bounded: bool = False,
        wake: Callable[[], None] | None = None,
        note: Callable[[int, int, int], None] | None = None,
    ) -> None:
        self.dataset = dataset
        self.batched = batched
        self.pace = pace
        self.access = access(dataset, batched=batched)
        self.crew: Crew | None = None
        self._home = home
        self._wake = wake
        self._note = note
        self._clock = BusyClock()
        self.lockstep = fetchers is None and is_stateful(dataset)
        self._never = not self.access.awaits and (fetchers in (0, 1) or self.lockstep)
        self._always = self.access.awaits or (bounded and not self._never)
        if not pace.fixed:
            pace.most = MOST_TASKS if self.access.awaits else MOST_THREADS
            if self.access.awaits and self.lockstep:
                pace.fixed, pace.depth = True, 1

    @property
    def here(self) -> bool:
        """Whether the next batch is got in the calling thread."""
        return not self._always and (self._never or not self.pace.fetchers)

    def job(self, number: int, indices: Any) -> Job:
        """Make the job of batch ``number``."""
        if not self.batched:
            return Job(number, [indices], whole=False)
        if self.access.whole:
            return Job(number, indices, whole=True)
        return Job(number, indices if isinstance(indices, list | tuple) else list(indices), whole=False)

    def submit(self, job: Job, *, start: int = 0) -> None:
        """Hand ``job`` to the crew, which is hired when it is first needed."""
        if self.crew is None:
            if self.access.awaits:
                self._home = self._home or LoopThread()
                self.crew = LoopCrew(self.access, self.pace, self._home, self._wake)
            else:
                self.crew = ThreadCrew(self.access, self.pace, self._wake)
        self.crew.submit(job, start=start)

    def get(self, job: Job) -> int:
        """Get the items of ``job`` in the calling thread; give the position from which the crew is to take over.

        That is behind the last one, unless items began to wait. What the dataset raises comes out of here as it is.
        """
        if self.access.whole:
            self._get_whole(job)
            return 1
        pace, dataset, indices, items = self.pace, self.dataset, job.indices, job.items
        plain, get = self.access.plain, self.access.get
        total, at = len(indices), 0
        while at < total:
            count = min(pace.chunk, total - at)
            part = indices if count == total else indices[at : at + count]
            if self._note is not None:
                self._note(job.number, at, count)
            busy = self._clock.now() if pace.heavy and pace.suspect else None
            cpu = thread_time() if busy is None and pace.heavy else 0.0
            start = perf_counter()
            if count == total and plain:
                job.items = [dataset[index] for index in part]
            else:
                items[at : at + count] = [dataset[index] if plain else get(index) for index in part]
            wall = perf_counter() - start
            if busy is not None:
                busy = self._clock.now() - busy
            elif cpu:
                # Running is busy. Where there was much else, the next look is at whether that was waiting.
                busy = thread_time() - cpu
                if wall - busy >= WAITS * wall:
                    pace.suspect, busy = True, None
            pace.observe(count, wall, busy)
            at += count
            if at < total and not self.here:
                break
        return at

    def _get_whole(self, job: Job) -> None:
        if self._note is not None:
            self._note(job.number, 0, 1)
        busy, start = self._clock.now(), perf_counter()
        job.items[0] = self.access.get(job.indices)
        self.pace.observe(1, perf_counter() - start, self._clock.now() - busy)

    def ahead(self, length: int) -> int:
        """Give how many batches of ``length`` to have open, so that fetchers always find a next item."""
        if self.lockstep:
            return 1
        length = 1 if self.access.whole else max(1, length)
        return -(-2 * self.pace.depth // length) + 1

    def close(self, *, patience: float = 0.0) -> None:
        """Let the crew go."""
        self._clock.close()
        if self.crew is not None:
            self.crew.close(patience=patience)


def length_of(indices: Any) -> int:
    """Give the number of items that a batch's indices ask for; 1 where it cannot be told."""
    return len(indices) if isinstance(indices, Sequence) else 1
