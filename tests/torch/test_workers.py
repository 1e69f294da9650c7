"""What worker processes know and give: seeds, ids and order as with torch, for map-style and iterable datasets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from penstock.torch import DataLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(60)


class Asked(Dataset):
    """Items that say what the worker knows of itself."""

    def __init__(self) -> None:
        self.mark = 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, int, int, int, bool, int, int]:
        info = get_worker_info()
        threads = torch.get_num_threads()
        return index, info.id, info.num_workers, info.seed, info.dataset is self, self.mark, threads


def rows(batches: Any) -> list[list[Any]]:
    return [torch.stack([column.long() for column in batch]).T.tolist() for batch in batches]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("fetchers", [None, 3])
def test_workers_know_of_themselves_what_torchs_do(workers: int, fetchers: int | None) -> None:
    torch.manual_seed(6)
    expected = rows(TorchLoader(Asked(), batch_size=2, num_workers=workers))
    torch.manual_seed(6)
    assert rows(DataLoader(Asked(), batch_size=2, num_workers=workers, fetchers=fetchers)) == expected
    assert get_worker_info() is None


def test_the_dataset_of_a_worker_is_prepared_by_worker_init() -> None:
    def init(worker: int) -> None:
        get_worker_info().dataset.mark = 100 + worker

    batches = rows(DataLoader(Asked(), batch_size=2, num_workers=2, worker_init_fn=init))
    assert [[row[5] for row in batch] for batch in batches] == [[100, 100], [101, 101]] * 3


def test_here_there_is_no_worker() -> None:
    class Here(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> bool:
            return get_worker_info() is None

    assert torch.cat(list(DataLoader(Here(), fetchers=3))).all()


class Shares(IterableDataset):
    """Worker n gives ``lengths[n]`` items."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker = info.id if info else 0
        return iter(range(100 * worker, 100 * worker + self.lengths[worker]))


@pytest.mark.parametrize("lengths", [(7, 7), (1, 9), (9, 0), (0, 0), (8, 3)])
@pytest.mark.parametrize(
    "arguments", [{"batch_size": 2}, {"batch_size": 2, "drop_last": True}, {"batch_size": None}]
)
@pytest.mark.parametrize("persistent", [False, True])
def test_iterable_workers_give_in_turn_as_torchs_do(
    lengths: tuple[int, ...], arguments: dict[str, Any], persistent: bool
) -> None:
    def epochs(kind: type[Any]) -> list[Any]:
        loader = kind(Shares(*lengths), num_workers=2, persistent_workers=persistent, **arguments)
        return [[torch.as_tensor(batch).tolist() for batch in loader] for _ in range(2)]

    assert epochs(DataLoader) == epochs(TorchLoader)


@pytest.mark.parametrize(
    "arguments", [{"batch_size": 3}, {"batch_size": 3, "drop_last": True}, {"batch_size": None}]
)
def test_iterable_here_is_torchs(arguments: dict[str, Any]) -> None:
    def batches(kind: type[Any]) -> list[Any]:
        return [torch.as_tensor(batch).tolist() for batch in kind(Shares(10), **arguments)]

    assert batches(DataLoader) == batches(TorchLoader)


def test_iterable_out_of_order_gives_every_item_once() -> None:
    batches = DataLoader(Shares(9, 4), batch_size=2, num_workers=2, in_order=False)
    assert sorted(torch.cat(list(batches)).tolist()) == [*range(9), *range(100, 104)]


@pytest.mark.parametrize("workers", [0, 2])
def test_more_items_than_the_iterable_promised_are_warned_of(workers: int) -> None:
    class Promise(Shares):
        def __len__(self) -> int:
            return 2

    loader = DataLoader(Promise(5, 5), batch_size=1, num_workers=workers)
    assert len(loader) == 2
    with pytest.warns(UserWarning, match="was reported to be 2"):
        list(loader)


def test_prefetch_is_bounded_by_what_the_user_said() -> None:
    """No worker gets more than ``prefetch_factor`` batches ahead of the consumer."""
    context = torch.multiprocessing.get_context("fork")
    begun = context.Value("q", 0)

    class Counted(Dataset):
        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> int:
            with begun.get_lock():
                begun.value = max(begun.value, index + 1)
            return index

    running = iter(DataLoader(Counted(), batch_size=1, num_workers=2, prefetch_factor=3, fetchers=4))
    for number in range(100):
        next(running)
        assert begun.value <= number + 2 + 2 * 3


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_are_other_processes(persistent: bool) -> None:
    class Process(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return os.getpid()

    pids = set(torch.cat(list(DataLoader(Process(), num_workers=2, persistent_workers=persistent))).tolist())
    assert len(pids) == 2
    assert os.getpid() not in pids
