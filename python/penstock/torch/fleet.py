"""The worker processes of one DataLoader, as the parent sees them: started, spoken to, missed, ended.

**Ending.** A worker is asked to end; one that does not within the patience given is terminated, and then
killed, so that nothing is left over in any case. A `Fleet` knows nothing of the iterator that uses it.
"""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

from penstock.torch.failures import WorkerDiedError
from penstock.torch.jobs import SIGNAL_S, some
from penstock.torch.parcels import Channel, Closed, Parcel
from penstock.torch.worker import End, Owes, Request, Spec, main

if TYPE_CHECKING:
    from collections.abc import Callable

_ANSWER_S = 1.0
"""Seconds a worker has to say what it owes."""


class Seat:
    """One worker: its process, its channel, what it was asked for and has not given."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.process: Any = None
        self.channel: Channel | None = None
        self.outbox: deque[Parcel] = deque()
        self.owed: dict[int, Request] = {}
        self.asked = 0
        self.depth = 0
        self.ended = False
        self.gone = False
        self.note: Any = None
        self.answers: dict[int, str] = {}

    @property
    def name(self) -> str:
        """How errors speak of it."""
        return f"worker {self.id} (pid {self.process.pid})"


class Fleet:
    """All workers of one loader. ``make``: gives the `Spec` of a worker by its id."""

    def __init__(self, count: int, context: Any, make: Callable[[int], Spec]) -> None:
        self.seats = [Seat(id) for id in range(count)]
        self._context = context
        self._make = make
        self._poll = select.poll()
        self._by_descriptor: dict[int, Seat] = {}
        self._pid = os.getpid()
        self._closed = False

    def say(self, seat: Seat, message: Any) -> None:
        """Send ``message`` to the worker of ``seat``, starting it if it is not there; never waits."""
        if seat.process is None:
            self._start(seat)
        seat.outbox.append(Parcel(message))
        self._flush(seat)

    def _start(self, seat: Seat) -> None:
        channel, socket = Channel.pair()
        process: Any = None
        try:
            spec = self._make(seat.id)
            inherits = self._context.get_start_method() == "fork"
            if inherits:
                others = [other.channel.sock for other in self.seats if other.channel is not None]
                spec.strangers = [*others, channel.sock]
            seat.note = self._context.RawArray("q", 3)
            seat.note[0] = -1
            process = self._context.Process(target=main, args=(spec, socket, seat.note), daemon=True)
            process.start()
        except BaseException:
            channel.close()
            raise
        finally:
            socket.close()
        seat.process, seat.channel = process, channel
        for descriptor in (channel.fileno(), process.sentinel):
            self._by_descriptor[descriptor] = seat
            self._poll.register(descriptor, select.POLLIN)

    def _flush(self, seat: Seat) -> None:
        channel = seat.channel
        if channel is None or seat.gone:
            seat.outbox.clear()
            return
        try:
            while seat.outbox and seat.outbox[0].post(channel.sock):
                seat.outbox.popleft()
        except ConnectionError:
            seat.outbox.clear()  # it is dead; its sentinel tells
            return
        self._poll.modify(channel.fileno(), select.POLLIN | (select.POLLOUT if seat.outbox else 0))

    def listen(
        self,
        deadline: float,
        take: Callable[[Seat, Any, int], None],
        check: Callable[[], None] = lambda: None,
    ) -> bool:
        """Wait until something came, and ``take`` all that did; False if nothing came until ``deadline``.

        ``check`` is called between waits, where nothing has been taken that could be lost.

        WorkerDiedError if a worker ended that still owes something, after all that it had sent was taken.
        """
        while True:
            ready = self._poll.poll(max(0.0, min(SIGNAL_S, deadline - monotonic())) * 1000)
            check()
            came = False
            for descriptor in {id(self._by_descriptor[fd]): fd for fd, _ in ready}.values():
                seat = self._by_descriptor[descriptor]
                self._flush(seat)
                came |= self._drain(seat, take)
            if came:
                return True
            if not ready and monotonic() >= deadline:
                return False

    def _drain(self, seat: Seat, take: Callable[[Seat, Any, int], None]) -> bool:
        came = False
        dead = not seat.process.is_alive()
        channel = seat.channel
        while channel is not None and not seat.gone:
            try:
                received = channel.receive()
            except Closed:
                dead = True
                break
            if received is None:
                break
            came = True
            message, size = received
            if isinstance(message, Owes):
                seat.answers[message.number] = message.text
            else:
                take(seat, message, size)
        if dead and not seat.gone:
            seat.gone = True
            seat.process.join(_ANSWER_S)
            self._forget(seat)
            if seat.owed and not came:
                raise self.obituary(seat)
            came |= bool(seat.owed)
        return came

    def _forget(self, seat: Seat) -> None:
        for descriptor in [fd for fd, whose in self._by_descriptor.items() if whose is seat]:
            self._poll.unregister(descriptor)
            del self._by_descriptor[descriptor]

    def obituary(self, seat: Seat) -> WorkerDiedError:
        """Say that and how the worker of ``seat`` died, and what it owed."""
        code = seat.process.exitcode
        if code is not None and code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = str(-code)
            how = f"is killed by signal: {name}"
        else:
            how = f"exited unexpectedly with exit code {code}"
        owed = sorted(seat.owed)
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return WorkerDiedError(
            f"DataLoader worker {seat.id} (pid {seat.process.pid}) {how}{hint}. It owed batch {owed[0]}"
            f"{f' and {len(owed) - 1} more' if len(owed) > 1 else ''}: {self._asked(seat, owed[0])}"
        )

    def debts(self, seat: Seat, number: int, take: Callable[[Seat, Any, int], None]) -> str:
        """Say which indices of batch ``number`` its worker lacks: in its own words, or by its last note."""
        if not seat.gone:
            self.say(seat, Owes(number))
            deadline = monotonic() + _ANSWER_S
            while number not in seat.answers and self.listen(deadline, take):
                pass
        answer = seat.answers.pop(number, "")
        if answer:
            return answer
        current, position, count = seat.note[0], seat.note[1], seat.note[2]
        if current == number:
            indices = getattr(seat.owed.get(number), "indices", None)
            if isinstance(indices, list | tuple) and len(indices) > position:
                part = some(list(indices[position : position + count]))
                each = f"index {part}" if count == 1 else f"one after another the indices {part}"
                return f"batch {number}: the dataset has been asked for {each}, and has not returned"
            asked = self._asked(seat, number)
            return f"batch {number}: the dataset has been asked for {asked} and has not returned"
        return f"batch {number}: {self._asked(seat, number)}"

    def _asked(self, seat: Seat, number: int) -> str:
        indices = getattr(seat.owed.get(number), "indices", None)
        if indices is None:
            return "the next items of its iterable"
        text = repr(indices)
        return f"indices {text if len(text) <= 120 else text[:117] + '...'}"

    def close(self, *, patience: float = 0.5) -> None:
        """End all workers; those that do not end within ``patience`` seconds are made to."""
        if self._closed:
            return
        self._closed = True
        seats = [seat for seat in self.seats if seat.channel is not None]
        if os.getpid() != self._pid:  # a forked child: the workers are its parent's
            for seat in seats:
                if seat.channel is not None:
                    seat.channel.close()
            return
        for seat in seats:
            seat.outbox.clear()
            if not seat.gone:
                self.say(seat, End())
        _join(seats, patience)
        for stop in ("terminate", "kill"):
            late = [seat for seat in seats if seat.process.is_alive()]
            for seat in late:
                getattr(seat.process, stop)()
            _join(late, 0.5)
        for seat in seats:
            if seat.channel is not None:
                seat.channel.close()
            if not seat.process.is_alive():
                seat.process.close()


def _join(seats: list[Seat], patience: float) -> None:
    until = monotonic() + patience
    for seat in seats:
        seat.process.join(max(0.0, until - monotonic()))
