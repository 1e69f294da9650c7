"""Fetchers: what gets the items of many batches at once.

`ThreadCrew` calls an ordinary ``__getitem__`` in threads, `LoopCrew` awaits an ``async`` one on an event
loop. Both take requests of the oldest open batch first and enter what arrives in the same `Book`.

**Shutting down.** `close` never waits for an item that is being fetched: threads leave after the item in
hand, tasks are cancelled. Nothing here refers to the iterator that uses it, so that one which is dropped
half-way closes its crew.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import weakref
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import torch

from penstock.torch.jobs import Book, Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.torch.access import Access
    from penstock.torch.pace import Pace

_IDLE = 10.0
"""Seconds after which a thread with nothing to do goes; `submit` starts another."""

_names = itertools.count()
_threads_setting = threading.Lock()


def _renew_lock() -> None:
    global _threads_setting  # a thread of the parent may have held it
    _threads_setting = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class Crew(Protocol):
    """What an iterator or a worker needs of its fetchers."""

    book: Book

    def submit(self, job: Job, *, start: int = 0) -> None:
        """Have the items of ``job`` from position ``start`` on fetched."""

    def close(self, *, patience: float = 0.0) -> None:
        """Let the fetchers go, and wait up to ``patience`` seconds until they have."""


class ThreadCrew:
    """Threads that call ``get``: started when there is work for them, as many as the pace says."""

    def __init__(self, access: Access, pace: Pace, wake: Callable[[], None] | None = None) -> None:
        self.book = Book(pace, wake)
        self._get = access.get
        self._work = threading.Condition(self.book.lock)
        self._alive: set[threading.Thread] = set()
        self._idle = 0
        self._name = f"penstock-fetch-{next(_names)}"
        self._numbers = itertools.count()
        self._pid = os.getpid()

    def submit(self, job: Job, *, start: int = 0) -> None:
        """Have the items of ``job`` from position ``start`` on fetched."""
        with self.book.lock:
            self.book.enter(job, start=start)
            waiting = len(self.book.pending)
            self._work.notify(min(waiting, self._idle))
            new = min(self.book.pace.depth - len(self._alive), waiting - self._idle)
        if new > 0:
            self._start(new)

    def _start(self, count: int) -> None:
        for _ in range(count):
            name = f"{self._name}-{next(self._numbers)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            with self.book.lock:
                self._alive.add(thread)
            try:
                thread.start()
            except BaseException as error:
                with self.book.lock:
                    if thread.ident is None:
                        self._alive.discard(thread)
                    if not isinstance(error, RuntimeError) or not self._alive:
                        raise
                    # The system has no more threads to give: go on with these.
                    self.book.pace.most = len(self._alive)
                    self.book.pace.depth = min(self.book.pace.depth, self.book.pace.most)
                return

    def _run(self) -> None:
        _one_core()
        me = threading.current_thread()
        book, get, name = self.book, self._get, me.name
        while True:
            grow = 0
            with book.lock:
                task = self._wait(me)
                if task is None:
                    self._alive.discard(me)
                    return
                if book.pending and not self._idle:
                    grow = min(book.pace.depth - len(self._alive), len(book.pending), 4)
            if grow > 0:
                self._start(grow)
            job, position = task
            item: Any = None
            error: BaseException | None = None
            try:
                item = get(job.request(position))
            except BaseException as raised:  # noqa: BLE001 - whatever it is belongs to the consumer
                error = raised
            with book.lock:
                finished = book.arrive(name, job, position, item, error)
            del job, item, error, task
            if finished and book.wake is not None:
                book.wake()

    def _wait(self, me: threading.Thread) -> tuple[Job, int] | None:
        """Give this thread's next request; None: there is none and it should go (with the lock held)."""
        book = self.book
        until = monotonic() + _IDLE
        while not book.closed and len(self._alive) <= max(1, book.pace.depth):
            task = book.next(me.name)
            if task is not None:
                return task
            left = until - monotonic()
            if left <= 0.0:
                return None
            self._idle += 1
            try:
                self._work.wait(left)
            finally:
                self._idle -= 1
        return None

    def close(self, *, patience: float = 0.0) -> None:
        """Let the threads go after the item in hand; wait up to ``patience`` seconds until they have."""
        if os.getpid() != self._pid:  # a forked child: the threads, and maybe their lock, stayed behind
            return
        with self.book.lock:
            self.book.closed = True
            self.book.pending.clear()
            self._work.notify_all()
            self.book.done.notify_all()
            me = threading.current_thread()
            threads = [thread for thread in self._alive if thread is not me and thread.ident is not None]
        until = monotonic() + patience
        for thread in threads:
            left = until - monotonic()
            if left <= 0.0:
                return
            thread.join(left)


