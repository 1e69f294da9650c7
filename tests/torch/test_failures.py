"""What goes wrong comes out: the right type, where it happened, what is owed by whom, and never a hang."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, IterableDataset

from penstock.errors import DeadlineError, PenstockError
from penstock.torch import BatchDeadlineError, DataLoader, WorkerDiedError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(60)
EVERYWHERE = pytest.mark.parametrize("workers", [0, 2])
FETCHERS = pytest.mark.parametrize("fetchers", [None, 1, 4])


class Trouble(Exception):
    """An error with arguments of its own."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(index, why)
        self.index = index


class Calls(Dataset):
    def __init__(self, count: int, get: Callable[[int], Any]) -> None:
        self.count = count
        self.get = get

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.get(index)


class Awaited(Calls):
    async def __getitem__(self, index: int) -> Any:
        return self.get(index)


def fails_at(*bad: int, error: type[Exception] = ValueError) -> Callable[[int], int]:
    def look_closely(index: int) -> int:
        if index in bad:
            raise error(f"no good: {index}")
        return index

    return look_closely


@FETCHERS
@pytest.mark.parametrize("kind", [Calls, Awaited])
def test_in_this_process_the_error_is_the_datasets_own(kind: type[Any], fetchers: int | None) -> None:
    original = Trouble(5, "broken")

    def get(index: int) -> int:
        if index == 5:
            raise original
        return index

    running = iter(DataLoader(kind(8, get), batch_size=4, fetchers=fetchers))
    next(running)
    with pytest.raises(Trouble) as caught:
        next(running)
    assert caught.value is original
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-1] == "get", "with the traceback of where it happened"


@FETCHERS
@pytest.mark.parametrize("error", [ValueError, KeyError, IndexError, OSError])
def test_from_a_worker_it_has_the_type_and_the_traceback(
    error: type[Exception], fetchers: int | None
) -> None:
    get = fails_at(5, error=error)
    with pytest.raises((error, RuntimeError)) as torchs:
        list(TorchLoader(Calls(8, get), batch_size=4, num_workers=1))
    with pytest.raises((error, RuntimeError)) as ours:
        list(DataLoader(Calls(8, get), batch_size=4, num_workers=1, fetchers=fetchers))
    assert ours.type is torchs.type
    for part in ("in DataLoader worker process 0", "Original Traceback", "look_closely", "no good: 5"):
        assert part in str(ours.value), part


def test_an_error_that_needs_arguments_becomes_a_runtime_error_as_in_torch() -> None:
    def get(index: int) -> int:
        raise Trouble(index, "broken")

    with pytest.raises(RuntimeError, match="Caught Trouble in DataLoader worker process 0"):
        list(DataLoader(Calls(2, get), num_workers=1))


def test_an_error_that_cannot_be_sent_comes_as_what_it_derives_from() -> None:
    class Local(LookupError):
        pass

    with pytest.raises(LookupError, match="Local: no good: 1"):
        list(DataLoader(Calls(2, fails_at(1, error=Local)), num_workers=1))


def test_a_batch_that_cannot_be_sent_is_an_error() -> None:
    with pytest.raises(Exception, match="in DataLoader worker process 0") as caught:
        list(DataLoader(Calls(2, lambda index: lambda: index), num_workers=1, collate_fn=lambda items: items))
    assert "pickle" in str(caught.value)


@EVERYWHERE
@FETCHERS
def test_after_an_error_the_next_batches_come(workers: int, fetchers: int | None) -> None:
    running = iter(
        DataLoader(Calls(12, fails_at(1, 6)), batch_size=4, num_workers=workers, fetchers=fetchers)
    )
    outcomes: list[Any] = []
    while len(outcomes) < 10:
        try:
            outcomes.append(next(running).tolist())
        except ValueError:
            outcomes.append("error")
        except StopIteration:
            break
    assert outcomes == ["error", "error", [8, 9, 10, 11]]


@FETCHERS
def test_of_several_errors_the_first_items_counts(fetchers: int | None) -> None:
    with pytest.raises(ValueError, match="no good: 3"):
        list(DataLoader(Calls(8, fails_at(7, 3, 5)), batch_size=8, fetchers=fetchers))


