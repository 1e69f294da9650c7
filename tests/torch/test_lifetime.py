"""Nothing is left over: no thread, no process, no descriptor, however an iterator ends."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import Dataset

from penstock.errors import ClosedError
from penstock.torch import DataLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.timeout(60)


class Calls(Dataset):
    def __init__(self, count: int, get: Callable[[int], Any] = lambda index: index) -> None:
        self.count = count
        self.get = get

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.get(index)


class Awaited(Calls):
    async def __getitem__(self, index: int) -> Any:
        return self.get(index)


def threads() -> int:
    return sum(thread.name.startswith("penstock") for thread in threading.enumerate())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether ``condition`` comes true in time: what is awaited here says nothing when it happens."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    gc.collect()
    before = threads()
    yield
    gc.collect()
    assert until(lambda: threads() <= before), threading.enumerate()
    assert until(lambda: not multiprocessing.active_children()), multiprocessing.active_children()


def to_the_end(running: Any) -> None:
    for _ in running:
        pass


def half_way(running: Any) -> None:
    next(running)


def closed(running: Any) -> None:
    next(running)
    running.close()


def closed_twice(running: Any) -> None:
    closed(running)
    running.close()


ENDS: list[Callable[[Any], None]] = [to_the_end, id, half_way, closed, closed_twice]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Calls, Awaited])
@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_left_after(end: Callable[[Any], None], kind: type[Any], workers: int) -> None:
    loader = DataLoader(kind(40), batch_size=2, fetchers=4, num_workers=workers)
    end(iter(loader))


def test_a_half_used_iterator_is_closed_as_soon_as_it_is_dropped() -> None:
    loader = DataLoader(Calls(40), batch_size=2, num_workers=2)
    running = iter(loader)
    next(running)
    pids = [child.pid for child in multiprocessing.active_children()]
    assert len(pids) == 2
    del running
    assert not any(alive(pid) for pid in pids if pid)


def test_an_iterator_in_a_reference_cycle_is_closed_by_the_collector() -> None:
    before = threads()
    loader = DataLoader(Calls(40), batch_size=2, fetchers=4)
    holder: dict[str, Any] = {"it": iter(loader)}
    holder["self"] = holder
    next(holder["it"])
    assert threads() > before
    del holder
    gc.collect()
    assert until(lambda: threads() <= before)


def test_items_in_flight_do_not_hold_up_who_leaves() -> None:
    go = threading.Event()

    def get(index: int) -> int:
        assert index < 4 or go.wait(20)
        return index

    running = iter(DataLoader(Calls(40, get), batch_size=4, fetchers=8))
    next(running)
    start = time.monotonic()
    del running
    assert time.monotonic() - start < 5
    go.set()


def test_a_worker_that_does_not_end_is_made_to() -> None:
    def get(index: int) -> int:
        if index >= 2:
            threading.Event().wait(60)
        return index

    running = iter(DataLoader(Calls(40, get), batch_size=2, num_workers=1))
    next(running)
    (pid,) = (child.pid for child in multiprocessing.active_children())
    start = time.monotonic()
    del running
    assert time.monotonic() - start < 5
    assert pid
    assert not alive(pid)


def test_many_epochs_hold_no_more_descriptors_than_one() -> None:
    loader = DataLoader(Calls(12, lambda index: torch.full((3000,), index)), batch_size=2, num_workers=2)
    list(loader)
    before = descriptors()
    for _ in range(4):
        list(loader)
    running = iter(loader)
    next(running)
    del running
    gc.collect()
    assert descriptors() <= before


def test_persistent_workers_stay_and_then_go() -> None:
    loader = DataLoader(Calls(8, lambda _: os.getpid()), batch_size=1, num_workers=2, persistent_workers=True)
    first, second = ({int(batch) for batch in loader} for _ in range(2))
    assert first == second
    assert len(first) == 2
    del loader


def test_a_half_used_epoch_of_persistent_workers_is_begun_anew() -> None:
    loader = DataLoader(Calls(20), batch_size=2, num_workers=2, persistent_workers=True, fetchers=3)
    for stop in (0, 1, 5):
        running = iter(loader)
        for _ in range(stop):
            next(running)
    assert torch.cat(list(loader)).tolist() == list(range(20))
    assert torch.cat(list(loader)).tolist() == list(range(20))


def test_two_iterators_of_one_loader_do_not_disturb_each_other() -> None:
    loader = DataLoader(Calls(20), batch_size=2, fetchers=3)
    one, two = iter(loader), iter(loader)
    pairs = [(a.tolist(), b.tolist()) for a, b in zip(one, two, strict=True)]
    assert pairs == [([2 * n, 2 * n + 1],) * 2 for n in range(10)]
    assert list(one) == [], "what has ended stays ended"


def in_child(body: Callable[[], bool]) -> bool:
    """Run ``body`` in a forked child; whether it came back true in time."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if body() else 1)
        except BaseException:
            os._exit(2)
    status: list[int] = []

    def ended() -> bool:
        pid, code = os.waitpid(child, os.WNOHANG)
        if pid:
            status.append(os.waitstatus_to_exitcode(code))
        return bool(pid)

    if not until(ended, 20):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return False
    return status == [0]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_in_a_forked_child_the_iterator_says_so_and_the_loader_works(workers: int) -> None:
    loader = DataLoader(Calls(20), batch_size=2, fetchers=3, num_workers=workers)
    running = iter(loader)
    next(running)

    def child() -> bool:
        nonlocal running
        try:
            next(running)
        except ClosedError as error:
            assert "call iter()" in str(error)
        else:
            return False
        del running
        gc.collect()
        return torch.cat(list(DataLoader(Calls(20), batch_size=2, fetchers=3))).tolist() == list(range(20))

    assert in_child(child)
    assert [batch.tolist() for batch in running] == [[2 * n, 2 * n + 1] for n in range(1, 10)]


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import os
        from penstock.torch import DataLoader
        loader = DataLoader(list(range(100)), num_workers=2)
        running = iter(loader)
        next(running)
        import multiprocessing
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        os.kill(os.getpid(), 9)
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=50, check=False)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    assert until(lambda: not any(alive(pid) for pid in pids), 20)


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "method",
    [
        "fork",
        pytest.param("spawn", marks=pytest.mark.slow),
        pytest.param("forkserver", marks=pytest.mark.slow),
    ],
)
def test_every_way_to_start_workers(method: str, tmp_path: Path) -> None:
    """Slow: `pytest -m slow tests/torch` (two interpreters that import torch)."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import torch
        from penstock.torch import DataLoader
        class Squares(torch.utils.data.Dataset):
            def __len__(self): return 20
            def __getitem__(self, index): return torch.full((2000,), float(index * index))
        if __name__ == "__main__":
            loader = DataLoader(Squares(), batch_size=3, num_workers=2, multiprocessing_context="{method}")
            for epoch in range(2):
                assert torch.cat(list(loader))[:, 0].tolist() == [float(n * n) for n in range(20)]
            running = iter(loader)
            next(running)
            print("fine")
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=110, check=False)
    assert done.stdout == "fine\n", done.stderr
    assert done.returncode == 0
    assert done.stderr == ""


def test_a_program_may_end_in_the_middle_of_everything(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import asyncio, time
        from penstock.torch import DataLoader
        class Slow:
            def __len__(self): return 1000
            def __getitem__(self, index): time.sleep(0.01); return index
        class Async(Slow):
            async def __getitem__(self, index): await asyncio.sleep(0.01); return index
        kept = []
        for kind in (Slow, Async):
            for workers in (0, 1):
                kept.append(iter(DataLoader(kind(), batch_size=4, fetchers=8, num_workers=workers)))
                next(kept[-1])
        print("fine")
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=50, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)