def _one_core() -> None:
    """Keep torch operations of a fetcher on its own core, as torch does in its workers.

    torch also takes the number as the default of threads that start later; the second line gives that back
    without touching any thread but a helper that is gone at once.
    """
    with _threads_setting:
        before = int(torch.get_num_threads())  # this thread is new: it has the default
        torch.set_num_threads(1)
        if before != 1:
            helper = threading.Thread(target=torch.set_num_threads, args=(before,), daemon=True)
            helper.start()
            helper.join(5.0)


class LoopThread:
    """An event loop in a thread of its own; stopped when the last one who holds this object drops it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(
            target=_serve, args=(self.loop,), name=f"penstock-loop-{next(_names)}", daemon=True
        )
        self.thread.start()
        self._stop = weakref.finalize(self, _stop_loop, self.loop, self.thread, os.getpid())

    def close(self) -> None:
        """Stop the loop and wait a moment for its thread."""
        self._stop()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _stop_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, pid: int) -> None:
    if loop.is_closed() or os.getpid() != pid:
        return
    loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join(2.0)


class LoopCrew:
    """Tasks on an event loop that await ``get``: as many at once as the pace says."""

    def __init__(
        self, access: Access, pace: Pace, home: LoopThread, wake: Callable[[], None] | None = None
    ) -> None:
        self.book = Book(pace, wake)
        self._get = access.get
        self._home = home
        self._loop = home.loop
        self._pid = os.getpid()
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count()

    def submit(self, job: Job, *, start: int = 0) -> None:
        """Have the items of ``job`` from position ``start`` on fetched."""
        with self.book.lock:
            self.book.enter(job, start=start)
        self._loop.call_soon_threadsafe(self._pump)

    def _pump(self) -> None:
        """Start as many tasks as there is room for (on the loop)."""
        while True:
            with self.book.lock:
                if self.book.closed or len(self._tasks) >= max(1, self.book.pace.depth):
                    return
                name = f"task-{next(self._numbers)}"
                request = self.book.next(name)
            if request is None:
                return
            task = self._loop.create_task(self._fetch(*request, name), name=name)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._pump()

    async def _fetch(self, job: Job, position: int, name: str) -> None:
        item: Any = None
        error: BaseException | None = None
        try:
            item = await self._get(job.request(position))
        except BaseException as raised:  # noqa: BLE001 - whatever it is belongs to the consumer
            error = raised
        with self.book.lock:
            finished = self.book.arrive(name, job, position, item, error)
        if finished and self.book.wake is not None:
            self.book.wake()

    def close(self, *, patience: float = 0.0) -> None:
        """Cancel what is being awaited; wait up to ``patience`` seconds until the tasks are gone."""
        if os.getpid() != self._pid:
            return
        with self.book.lock:
            self.book.closed = True
            self.book.pending.clear()
            self.book.done.notify_all()
        if self._loop.is_closed():
            return
        gone = threading.Event()
        try:
            self._loop.call_soon_threadsafe(self._cancel, gone)
        except RuntimeError:  # it closed in between
            return
        if patience > 0.0 and threading.current_thread() is not self._home.thread:
            gone.wait(patience)

    def _cancel(self, gone: threading.Event) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            waiting = self._loop.create_task(asyncio.wait(tasks, timeout=1.0))
            waiting.add_done_callback(lambda _: gone.set())
        else:
            gone.set()
