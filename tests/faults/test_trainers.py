"""Trainers that stop early, fork, interrupt, or hand in a transform that fails; and what is left of each: nothing."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from tests.support import open_files, our_threads

import penstock
from penstock.errors import ClosedError, DeadlineError, TransformError
from penstock.testing.samples import loader_over

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def pictures(picture_folder: Path) -> penstock.Dataset:
    return penstock.open(picture_folder)


CROP = [penstock.RandomResizedCrop(32), penstock.Normalize()]


def settled(look: Any, most: int, patience: float = 5.0) -> Any:
    """What ``look`` gives, once it is little enough or patience is over: threads end a little after they are told to."""
    end = time.monotonic() + patience
    while (found := look()) > most and time.monotonic() < end:
        threading.Event().wait(0.01)
    return found


def test_trainers_that_stop_early_leave_nothing(pictures: penstock.Dataset) -> None:
    with penstock.Loader(pictures, 8, transform=CROP) as loader:  # what is made once is made here
        next(iter(loader))
    gc.collect()
    # Files may become fewer: pytest lets go of what earlier tests raised, and with it of batches.
    files, threads = open_files(), len(our_threads())
    for _ in range(10):
        with penstock.Loader(pictures, 8, transform=[*CROP, dict], window="1GiB") as loader:
            for batch in loader:
                if batch.step == 1:
                    break
    loader = penstock.Loader(pictures, 8, transform=[*CROP, dict])
    iteration = iter(loader)
    next(iteration)
    del loader, iteration, batch  # neither closed nor run to its end
    gc.collect()
    assert settled(lambda: len(our_threads()), threads) <= threads
    assert settled(open_files, files) <= files


def test_an_exception_in_the_training_loop_ends_cleanly(pictures: penstock.Dataset) -> None:
    def trains() -> None:
        with penstock.Loader(pictures, 8, transform=CROP) as loader:
            for batch in loader:
                raise ZeroDivisionError(batch.step)

    with pytest.raises(ZeroDivisionError):
        trains()
    assert settled(lambda: len(our_threads()), 0) == 0


def test_twenty_epochs_take_no_more_of_anything_than_five(pictures: penstock.Dataset) -> None:
    process = psutil.Process()
    marks = []
    with penstock.Loader(pictures, 8, epochs=25, transform=CROP, window="32MiB") as loader:
        for batch in loader:
            if batch.step == len(loader) // 25 - 1:
                del batch
                gc.collect()
                marks.append((process.memory_info().rss, open_files(), len(our_threads())))
        assert loader.stats()["memory_bytes"] <= 32 << 20
    memory, files, threads = zip(*marks[5:], strict=True)
    assert max(memory) - memory[0] < 4 << 20, f"{(max(memory) - memory[0]) >> 10} KiB more after 20 epochs"
    # What is being read just then may count; a descriptor an epoch would be twenty.
    assert max(files) - files[0] <= 2
    assert max(threads) <= threads[0]


def test_memory_stays_within_the_window(tmp_path: Path) -> None:
    import numpy as np

    np.save(tmp_path / "rows.npy", np.zeros((512, 64 << 10), np.uint8))
    with penstock.Loader(penstock.open(tmp_path / "rows.npy"), 16, window="8MiB") as loader:
        for _ in loader:
            assert loader.stats()["memory_bytes"] <= (8 << 20) + 2 * (1 << 20), (
                "the window and the batch that is out"
            )


def test_a_forked_child_is_told_and_the_parent_goes_on(pictures: penstock.Dataset) -> None:
    with penstock.Loader(pictures, 8, transform=CROP) as loader:
        iteration = iter(loader)
        first = next(iteration)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            told = ""
            for attempt in (lambda: next(iteration), lambda: iter(loader), loader.state_dict):
                try:
                    attempt()
                    told += "nothing;"
                except ClosedError:
                    told += "told;"
                except BaseException as error:
                    told += f"{error!r};"
            loader.close()
            os.write(write, told.encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            told = pipe.read()
        assert os.waitpid(child, 0)[1] == 0
        assert told == "told;told;nothing;", "batches are of the parent's; the state may be read anywhere"
        rest = list(iteration)
    ids = sorted(int(id) for batch in [first, *rest] for id in batch.ids)
    assert ids == list(range(60))


def test_a_child_makes_a_loader_of_its_own(pictures: penstock.Dataset) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with penstock.Loader(pictures, 8, transform=CROP, arrays="numpy") as loader:
            os.write(write, bytes(sorted(int(id) for batch in loader for id in batch.ids)))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert list(told) == list(range(60))


@pytest.mark.parametrize("transform", ["[]", "[dict]"])
def test_a_forked_child_ends_as_python_programs_end(picture_folder: Path, transform: str) -> None:
    """With the parent's loader, its threads' locks and its batches in its memory, through all of the interpreter's end."""
    script = f"""
        import os, sys, warnings
        import penstock
        warnings.simplefilter("ignore")
        loader = penstock.Loader(penstock.open({str(picture_folder)!r}), 8, transform={transform})
        batches = iter(loader)
        first = next(batches)
        child = os.fork()
        if child == 0:
            print("child sees", first.size, flush=True)
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print("parent goes on with", sum(batch.size for batch in batches), flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == ["child sees 8", "parent goes on with 52"]
    assert done.stderr == ""


def breaks(fields: dict[str, Any]) -> dict[str, Any]:
    raise ZeroDivisionError("no such thing")


def breaks_on_30(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["number"] == 30:
        raise ZeroDivisionError("no such thing")
    return sample


@pytest.mark.parametrize("processes", [0, 1])
def test_a_transform_that_raises_is_named_with_its_sample(array_folder: Path, processes: int) -> None:
    def number(fields: dict[str, Any]) -> dict[str, Any]:
        return {"number": fields["array"][:, 0, 0]}

    per_sample = penstock.PerSample(breaks_on_30, processes=processes)
    with (
        penstock.Loader(penstock.open(array_folder), 10, transform=[number, per_sample]) as loader,
        pytest.raises(TransformError, match="breaks_on_30 .*sample 30") as told,
    ):
        list(loader)
    assert isinstance(told.value.__cause__, ZeroDivisionError)
    with (
        penstock.Loader(penstock.open(array_folder), 10, transform=[breaks]) as loader,
        pytest.raises(TransformError, match="breaks .*step 0 of epoch 0") as told,
    ):
        list(loader)
    assert isinstance(told.value.__cause__, ZeroDivisionError)


def test_a_transform_that_gives_no_fields_is_told_so(pictures: penstock.Dataset) -> None:
    with (
        penstock.Loader(pictures, 8, transform=[*CROP, lambda fields: None]) as loader,
        pytest.raises(TransformError, match="NoneType"),
    ):
        list(loader)


@pytest.mark.parametrize("per_sample", [False, True])
def test_a_transform_that_never_returns_is_named_at_its_deadline(
    pictures: penstock.Dataset, *, per_sample: bool
) -> None:
    over = threading.Event()

    def never_returns(fields: Any) -> Any:
        over.wait(60)
        return fields

    transform = penstock.PerSample(never_returns) if per_sample else never_returns
    begun = time.monotonic()
    try:
        with (
            penstock.Loader(pictures, 8, transform=[*CROP, transform], timeout=2) as loader,
            pytest.raises(DeadlineError, match="never_returns has not returned for (sample|step)"),
        ):
            list(loader)
        assert time.monotonic() - begun < 20
    finally:
        over.set()


def test_a_program_ends_though_its_transform_never_returns(picture_folder: Path) -> None:
    script = f"""
        import threading, penstock
        def never_returns(fields):
            threading.Event().wait()
        loader = penstock.Loader(penstock.open({str(picture_folder)!r}), 8, transform=[never_returns], timeout=3)
        try:
            next(iter(loader))
        except penstock.errors.DeadlineError as error:
            print("deadline", "never_returns" in str(error))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["deadline", "True"]


