"""Memory of batches from workers is used again, and never while anybody has it."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, default_collate

from penstock.torch import DataLoader
from penstock.torch.shelf import Shelf

pytestmark = pytest.mark.timeout(60)
LENGTH = 50_000


class Filled(Dataset):
    def __init__(self, count: int, lengths: tuple[int, ...] = (LENGTH,)) -> None:
        self.count, self.lengths = count, lengths

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.lengths[index // 2 % len(self.lengths)],), index, dtype=torch.int32)


def as_filled(batch: torch.Tensor, number: int) -> bool:
    return bool((batch[0] == 2 * number).all() and (batch[1] == 2 * number + 1).all())


def own_collate(items: list[Any]) -> Any:
    return {"x": default_collate(items), "n": len(items)}


def from_plain_memory(items: list[Any]) -> Any:
    return {"x": torch.cat([item[None] for item in items]), "n": len(items)}


@pytest.mark.parametrize("collate", [None, own_collate, from_plain_memory])
def test_memory_that_was_dropped_is_used_again(collate: Any) -> None:
    places = set()
    loader = DataLoader(Filled(80), batch_size=2, num_workers=1, collate_fn=collate)
    for number, given in enumerate(loader):
        batch = given if collate is None else given["x"]
        assert as_filled(batch, number)
        places.add(batch.data_ptr())
        batch.fill_(-1)
        del batch, given
    assert len(places) <= 5, "40 batches lay in few places"


def test_memory_that_is_kept_stays_as_it_is() -> None:
    whole, slices, arrays = [], [], []
    for number, batch in enumerate(DataLoader(Filled(60), batch_size=2, num_workers=2)):
        match number % 4:
            case 0:
                whole.append((number, batch))
            case 1:
                slices.append((number, batch[:, 7:9]))
            case 2:
                arrays.append((number, batch.numpy()[:, ::1000]))
        del batch
    for kept in (whole, slices, arrays):
        assert all(as_filled(batch, number) for number, batch in kept)


def test_batches_of_many_sizes() -> None:
    loader = DataLoader(Filled(120, (50_000, 300, 20_000, 3000, 90_000, 1)), batch_size=2, num_workers=2)
    assert all(as_filled(batch, number) for number, batch in enumerate(loader))


def test_more_tensors_than_go_by_descriptor() -> None:
    class Wide(Filled):
        def __getitem__(self, index: int) -> Any:
            return [torch.full((2000,), index * column) for column in range(150)]

    for number, columns in enumerate(DataLoader(Wide(12), batch_size=2, num_workers=1)):
        for column, batch in enumerate(columns):
            assert batch[:, 0].tolist() == [2 * number * column, (2 * number + 1) * column]


def test_a_forked_child_keeps_the_batches_that_its_parent_drops() -> None:
    running = iter(DataLoader(Filled(80), batch_size=2, num_workers=1))
    first, second = next(running), next(running)
    mine, its = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(30)  # whatever happens, it is not left behind
            torch.set_num_threads(1)  # those of the parent stayed there
            os.close(its)
            os.read(mine, 1)  # until the parent has read on
            os._exit(0 if as_filled(first, 0) and as_filled(second, 1) else 1)
        finally:
            os._exit(2)
    os.close(mine)
    del first, second
    assert all(as_filled(batch, number) for number, batch in enumerate(running, 2))
    os.close(its)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_batch_that_the_worker_keeps_is_not_built_over() -> None:
    """The collate function gives its first batch again and again."""
    kept: list[torch.Tensor] = []

    def collate(items: list[Any]) -> Any:
        batch = default_collate(items)
        kept.append(batch)
        return kept[0], batch

    for number, (first, batch) in enumerate(
        DataLoader(Filled(40), batch_size=2, num_workers=1, collate_fn=collate)
    ):
        assert as_filled(first, 0)
        assert as_filled(batch, number)
        if number:
            batch.fill_(-1)


def test_what_was_kept_and_dropped_is_given_back() -> None:
    running = iter(DataLoader(Filled(200), batch_size=2, num_workers=1))
    kept = [next(running) for _ in range(60)]
    memory = running._fleet.seats[0].channel.leases._memory
    assert len(memory) >= 60
    kept.clear()
    for _ in range(30):
        next(running)
    assert sum(len(piece) for piece in memory.values()) <= 20 << 20, "of 24 MB and more"


def test_batches_go_on_to_other_processes() -> None:
    context = torch.multiprocessing.get_context("fork")
    queue, answers = context.SimpleQueue(), context.SimpleQueue()

    def look() -> None:
        torch.set_num_threads(1)  # those of the parent stayed there
        got = [queue.get() for _ in range(10)]
        answers.put([as_filled(batch, number) for number, batch in enumerate(got)])

    other = context.Process(target=look, daemon=True)
    other.start()
    for batch in DataLoader(Filled(20), batch_size=2, num_workers=1):
        queue.put(batch)
        del batch
    other.join(30)
    assert answers.get() == [True] * 10


def test_threads_get_pieces_of_their_own() -> None:
    shelf, rooms = Shelf(), []

    def take() -> None:
        for _ in range(5):
            room = shelf.room(10_000)
            assert room is not None
            rooms.append(room)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len({room.data_ptr() for room in rooms}) == 20
    rooms.clear()
    again = shelf.room(9_000)
    assert again is not None
    assert shelf.piece_of(again.untyped_storage()) is not None
    shelf.take_back([], [], 0)
    assert len(shelf._pieces) <= 21
