"""Epochs in the caller's process (``num_workers=0``): light items right here, items that wait in fetchers."""

from __future__ import annotations

import weakref
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.torch.access import is_stateful
from penstock.torch.epoch import Epoch
from penstock.torch.failures import DEADLINE, late
from penstock.torch.fetching import Fetching, length_of
from penstock.torch.reading import Reader
from penstock.torch.size import bytes_of

if TYPE_CHECKING:
    from penstock.torch.jobs import Job
    from penstock.torch.loader import DataLoader
    from penstock.torch.progress import Progress
    from penstock.torch.randomness import Moment

AHEAD_BYTES = 512 << 20
"""Bytes of batches that are fetched ahead of the consumer, unless two batches are more."""


class MapEpoch(Epoch):
    """One epoch of a map-style dataset.

    While items are light a batch is fetched when it is asked for, in the asking thread, as torch does. As
    soon as they wait, batches are drawn ahead and their items are in flight together; collating stays in the
    asking thread.
    """

    def __init__(self, loader: DataLoader, resume: Progress | None, pinned: Moment | None) -> None:
        super().__init__(loader, resume, pinned)
        if resume is not None and resume.dataset is not None and is_stateful(loader.dataset):
            loader.dataset.load_state_dict(resume.dataset)
        self._fetching = Fetching(
            loader.dataset,
            batched=self._batched,
            fetchers=loader.fetchers,
            pace=loader._pace,
            home=loader._home(),
            bounded=loader.timeout > 0,
        )
        self._timeout = loader.timeout or DEADLINE
        self._dealt: dict[int, Job] = {}
        self._again: Job | None = None
        self._exhausted = False
        self._bytes = 0
        self._finalizer = weakref.finalize(self, self._fetching.close)

    def _next(self) -> Any:
        while True:
            if not self._dealt and not self._exhausted and self._fetching.here:
                data = self._next_here()
            else:
                data = self._next_from_crew()
            if data is not _TAKEN_OVER:
                return self._pinned(self._collate(data))

    def _next_here(self) -> Any:
        job = self._again or self._draw()
        if job is None:
            self._end()
        try:
            complete = self._fetching.get(job)
        except Exception:
            self._again = None
            self._deliver(job.number)
            raise
        except BaseException:
            self._again = self._fetching.job(job.number, job.indices)  # Ctrl-C: the batch is still to come
            raise
        self._again = None
        if not complete:
            self._dealt[job.number] = job
            return _TAKEN_OVER
        self._deliver(job.number)
        return job.items[0] if job.whole or not self._batched else job.items

    def _next_from_crew(self) -> Any:
        self._refuse_fork()
        self._deal()
        if not self._dealt:
            self._end()
        oldest = next(iter(self._dealt))
        crew = self._fetching.crew
        assert crew is not None  # noqa: S101 - something is dealt
        job = crew.book.take(oldest if self._in_order else None, monotonic() + self._timeout)
        if job is None:
            raise late(self._timeout, "this process", crew.book.debts(oldest if self._in_order else None))
        del self._dealt[job.number]
        self._deliver(job.number)
        data = job.result()
        if self._bytes == 0 or job.number % 16 == 0:
            self._bytes = bytes_of(data)
        if not self._fetching.lockstep:
            self._deal()
        return data if self._batched or job.whole else data[0]

    def _deal(self) -> None:
        """Keep as many batches open as the fetchers have use for."""
        while not self._exhausted and (self._dealt or not self._fetching.here):
            last = next(reversed(self._dealt.values()), None)
            length = length_of(last.indices) if last is not None else 1
            most = self._fetching.ahead(length)
            if self._bytes:
                most = min(most, max(2, AHEAD_BYTES // self._bytes))
            if self._dealt and (len(self._dealt) >= most or self._fetching.here):
                return
            job = self._again or self._draw()
            self._again = None
            if job is not None:
                self._dealt[job.number] = job
                self._fetching.submit(job)

    def _draw(self) -> Job | None:
        assert self._indices is not None  # noqa: S101 - a map-style dataset has indices
        try:
            number, indices = self._indices.draw()
        except StopIteration:
            self._exhausted = True
            return None
        return self._fetching.job(number, indices)

    def _deliver(self, number: int) -> None:
        assert self._indices is not None  # noqa: S101 - a map-style dataset has indices
        self._indices.deliver(number)

    def _end(self) -> NoReturn:
        if not self._closed:
            self._closed = True
            self._fetching.close(patience=1.0)
        self._finish()

    def close(self) -> None:
        """Let the fetchers go."""
        super().close()
        self._exhausted = True
        self._dealt.clear()
        self._finalizer()


class _TakenOver:
    """Says that the crew has the rest of the batch."""


_TAKEN_OVER = _TakenOver()


class IterableEpoch(Epoch):
    """One epoch of an iterable dataset: read as it is asked for, in the asking thread, as torch does."""

    def __init__(self, loader: DataLoader, resume: Progress | None, pinned: Moment | None) -> None:
        super().__init__(loader, resume, pinned)
        progress = self.progress
        midway = resume is not None and resume.midway
        self._reader = Reader(loader.dataset, loader.batch_size, drop_last=loader.drop_last)
        self._reader.begin(
            dataset=progress.dataset,
            iterator=progress.iterator if midway else None,
            skip=progress.batches if midway else 0,
            ended=progress.ended if midway else False,
        )
        loader._reader = self._reader

    def _next(self) -> Any:
        try:
            data = self._reader.read()
        except StopIteration:
            self._finish()
        finally:
            self.progress.batches, self.progress.ended = self._reader.batches, self._reader.ended
        return self._pinned(self._collate(data))