_INTERRUPTED = """
    import sys, threading, time
    import penstock
    from penstock.testing.samples import loader_over

    class Stalled:
        def read(self, key, offset, length, timeout):
            print("reading", flush=True)
            threading.Event().wait(timeout)
            raise TimeoutError(key)
        def size(self, key, timeout): return 8
        def list(self, prefix, timeout): return [("a", 8, "")]

    def never_returns(fields):
        print("reading", flush=True)
        threading.Event().wait()

    WHAT = sys.argv[1]
    if WHAT == "store":
        loader = loader_over(Stalled(), {"a": (0, 8)}, timeout=60.0)
    else:
        transform = [never_returns if WHAT == "transform" else penstock.PerSample(never_returns)]
        loader = penstock.Loader(penstock.open(sys.argv[2]), 8, transform=transform)
    try:
        with loader:
            for batch in loader:
                pass
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("what", ["store", "transform", "samples"])
def test_ctrl_c_ends_a_wait_within_a_second(what: str, picture_folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_INTERRUPTED), what, str(picture_folder)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        told = process.stdout.readline()
        while told == "reading\n":
            told = process.stdout.readline()
        taken = time.monotonic() - sent
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()
    assert told == "interrupted\n"
    assert taken < 1.0, f"it took {taken:.2f} s"


class Gated:
    """Gives a read for each time that it is let through."""

    def __init__(self, count: int) -> None:
        self.gate = threading.Semaphore(0)
        self.keys = [f"k{number}" for number in range(count)]

    def read(self, key: str, offset: int, length: int, timeout: float) -> bytes:
        if not self.gate.acquire(timeout=timeout):
            raise TimeoutError(key)
        return bytes([int(key[1:])]) * length

    def size(self, key: str, timeout: float) -> int:
        return 8

    def list(self, prefix: str, timeout: float) -> list[tuple[str, int, str]]:
        return [(key, 8, "") for key in self.keys]


def test_a_loop_left_while_the_store_is_silent_takes_nothing_from_the_next(tmp_path: Path) -> None:
    store = Gated(12)
    rows = dict.fromkeys(store.keys, (0, 8))
    with loader_over(store, rows, batch_size=4, threads=1, transform=[dict], timeout=30) as loader:
        for _ in range(5):
            store.gate.release(4)
            for batch in loader:
                assert batch.step == 0
                break
            begun = time.monotonic()
            following = iter(loader)
            assert time.monotonic() - begun < 0.9
            store.gate.release(100)
            ids = [id for batch in following for id in batch.ids.tolist()]
            assert sorted(ids) == list(range(12))
            while store.gate.acquire(blocking=False):
                pass


def test_ranks_come_from_torch_distributed(array_folder: Path, tmp_path: Path) -> None:
    """Two real processes over gloo: together each sample once, and the same steps."""
    script = f"""
        import sys
        import torch.distributed as dist
        import penstock
        dist.init_process_group("gloo", init_method="file://{tmp_path}/rendezvous", rank=int(sys.argv[1]), world_size=2)
        with penstock.Loader(penstock.open({str(array_folder)!r}), 16, seed=3) as loader:
            for batch in loader:
                print(batch.step, *batch.ids[: batch.size - batch.padding])
        dist.destroy_process_group()
    """
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), str(rank)], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        lines = [rank.communicate(timeout=100)[0].splitlines() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0]
    together = [[int(n) for n in a.split()[1:] + b.split()[1:]] for a, b in zip(*lines, strict=True)]
    with penstock.Loader(penstock.open(array_folder), 16, seed=3) as loader:
        assert together == [batch.ids.tolist() for batch in loader]


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_batches_go_to_other_libraries_by_dlpack(array_folder: Path, kind: str) -> None:
    import numpy as np

    with penstock.Loader(penstock.open(array_folder), 10, arrays=kind) as loader:
        batch = next(iter(loader))
    array = np.from_dlpack(batch["array"])
    tensor = torch.from_dlpack(batch["array"])
    assert (array[:, 0, 0] == batch.ids).all()
    assert tensor.data_ptr() == array.ctypes.data, "the same memory, not a copy"
