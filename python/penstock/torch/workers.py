"""Epochs in worker processes (``num_workers > 0``): who is asked for which batch, in which order they come.

Batches of a map-style dataset go to the workers in turn, so that who gets which is the same in every run.
With an iterable dataset each worker has its own, and they give in turn; one that has ended is passed over.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from penstock.torch.access import is_stateful
from penstock.torch.epoch import Epoch
from penstock.torch.failures import DEADLINE, late
from penstock.torch.fetching import length_of
from penstock.torch.fleet import Fleet, Seat
from penstock.torch.inprocess import AHEAD_BYTES
from penstock.torch.interrupts import Held
from penstock.torch.progress import WorkerProgress
from penstock.torch.worker import Reply, Request, Restart, Spec

if TYPE_CHECKING:
    from penstock.torch.loader import DataLoader
    from penstock.torch.progress import Progress
    from penstock.torch.randomness import Moment
    from penstock.torch.samplers import Indices

_CALM = 5.0
"""Seconds that workers have to end after an epoch; nothing is owed then."""


class WorkerEpoch(Epoch):
    """One epoch; with ``persistent_workers`` one after another."""

    def __init__(self, loader: DataLoader, resume: Progress | None, pinned: Moment | None) -> None:
        super().__init__(loader, resume, pinned)
        self._count: int = loader.num_workers
        self._persistent = loader.persistent_workers
        self._timeout = loader.timeout or DEADLINE
        self._prefetch: int = max(1, loader.prefetch_factor or 2)
        self._prefetch_given = loader._prefetch_given
        self._pace = loader._pace
        self._epoch = 0
        self._midway = resume is not None and resume.midway
        self._stateful = is_stateful(loader.dataset)
        context = loader.multiprocessing_context or torch.multiprocessing.get_context()
        saved = list(self.progress.workers) if resume is not None else []
        self._fleet = Fleet(
            self._count, context, _specs(loader, self.progress.seed, saved, midway=self._midway)
        )
        if not self._midway or len(saved) != self._count:
            self.progress.workers = [WorkerProgress() for _ in range(self._count)]
        self._pinner = ThreadPoolExecutor(1, "penstock-pin") if self._pins else None
        self._finalizer = weakref.finalize(self, _close, self._fleet, self._pinner)
        self._clear()
        self._turn = self.progress.turn if self.iterable else 0
        self._held = Held()
        self._deal()

    @property
    def usable(self) -> bool:
        """Whether another epoch can begin with these workers, in this process."""
        return not self._closed and os.getpid() == self._pid

    def restart(self, loader: DataLoader, pinned: Moment | None) -> None:
        """Begin another epoch with the same workers."""
        self._promised = loader._IterableDataset_len_called
        seed = self.progress.seed
        self._epoch += 1
        self.progress, self._indices = self._begin(loader, None, pinned, seed=seed)
        self.progress.workers = [WorkerProgress() for _ in range(self._count)]
        self._clear()
        self._turn = 0
        self._batch = self._receipt = None
        for seat in self._fleet.seats:
            seat.owed.clear()
            seat.asked, seat.ended = 0, False
            if seat.process is not None:
                self._fleet.say(seat, Restart(self._epoch))
        self._deal()

    def _clear(self) -> None:
        self._dealt: dict[int, Seat] = {}
        self._arrived: dict[int, Reply] = {}
        self._queues: list[deque[Reply]] = [deque() for _ in range(self._count)]
        self._pinning: dict[int, Future[Any]] = {}
        self._exhausted = False
        self._bytes = 0
        self._length = 1

    # Asking

    def _deal(self) -> None:
        """Ask for as many batches as are to be under way."""
        if self.iterable:
            for seat in self._fleet.seats:
                waiting = len(seat.owed) + len(self._queues[seat.id])
                while not seat.ended and waiting < self._prefetch:
                    self._ask(seat, seat.asked, None)
                    waiting += 1
            return
        while not self._exhausted and len(self._dealt) < self._ahead():
            assert self._indices is not None  # noqa: S101 - a map-style dataset has indices
            try:
                number, indices = self._indices.draw()
            except StopIteration:
                self._exhausted = True
                return
            if self._batched:
                self._length = length_of(indices)
            seat = self._fleet.seats[number % self._count]
            if not self._in_order:
                seat = min(self._fleet.seats, key=lambda one: len(one.owed))
            self._dealt[number] = seat
            self._ask(seat, number, indices)

    def _ask(self, seat: Seat, number: int, indices: Any) -> None:
        returned, retired = seat.channel.leases.returned() if seat.channel is not None else ((), ())
        request = seat.owed[number] = Request(self._epoch, number, indices, returned, retired)
        seat.asked += 1
        self._fleet.say(seat, request)

    def _ahead(self) -> int:
        """Give how many batches to have asked for: as torch, or as many as the fetchers have use for."""
        least = self._prefetch * self._count
        depth = max(seat.depth for seat in self._fleet.seats)
        if self._prefetch_given or not depth:
            return least
        wanted = self._count * (-(-2 * depth // max(1, self._length)) + 1)
        if self._bytes:
            wanted = min(wanted, AHEAD_BYTES // self._bytes)
        return max(least, wanted)

    # Taking

    def _take(self, seat: Seat, message: Any, size: int) -> None:
        """Take in what a worker sent."""
        if not isinstance(message, Reply):
            return
        if message.gone and seat.channel is not None:
            seat.channel.leases.forget(message.gone)
        if message.epoch != self._epoch:
            return
        seat.owed.pop(message.number, None)
        if message.depth:
            seat.depth = message.depth
            self._pace.depth = max(message.depth, self._pace.depth)
            self._pace.fetchers = True
        if message.error is None and not message.ended:
            self._bytes = size
        key = message.number
        if self.iterable:
            key = message.number * self._count + seat.id
            if message.ended:
                seat.ended = True
            self._queues[seat.id].append(message)
        else:
            self._arrived[key] = message
        if self._pinner is not None and message.error is None and not message.ended:
            self._pinning[key] = self._pinner.submit(self._pinned, message.data)

    def _made(self) -> Any:
        self._refuse_fork()
        if self._batch is None:
            if self._closed:
                self._finish()
            deadline = monotonic() + self._timeout
            with Held() as self._held:
                self.progress.settle()
                self._batch = self._next_iterable(deadline) if self.iterable else self._next_map(deadline)
                self._deal()
        reply: Reply
        reply, pinned = self._batch
        if reply.error is not None:
            self.progress.given, self._batch = self._receipt, None
            reply.error.reraise()
        if pinned is None:
            return reply.data
        try:
            return pinned.result(self._timeout)
        except FutureTimeoutError:
            raise late(self._timeout, "the pinning thread", f"batch {reply.number} is being pinned") from None

    def _next_map(self, deadline: float) -> tuple[Reply, Future[Any] | None]:
        assert self._indices is not None  # noqa: S101 - a map-style dataset has indices
        self._deal()
        if not self._dealt:
            self._end()
        oldest = next(iter(self._dealt))
        while not self._arrived if not self._in_order else oldest not in self._arrived:
            self._wait(self._dealt[oldest], oldest, deadline)
        number = oldest if self._in_order else next(iter(self._arrived))
        reply, seat = self._arrived.pop(number), self._dealt.pop(number)
        place = self.progress.workers[seat.id]
        self._receipt = partial(_book, self._indices, number, place, reply.states)
        return reply, self._pinning.pop(number, None)

    def _next_iterable(self, deadline: float) -> tuple[Reply, Future[Any] | None]:
        progress = self.progress
        while True:
            running = [place for place in progress.workers if not place.ended]
            if not running:
                self._end()
            seat = self._fleet.seats[self._turn]
            queue = self._queues[seat.id]
            if progress.workers[seat.id].ended:
                self._turn = (self._turn + 1) % self._count
                continue
            if not queue and not self._in_order:
                ready = [other for other in self._fleet.seats if self._queues[other.id]]
                if ready:
                    seat, queue = ready[0], self._queues[ready[0].id]
            if not queue:
                self._wait(seat, min(seat.owed, default=0), deadline)
                continue
            reply = queue.popleft()
            place = progress.workers[seat.id]
            self._turn = (seat.id + 1) % self._count
            if reply.ended:
                progress.turn = self._turn
                place.ended = True
                queue.clear()
                continue
            if reply.error is None:
                self._receipt = partial(
                    _book_items,
                    progress,
                    place,
                    self._turn,
                    progress.batches + 1,
                    place.batches + 1,
                    reply.states,
                )
            else:
                self._receipt = partial(
                    _book_items, progress, place, self._turn, progress.batches, place.batches, None
                )
            return reply, self._pinning.pop(reply.number * self._count + seat.id, None)

    def _wait(self, seat: Seat, number: int, deadline: float) -> None:
        """Wait until something comes; ``seat`` owes batch ``number``, which is what is waited for."""
        if seat.gone:
            self._fleet.close()
            raise self._fleet.obituary(seat)
        if not self._fleet.listen(deadline, self._take, self._held.check):
            raise late(self._timeout, seat.name, self._fleet.debts(seat, number, self._take))

    def _end(self) -> NoReturn:
        if not self._persistent and not self._closed:
            self._shut(_CALM)
        self._finish()

    def _shut(self, patience: float) -> None:
        self._closed = True
        self._finalizer.detach()
        _close(self._fleet, self._pinner, patience)

    def close(self) -> None:
        """End the workers."""
        if not self._closed:
            self._shut(0.5)


def _close(fleet: Fleet, pinner: ThreadPoolExecutor | None, patience: float = 0.5) -> None:
    fleet.close(patience=patience)
    if pinner is not None:
        pinner.shutdown(wait=False, cancel_futures=True)


def _book(indices: Indices, number: int, place: WorkerProgress, states: tuple[Any, Any, bool] | None) -> None:
    if states is not None:
        place.dataset = states[0]
    indices.deliver(number)


def _book_items(
    progress: Progress,
    place: WorkerProgress,
    turn: int,
    batches: int,
    of_worker: int,
    states: tuple[Any, Any, bool] | None,
) -> None:
    progress.turn, progress.batches, place.batches = turn, batches, of_worker
    if states is not None:
        place.dataset, place.iterator, place.ended = states


def _specs(loader: DataLoader, seed: int, saved: list[WorkerProgress], *, midway: bool) -> Any:
    """Give a maker of specs that holds what it needs of ``loader``, but not the iterator."""
    dataset, collate, init = loader.dataset, loader.collate_fn, loader.worker_init_fn
    batched, size, drop_last = bool(loader._auto_collation), loader.batch_size, loader.drop_last
    count, fetchers, pace, iterable = (
        loader.num_workers,
        loader.fetchers,
        loader._pace,
        loader._dataset_kind == 1,
    )

    def make(id: int) -> Spec:
        return Spec(
            dataset=dataset,
            iterable=iterable,
            batched=batched,
            batch_size=size,
            drop_last=drop_last,
            collate=collate,
            init=init,
            id=id,
            count=count,
            seed=seed,
            fetchers=fetchers,
            depth=pace.depth if pace.fetchers and not pace.fixed else 0,
            saved=saved[id] if len(saved) == count else None,
            midway=midway,
        )

    return make
