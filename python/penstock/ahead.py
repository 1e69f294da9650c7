"""A thread that works ahead of the trainer."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

from penstock.errors import DeadlineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.batch import Batch

_SLICE = 0.1
"""Seconds between two looks at whether the other side is still there."""

_PATIENCE = 5.0
"""Seconds that the thread gets to leave the pipeline when the loop is over; it is woken there, and needs a few ms."""


def run_ahead(
    batches: Iterator[Batch],
    work: Callable[[Batch], Batch],
    depth: int,
    timeout: float,
    wake: Callable[[], None],
) -> Iterator[Batch]:
    """Yields ``work(batch)`` for each batch, up to ``depth`` of them done ahead in a thread.

    An exception in the thread is raised here, at its place in the order. Closing the iterator waits until the thread
    no longer touches ``batches``, so that a next loop cannot meet it there; ``wake`` ends its wait for a batch. A call of
    ``work`` is not waited for: one that never returns is left to a daemon thread, which ends after it.
    """
    done: queue.Queue[Batch | BaseException | None] = queue.Queue(depth)
    stop = threading.Event()
    working = (
        threading.Event()
    )  # the thread is in a call of work, and looks at stop before it asks for another batch

    def give(item: Batch | BaseException | None) -> bool:
        while not stop.is_set():
            try:
                done.put(item, timeout=_SLICE)
            except queue.Full:
                continue
            return True
        return False

    def run() -> None:
        try:
            for batch in batches:
                working.set()
                if stop.is_set() or not give(work(batch)):
                    return
                working.clear()
                if stop.is_set():
                    return
            give(None)
        except BaseException as error:  # noqa: BLE001 - raised again in the training loop
            give(error)

    thread = threading.Thread(target=run, name="penstock-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item = _take(done, thread, timeout)
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        end = time.monotonic() + _PATIENCE
        while thread.is_alive() and not working.is_set() and time.monotonic() < end:
            wake()
            thread.join(0.01)
        thread.join(0.05)  # usual calls of work are over by then


def _take(
    done: queue.Queue[Batch | BaseException | None], thread: threading.Thread, timeout: float
) -> Batch | BaseException | None:
    # The feed and each stage have deadlines of their own and say more; this one catches what they cannot.
    deadline = time.monotonic() + 2 * timeout + 1
    while True:
        try:
            return done.get(timeout=_SLICE)
        except queue.Empty:
            if not thread.is_alive() and done.empty():
                raise DeadlineError(
                    "the loader's thread ended without a word; this is a bug in penstock"
                ) from None
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"no batch came within {2 * timeout + 1:g} s: the loader's thread {thread.name} owes it"
                ) from None
