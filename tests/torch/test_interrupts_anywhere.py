"""An interrupt at any moment of `next` loses nothing and gives nothing twice: whoever goes on gets each batch once.

The interpreter looks for signals after calls of C code, where functions begin and where loops turn. A trace function
raises at those very places, at one after another, in every function of the drop-in that runs in the asking thread
while a batch is made; each time the epoch is then read to its end.
"""

from __future__ import annotations

import contextlib
import dis
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import penstock.torch
from penstock.torch import DataLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

pytestmark = pytest.mark.timeout(120)
OURS = str(Path(penstock.torch.__file__).parent)
LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")
COUNT, SIZE = 6, 2


class Numbers(Dataset):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return index


class Awaited(Numbers):
    async def __getitem__(self, index: int) -> int:
        return index


class Together(Numbers):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


class Walk:
    """An iterator that an interrupt does not end, as a generator's does."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> int:
        if self.next == COUNT:
            raise StopIteration
        self.next += 1
        return self.next - 1


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return Walk()


class Interrupts:
    """Sends SIGINT at the ``at``-th place, counted over all calls, at which the interpreter would look for it."""

    def __init__(self, at: int) -> None:
        self.at, self.places = at, 0
        self.came_back = False

    def __enter__(self) -> Self:
        sys.settrace(self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _begin(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(OURS) or frame.f_code.co_name == "__del__":
            return None
        frame.f_trace_opcodes = True
        return self._each

    def _each(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "return":
            self.came_back = True  # where Python calls Python, nobody looks on the way back
        elif event == "opcode":
            came_back, self.came_back = self.came_back, False
            if came_back or not _looks_before(frame):
                return self._each
            self.places += 1
            if self.places == self.at:
                # The handler runs here, and what it raises comes out of the traced frame; held back, it does not.
                signal.raise_signal(signal.SIGINT)
        return self._each


_places: dict[Any, set[int]] = {}


def _looks_before(frame: FrameType) -> bool:
    """Whether the instruction before the one that ``frame`` is at ends with a look for signals."""
    code = frame.f_code
    if code not in _places:
        found, before = set(), ""
        for instruction in dis.get_instructions(code):
            if before.startswith(LOOKS):
                found.add(instruction.offset)
            before = instruction.opname
        _places[code] = found
    return frame.f_lasti in _places[code]


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "here": (Numbers, {}),
    "whole batches": (Together, {}),
    "fetchers": (Numbers, {"fetchers": 2}),
    "fetchers, unordered": (Numbers, {"fetchers": 2, "in_order": False}),
    "awaited": (Awaited, {}),
    "iterable": (Stream, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_each_sample_comes_once_whenever_the_interrupt_comes(name: str) -> None:
    kind, more = CASES[name]
    at, interrupted = 1, 0
    while True:
        loader = DataLoader(kind(), batch_size=SIZE, **more)
        running = iter(loader)
        got: list[int] = []
        kept = 0

        def take() -> bool:
            batch = next(running, None)  # noqa: B023 - called in this turn
            if batch is not None:
                got.extend(batch.tolist())  # noqa: B023 - called in this turn
            return batch is not None

        take()
        with contextlib.suppress(KeyboardInterrupt), Interrupts(at) as interrupts:
            kept = 1
            while take():
                pass
            kept = 2
        if kept == 1:
            interrupted += 1
            state = loader.state_dict()
            assert state["batches"] + len(state["beyond"]) == len(got) // SIZE, (
                f"place {at}: what was given out"
            )
        while take():
            pass
        assert sorted(got) == list(range(COUNT)), f"interrupted at place {at}"
        if interrupts.places < at:
            break
        at += 1
    assert interrupted > 40, "it came out of very few places"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("fetchers", [0, 2])
def test_what_collate_raises_is_given_out_and_what_interrupts_it_is_not(
    error: type[BaseException], fetchers: int
) -> None:
    failed = threading.Event()

    def collate(items: list[int]) -> list[int]:
        if items[0] == SIZE and not failed.is_set():
            failed.set()
            raise error
        return items

    running = iter(DataLoader(Numbers(), batch_size=SIZE, collate_fn=collate, fetchers=fetchers))
    got = list(next(running))
    with pytest.raises(error):
        next(running)
    got += [item for batch in running for item in batch]
    lost = set(range(SIZE, 2 * SIZE)) if error is ValueError else set()
    assert got == [item for item in range(COUNT) if item not in lost]


def test_a_generator_that_was_interrupted_says_that_it_cannot_go_on() -> None:
    class Cut(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            yield 0
            yield 1
            raise KeyboardInterrupt

    running = iter(DataLoader(Cut(), batch_size=2))
    assert next(running).tolist() == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        next(running)
    with pytest.raises(RuntimeError, match=r"ended by a KeyboardInterrupt.*after 1 batches.*call iter\(\)"):
        next(running)


def test_a_sampler_is_not_cut_short() -> None:
    """A generator in which an interrupt is raised is over: it comes out after the draw."""

    class Sampler:
        def __iter__(self) -> Iterator[list[int]]:
            yield [0]
            signal.raise_signal(signal.SIGINT)
            yield [1]
            yield [2]

        def __len__(self) -> int:
            return 3

    running = iter(DataLoader(Numbers(), batch_sampler=Sampler()))
    got = next(running).tolist()
    with pytest.raises(KeyboardInterrupt):
        next(running)
    assert got + torch.cat(list(running)).tolist() == [0, 1, 2]
