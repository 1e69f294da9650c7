"""Epochs in the caller's process (``num_workers=0``): light items right here, items that wait in fetchers."""

from __future__ import annotations

import weakref
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.torch.access import is_stateful
from penstock.torch.epoch import Epoch
from penstock.torch.failures import DEADLINE, late
from penstock.torch.fetching import Fetching, length_of
from penstock.torch.interrupts import Held
from penstock.torch.reading import Reader
from penstock.torch.size import bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable

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
        self._drawn: Job | None = None
        self._exhausted = False
        self._bytes = 0
        self._finalizer = weakref.finalize(self, self._fetching.close)

    def _made(self) -> Any:
        job: Job | None = self._batch
        if job is None:
            job = self._fetched()
        error = job.error
        if error is not None:  # raised right here: it is given out, and nothing comes in between
            self.progress.given, self._batch, job.error = self._receipt, None, None
            try:
                raise error
            finally:
                del error, job  # the traceback holds this frame: without this, a cycle
        try:
            return self._pinned(self._collate(job.items if self._batched and not job.whole else job.items[0]))
        except Exception:
            self.progress.given, self._batch = self._receipt, None
            raise

    def _fetched(self) -> Job:
        """Give the next batch whose items are all there; it is kept before anything can get lost."""
        if self._dealt or self._exhausted or not self._fetching.here:
            return self._from_crew()
        with Held():
            self.progress.settle()
            job = self._drawn or self._draw()
            if job is None:
                self._end()
            self._drawn, self._receipt = job, self._receipt_of(job)
        try:
            reached = self._fetching.get(job)
        except Exception:
            self.progress.given, self._drawn = self._receipt, None
            raise
        if reached < len(job.items):
            with Held():
                self._dealt[job.number], self._drawn = job, None
                self._fetching.submit(job, start=reached)
            return self._from_crew()
        self._batch, self._drawn = job, None
        return job

    def _from_crew(self) -> Job:
        self._refuse_fork()
        if not self._dealt:
            with Held():
                self.progress.settle()
                self._deal()
            if not self._dealt:
                self._end()
        oldest = next(iter(self._dealt))
        crew = self._fetching.crew
        assert crew is not None  # noqa: S101 - something is dealt
        job = crew.book.wait(oldest if self._in_order else None, monotonic() + self._timeout)
        if job is None:
            raise late(self._timeout, "this process", crew.book.debts(oldest if self._in_order else None))
        if job.error is None and (self._bytes == 0 or job.number % 16 == 0):
            self._bytes = bytes_of(job.items)
        with Held():
            self.progress.settle()
            self._batch, self._receipt = job, self._receipt_of(job)
            crew.book.drop(job.number)
            del self._dealt[job.number]
            if not self._fetching.lockstep:
                self._deal()
        return job

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
            job = self._drawn or self._draw()
            self._drawn = None
            if job is not None:
                self._dealt[job.number] = job
                self._fetching.submit(job)

    def _receipt_of(self, job: Job) -> Callable[[], None]:
        assert self._indices is not None  # noqa: S101 - a map-style dataset has indices
        return partial(self._indices.deliver, job.number)

    def _draw(self) -> Job | None:
        assert self._indices is not None  # noqa: S101 - a map-style dataset has indices
        try:
            number, indices = self._indices.draw()
        except StopIteration:
            self._exhausted = True
            return None
        return self._fetching.job(number, indices)

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

    def _made(self) -> Any:
        reader = self._reader
        if self._batch is None:
            try:
                self._batch = (reader.read(),)
            except StopIteration:
                self._finish()
        self._receipt = partial(_book, self.progress, reader.batches, reader.ended)
        try:
            return self._pinned(self._collate(self._batch[0]))
        except Exception:
            self.progress.given, self._batch = self._receipt, None
            raise


def _book(progress: Progress, batches: int, ended: bool) -> None:  # noqa: FBT001 - what a reader says
    progress.batches, progress.ended = batches, ended
