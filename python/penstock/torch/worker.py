"""What runs in a worker process: it takes requests for batches, fetches, collates, and sends them back.

One thread does everything but the waiting of items, so that the dataset's ``collate_fn`` is never called
twice at once. The worker lives as long as its channel and its parent do.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import select
import signal
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import signal_handling
from torch.utils.data._utils import worker as torch_worker

from penstock.torch.access import is_stateful
from penstock.torch.collating import collating_on
from penstock.torch.fetching import Fetching, fresh_pace
from penstock.torch.parcels import Channel, Closed
from penstock.torch.progress import WorkerProgress
from penstock.torch.reading import Reader
from penstock.torch.shelf import Shelf

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from penstock.torch.jobs import Job

_LOOK_MS = 5000
"""Milliseconds between two looks whether the parent is there, for the case that it was killed."""


@dataclass(slots=True)
class Spec:
    """What a worker is made from. ``strangers``: ends of channels it inherits and has to close."""

    dataset: Any
    iterable: bool
    batched: bool
    batch_size: int | None
    drop_last: bool
    collate: Callable[[Any], Any]
    init: Callable[[int], None] | None
    id: int
    count: int
    seed: int
    fetchers: int | None
    depth: int
    saved: WorkerProgress | None
    midway: bool
    strangers: list[socket.socket] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class Request:
    """A batch that is asked for. ``epoch``: counted by the parent; ``number``: the batch's in that epoch.

    ``returned``, ``retired``: memory of earlier batches to use again, and not to (see `shelf`).
    """

    epoch: int
    number: int
    indices: Any
    returned: tuple[int, ...] = ()
    retired: tuple[int, ...] = ()


@dataclass(slots=True, frozen=True)
class Reply:
    """A batch, or why there is none.

    ``depth``: requests in flight in this worker; ``states``: its place; ``gone``: memory it has given up.
    """

    epoch: int
    number: int
    data: Any = None
    error: ExceptionWrapper | None = None
    ended: bool = False
    depth: int = 0
    states: tuple[Any, Any, bool] | None = None
    gone: tuple[int, ...] = ()


@dataclass(slots=True, frozen=True)
class Restart:
    """Epoch ``epoch`` begins; what was asked for in earlier ones is void."""

    epoch: int


@dataclass(slots=True, frozen=True)
class Owes:
    """Asks what is missing of batch ``number``; comes back with ``text``."""

    number: int
    text: str = ""


@dataclass(slots=True, frozen=True)
class End:
    """The worker is no longer needed."""


def main(spec: Spec, sock: socket.socket, note: Any) -> None:
    """Run a worker (the target of its process)."""
    # What a fork brought along is the parent's to finalize: collected here, in the middle of an import, it can break that.
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which decides
    for stranger in spec.strangers:
        stranger.close()
    signal_handling._set_worker_signal_handlers()
    torch.set_num_threads(1)
    seed = spec.seed + spec.id
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(torch_worker._generate_state(spec.seed, spec.id))  # noqa: NPY002 - what users' datasets draw from
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=spec.id, num_workers=spec.count, seed=seed, dataset=spec.dataset
    )
    shelf = Shelf()
    collating_on(shelf)
    try:
        _Worker(spec, Channel(sock, shelf), shelf, note).run()
    except Closed:
        pass
    finally:
        torch_worker._worker_info = None


class _Worker:
    def __init__(self, spec: Spec, channel: Channel, shelf: Shelf, note: Any) -> None:
        self._spec = spec
        self._channel = channel
        self._shelf = shelf
        self._where = f"in DataLoader worker process {spec.id}"
        self._parent = os.getppid()
        self._epoch = 0
        self._current = -1
        self._requests: deque[Request] = deque()
        self._in_crew: dict[int, Request] = {}
        self._serial = 0
        self._broken: ExceptionWrapper | None = None
        self._fetching: Fetching | None = None
        self._reader: Reader | None = None
        self._stateful = is_stateful(spec.dataset)
        self._note = note
        self._ears, self._mouth = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._poll.register(self._ears, select.POLLIN)
        try:
            if spec.init is not None:
                spec.init(spec.id)
            self._prepare()
        except Exception:  # noqa: BLE001 - the consumer gets it with the first batch
            self._broken = ExceptionWrapper(where=self._where)

    def _prepare(self) -> None:
        spec = self._spec
        dataset = torch_worker._worker_info.dataset
        saved = spec.saved or WorkerProgress()
        if spec.iterable:
            self._reader = Reader(dataset, spec.batch_size, drop_last=spec.drop_last)
            if spec.midway:
                self._reader.begin(
                    dataset=saved.dataset, iterator=saved.iterator, skip=saved.batches, ended=saved.ended
                )
            else:
                self._reader.begin(dataset=saved.dataset)
            return
        if self._stateful and saved.dataset is not None:
            dataset.load_state_dict(saved.dataset)
        pace = fresh_pace(spec.fetchers)
        if not pace.fixed and spec.depth:
            pace.depth, pace.fetchers = spec.depth, True
        self._fetching = Fetching(
            dataset,
            batched=spec.batched,
            fetchers=spec.fetchers,
            pace=pace,
            wake=self._wake,
            note=self._enter_note,
        )

    def run(self) -> None:
        """Serve until the end."""
        while self._listen():
            fetching = self._fetching
            if self._broken is not None or fetching is None or (fetching.here and not self._in_crew):
                if self._requests:
                    self._serve(self._requests.popleft())
            else:
                self._use_crew(fetching)
        if self._fetching is not None:
            self._fetching.close()

    def _listen(self) -> bool:
        """Take in what the parent says, waiting for it if there is nothing else to do; False at the end."""
        while True:
            while True:
                received = self._channel.receive()
                if received is None:
                    break
                message = received[0]
                if isinstance(message, Request):
                    self._shelf.take_back(message.returned, message.retired, self._channel.sent)
                    self._requests.append(message)
                elif isinstance(message, Restart):
                    self._restart(message.epoch)
                elif isinstance(message, Owes):
                    self._send(Owes(message.number, self._debts(message.number)))
                elif isinstance(message, End):
                    return False
            if (self._requests and not self._held()) or self._finished():
                return True
            self._poll.poll(_LOOK_MS)
            self._hear()
            if not self._parent_lives():
                return False

    def _held(self) -> bool:
        """Whether requests have to wait until the crew is through with the one it has."""
        return self._fetching is not None and self._fetching.lockstep and bool(self._in_crew)

    def _finished(self) -> bool:
        crew = self._fetching.crew if self._fetching is not None else None
        return crew is not None and bool(crew.book.finished)

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._ears, 4096)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is full of reasons to wake up
            os.write(self._mouth, b"\0")

    def _parent_lives(self) -> bool:
        return os.getppid() == self._parent

    def _restart(self, epoch: int) -> None:
        self._epoch = epoch
        self._requests.clear()
        if self._reader is not None and self._broken is None:
            try:
                self._reader.begin()
            except Exception:  # noqa: BLE001 - the consumer gets it with the first batch
                self._broken = ExceptionWrapper(where=self._where)

    def _serve(self, request: Request) -> None:
        """Fetch one batch in this thread and send it."""
        if self._broken is not None:
            self._send(Reply(request.epoch, request.number, error=self._broken))
            return
        self._current = request.number
        try:
            if self._reader is not None:
                self._enter_note(0, 0, self._spec.batch_size or 1)
                data = self._reader.read()
            else:
                fetching = self._fetching
                assert fetching is not None  # noqa: S101 - a worker has one or the other
                job = fetching.job(self._next_serial(), request.indices)
                reached = fetching.get(job)
                if reached < len(job.items):
                    self._in_crew[job.number] = request
                    fetching.submit(job, start=reached)
                    return
                data = job.items[0] if job.whole or not self._spec.batched else job.items
        except StopIteration:
            if self._reader is not None:
                self._send(Reply(request.epoch, request.number, ended=True))
            else:
                self._send_error(request)
            return
        except Exception:  # noqa: BLE001 - whatever it is belongs to the consumer
            self._send_error(request)
            return
        finally:
            self._note[0] = -1
        self._collate_and_send(request, data)

    def _use_crew(self, fetching: Fetching) -> None:
        """Hand all requests to the crew, and send what it has finished."""
        while self._requests and not self._held():
            request = self._requests.popleft()
            job = fetching.job(self._next_serial(), request.indices)
            self._in_crew[job.number] = request
            fetching.submit(job)
        while fetching.crew is not None:
            finished: Job | None = fetching.crew.book.take()
            if finished is None:
                return
            request = self._in_crew.pop(finished.number)
            if request.epoch != self._epoch:
                continue
            try:
                data = finished.result()
                data = data if self._spec.batched or finished.whole else data[0]
            except Exception:  # noqa: BLE001 - whatever it is belongs to the consumer
                self._send_error(request)
                continue
            self._collate_and_send(request, data)
            del data, finished

    def _collate_and_send(self, request: Request, data: Any) -> None:
        try:
            data = self._spec.collate(data)
        except Exception:  # noqa: BLE001 - whatever it is belongs to the consumer
            self._send_error(request)
            return
        states = None
        if self._reader is not None:
            states = (*self._reader.states(), self._reader.ended)
        elif self._stateful:
            states = (self._spec.dataset.state_dict(), None, False)
        fetching = self._fetching
        depth = 0 if fetching is None or fetching.here else fetching.pace.depth
        gone = self._shelf.gone()
        try:
            self._send(Reply(request.epoch, request.number, data, depth=depth, states=states, gone=gone))
        except Closed:
            raise
        except Exception:  # noqa: BLE001 - it does not pickle, or there is no memory for it
            self._send_error(request, gone)

    def _send_error(self, request: Request, gone: tuple[int, ...] = ()) -> None:
        wrapper = ExceptionWrapper(where=self._where)
        for kind in wrapper.exc_type.__mro__:
            try:
                ForkingPickler.dumps(kind)
            except Exception:  # noqa: BLE001, S112 - a class made in a function: its base will do
                continue
            wrapper.exc_type = kind
            break
        self._send(Reply(request.epoch, request.number, error=wrapper, gone=gone))

    def _send(self, message: Any) -> None:
        self._channel.send(message, self._parent_lives)

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _enter_note(self, _serial: int, position: int, count: int) -> None:
        """Leave word for the parent of what this thread is fetching: it cannot answer meanwhile."""
        self._note[0], self._note[1], self._note[2] = self._current, position, count

    def _debts(self, number: int) -> str:
        """Say what of the request for batch ``number`` is missing, in the crew's words."""
        crew = self._fetching.crew if self._fetching is not None else None
        for serial, request in self._in_crew.items():
            if request.number == number and request.epoch == self._epoch and crew is not None:
                return crew.book.debts(serial).replace(f"batch {serial} ", f"batch {number} ", 1)
        return ""
