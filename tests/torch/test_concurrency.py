"""What is in flight at once, shown by items that wait for one another: too few, and they would never meet."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import Dataset

from penstock.torch import DataLoader

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 20.0


class Calls(Dataset):
    """Items from a function."""

    def __init__(self, count: int, get: Callable[[int], Any]) -> None:
        self.count = count
        self.get = get

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.get(index)


def meet(barrier: Any) -> Callable[[int], int]:
    def get(index: int) -> int:
        barrier.wait(PATIENCE)
        return index

    return get


@pytest.mark.parametrize(("size", "fetchers"), [(8, 8), (2, 8), (1, 8), (5, 20)])
def test_items_of_one_batch_and_of_many_are_in_flight_together(size: int, fetchers: int) -> None:
    dataset = Calls(40, meet(threading.Barrier(fetchers)))
    assert torch.cat(list(DataLoader(dataset, batch_size=size, fetchers=fetchers))).tolist() == list(
        range(40)
    )


def test_in_workers_too() -> None:
    context = multiprocessing.get_context("fork")
    dataset = Calls(40, meet(context.Barrier(8)))
    batches = DataLoader(dataset, batch_size=2, fetchers=4, num_workers=2, multiprocessing_context=context)
    assert torch.cat(list(batches)).tolist() == list(range(40))


def test_tasks_on_the_event_loop_are_in_flight_together() -> None:
    class Awaited(Dataset):
        inside = 0
        most = 0
        all_here: asyncio.Event | None = None

        def __len__(self) -> int:
            return 40

        async def __getitem__(self, index: int) -> int:
            self.all_here = self.all_here or asyncio.Event()
            self.inside += 1
            self.most = max(self.most, self.inside)
            if self.inside == 20:
                self.all_here.set()
            async with asyncio.timeout(PATIENCE):
                await self.all_here.wait()
            self.inside -= 1
            return index

    dataset = Awaited()
    assert torch.cat(list(DataLoader(dataset, batch_size=4, fetchers=20))).tolist() == list(range(40))
    assert dataset.most == 20


@pytest.mark.parametrize("fetchers", [1, 3, 7])
def test_no_more_are_in_flight_than_the_user_said(fetchers: int) -> None:
    lock, inside, most = threading.Lock(), 0, 0

    def get(index: int) -> int:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.001)
        with lock:
            inside -= 1
        return index

    list(DataLoader(Calls(60, get), batch_size=4, fetchers=fetchers))
    assert most <= fetchers


@pytest.mark.parametrize("workers", [0, 2])
def test_a_straggler_holds_up_nobody_but_the_order(workers: int) -> None:
    """Batches behind a slow one are fetched meanwhile, and come out in order."""
    context = multiprocessing.get_context("fork")
    others = context.Semaphore(0)

    def get(index: int) -> int:
        if index != 0:
            others.release()
            return index
        for _ in range(7):
            assert others.acquire(timeout=PATIENCE), "the others were not fetched while index 0 was"
        return index

    batches = DataLoader(Calls(24, get), batch_size=2, fetchers=4, num_workers=workers)
    assert torch.cat(list(batches)).tolist() == list(range(24))


@pytest.mark.parametrize("workers", [0, 2])
def test_whatever_is_done_comes_first_if_order_does_not_matter(workers: int) -> None:
    context = multiprocessing.get_context("fork")
    seen = context.Event()

    def get(index: int) -> int:
        if index == 0:
            assert seen.wait(PATIENCE)
        return index

    loader = DataLoader(Calls(12, get), batch_size=2, fetchers=4, num_workers=workers, in_order=False)
    running = iter(loader)
    first = next(running).tolist()
    seen.set()
    rest = [batch.tolist() for batch in running]
    assert 0 not in first
    assert sorted(sum([first, *rest], [])) == list(range(12))


def test_light_items_are_got_in_the_asking_thread() -> None:
    threads: set[int] = set()

    def get(index: int) -> int:
        threads.add(threading.get_ident())
        return index

    list(DataLoader(Calls(5000, get), batch_size=64))
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("fetchers", [0, 1])
def test_one_fetcher_is_the_asking_thread(fetchers: int) -> None:
    threads: set[int] = set()

    def get(index: int) -> int:
        threads.add(threading.get_ident())
        time.sleep(0.002)
        return index

    list(DataLoader(Calls(20, get), batch_size=4, fetchers=fetchers))
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("workers", [0, 2])
def test_items_that_wait_get_fetchers_unasked(workers: int) -> None:
    def get(index: int) -> int:
        time.sleep(0.02)
        return index

    loader = DataLoader(Calls(400, get), batch_size=16, num_workers=workers)
    start = time.monotonic()
    assert torch.cat(list(loader)).tolist() == list(range(400))
    assert time.monotonic() - start < 4.0, "8 s one after another, and still 4 s in two workers"


def test_a_batch_is_begun_again_by_fetchers_half_way() -> None:
    """Items turn slow in the middle of a batch: what is fetched stays, the rest is handed over."""
    counts = [0] * 64

    def get(index: int) -> int:
        counts[index] += 1
        if index >= 10:
            time.sleep(0.005)
        return index

    (batch,) = DataLoader(Calls(64, get), batch_size=64)
    assert batch.tolist() == list(range(64))
    assert counts == [1] * 64


def test_nothing_is_fetched_before_it_is_asked_for() -> None:
    asked = threading.Event()
    iter(DataLoader(Calls(10, lambda index: asked.set() or index), batch_size=2, fetchers=4))
    assert not asked.is_set()


def test_workers_start_without_being_waited_for() -> None:
    """``iter()`` comes back while every worker is still kept busy at its start."""
    context = multiprocessing.get_context("fork")
    go = context.Event()

    def slow_start(_: int) -> None:
        assert go.wait(PATIENCE)

    running = iter(
        DataLoader(Calls(12, lambda index: index), batch_size=2, num_workers=2, worker_init_fn=slow_start)
    )
    go.set()
    assert torch.cat(list(running)).tolist() == list(range(12))


def test_no_more_workers_start_than_there_are_batches() -> None:
    running = iter(DataLoader(Calls(4, lambda index: index), batch_size=4, num_workers=2))
    assert len(multiprocessing.active_children()) == 1
    assert [batch.tolist() for batch in running] == [[0, 1, 2, 3]]


def test_items_that_compute_on_a_crowded_core_are_not_taken_for_waiting() -> None:
    """Two processes on one core: an item takes twice its CPU time, and no fetcher would bring it sooner."""
    context = multiprocessing.get_context("fork")
    cores = os.sched_getaffinity(0)
    crowd = context.Process(target=spin, daemon=True)
    os.sched_setaffinity(0, {min(cores)})
    try:
        crowd.start()
        loader = DataLoader(Calls(60, compute), batch_size=10)
        began, busy = time.perf_counter(), time.thread_time()
        list(loader)
        shared = (time.thread_time() - busy) / (time.perf_counter() - began)
    finally:
        os.sched_setaffinity(0, cores)
        crowd.kill()
        crowd.join(10)
    assert shared < 0.8, "there was no crowd"
    assert not loader._pace.fetchers


def test_items_that_wait_only_later_get_fetchers_then() -> None:
    """While items compute only the cheap clock is read; it is enough to notice that they no longer do."""

    def get(index: int) -> int:
        return compute(index) if index < 64 else time.sleep(0.004) or index

    loader = DataLoader(Calls(320, get), batch_size=16)
    running = iter(loader)
    got = [next(running) for _ in range(4)]
    assert not loader._pace.fetchers
    assert torch.cat([*got, *running]).tolist() == list(range(320))
    assert loader._pace.fetchers


def spin() -> None:
    while True:
        pass


def compute(index: int) -> int:
    until = time.thread_time() + 4e-3
    while time.thread_time() < until:
        pass
    return index