@EVERYWHERE
@FETCHERS
def test_stop_iteration_in_an_item_does_not_end_the_epoch_in_silence(
    workers: int, fetchers: int | None
) -> None:
    """It does with torch, where the rest of the data are then missing."""
    dataset = Calls(8, fails_at(5, error=StopIteration))
    running = iter(DataLoader(dataset, batch_size=2, num_workers=workers, fetchers=fetchers))
    assert [next(running).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        next(running)
    assert next(running).tolist() == [6, 7]


@EVERYWHERE
def test_an_error_in_collate_comes_out(workers: int) -> None:
    with pytest.raises(ZeroDivisionError):
        list(DataLoader([1, 2], num_workers=workers, collate_fn=lambda _: 1 // 0))


@EVERYWHERE
def test_an_error_in_the_sampler_comes_out(workers: int) -> None:
    class Bad:
        def __iter__(self) -> Any:
            yield 0
            raise LookupError("no more order")

    with pytest.raises(LookupError, match="no more order"):
        list(DataLoader([1, 2], sampler=Bad(), num_workers=workers))


def test_an_error_in_worker_init_comes_out_with_every_batch() -> None:
    def init(_: int) -> None:
        raise FileNotFoundError("no licence file")

    running = iter(DataLoader([1, 2], num_workers=1, worker_init_fn=init))
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="no licence file"):
            next(running)


@EVERYWHERE
def test_an_error_in_an_iterable_comes_out(workers: int) -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Any:
            yield 1
            raise ConnectionResetError("gone")

    running = iter(DataLoader(Stream(), num_workers=workers))
    for _ in range(workers or 1):
        next(running)
    with pytest.raises(ConnectionResetError, match="gone"):
        next(running)


@EVERYWHERE
def test_ctrl_c_comes_out_and_the_rest_is_still_there(workers: int) -> None:
    seen = threading.Event()

    def get(index: int) -> int:
        if index == 2 and not seen.is_set():
            seen.set()
            os.kill(parent, signal.SIGINT)
            time.sleep(0.2)
        return index

    parent = os.getpid()
    running = iter(DataLoader(Calls(6, get), batch_size=2, num_workers=workers))
    got: list[int] = []
    interrupts = 0
    while True:
        try:
            batch = next(running)
        except KeyboardInterrupt:
            interrupts += 1
            continue
        except StopIteration:
            break
        got += batch.tolist()
    assert interrupts == 1
    assert got == [0, 1, 2, 3, 4, 5]


def test_ctrl_c_interrupts_the_wait_for_fetchers() -> None:
    go, begun = threading.Event(), threading.Event()

    def get(index: int) -> int:
        begun.set()
        assert go.wait(20)
        return index

    def interrupt() -> None:
        begun.wait(20)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    running = iter(DataLoader(Calls(4, get), batch_size=2, fetchers=2))
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        next(running)
    assert time.monotonic() - start < 10
    go.set()
    assert torch.cat(list(running)).tolist() == [0, 1, 2, 3]


# Deadlines


def stuck_at(bad: int) -> Callable[[int], int]:
    def get(index: int) -> int:
        if index == bad:
            threading.Event().wait(30)
        return index

    return get


@pytest.mark.parametrize("kind", [Calls, None])
def test_a_late_item_is_named_with_the_fetcher_that_is_at_it(kind: Any) -> None:
    class Stuck(Calls):
        async def __getitem__(self, index: int) -> int:
            if index == 6:
                await asyncio.sleep(30)
            return index

    dataset = (kind or Stuck)(8, stuck_at(6))
    running = iter(DataLoader(dataset, batch_size=4, timeout=0.4, fetchers=3))
    assert next(running).tolist() == [0, 1, 2, 3]
    with pytest.raises(
        DeadlineError, match=r"timed out after 0.4 seconds.*batch 1 lacks index 6;.*at index 6"
    ) as caught:
        next(running)
    assert isinstance(caught.value, RuntimeError), "as torch raises"
    assert isinstance(caught.value, BatchDeadlineError)


@pytest.mark.parametrize(
    ("fetchers", "words"),
    [(1, r"asked for one after another the indices 5, 6, 7,"), (3, "lacks index 6;.*at index 6")],
)
def test_a_late_item_in_a_worker_is_named_with_the_worker(fetchers: int, words: str) -> None:
    loader = DataLoader(Calls(8, stuck_at(6)), batch_size=4, timeout=1.0, num_workers=2, fetchers=fetchers)
    running = iter(loader)
    assert next(running).tolist() == [0, 1, 2, 3]
    with pytest.raises(DeadlineError, match=rf"worker 1 \(pid \d+\) owes it; batch 1.*{words}"):
        next(running)


def test_a_late_iterable_is_named_with_the_worker() -> None:
    class Stuck(IterableDataset):
        def __iter__(self) -> Any:
            threading.Event().wait(30)
            yield 1

    with pytest.raises(
        DeadlineError, match=r"worker 0 \(pid \d+\) owes it; .*the next items of its iterable"
    ):
        next(iter(DataLoader(Stuck(), timeout=0.3, num_workers=1)))


def test_a_late_batch_can_still_come() -> None:
    go = threading.Event()

    def get(index: int) -> int:
        assert go.wait(20)
        return index

    running = iter(DataLoader(Calls(4, get), batch_size=4, timeout=0.2, fetchers=2))
    with pytest.raises(DeadlineError):
        next(running)
    go.set()
    assert next(running).tolist() == [0, 1, 2, 3]


# Workers that die


@FETCHERS
def test_a_killed_worker_is_an_error_that_names_it(fetchers: int | None) -> None:
    def get(index: int) -> int:
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    start = time.monotonic()
    with pytest.raises(
        WorkerDiedError, match=r"worker 1 \(pid \d+\) is killed by signal: SIGKILL.*indices \[4, 5"
    ) as it:
        list(DataLoader(Calls(16, get), batch_size=4, num_workers=2, fetchers=fetchers))
    assert time.monotonic() - start < 10
    assert isinstance(it.value, RuntimeError)
    assert isinstance(it.value, PenstockError)


def test_a_worker_that_exits_is_an_error_with_its_code() -> None:
    def get(index: int) -> int:
        os._exit(7)

    with pytest.raises(RuntimeError, match=r"worker 0 \(pid \d+\) exited unexpectedly with exit code 7"):
        list(DataLoader(Calls(4, get), num_workers=1))


def test_what_a_dead_worker_had_sent_is_not_lost() -> None:
    def get(index: int) -> int:
        if index == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    running = iter(DataLoader(Calls(8, get), batch_size=2, num_workers=1, fetchers=1))
    assert next(running).tolist() == [0, 1]
    assert next(running).tolist() == [2, 3]
    with pytest.raises(WorkerDiedError):
        next(running)
