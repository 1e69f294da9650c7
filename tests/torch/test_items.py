"""How items are got and made into batches, whatever the dataset offers."""

from __future__ import annotations

import asyncio
import threading
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset
from torch.utils.data import DataLoader as TorchLoader

from penstock.torch import DataLoader

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024 - the untyped kind is what collate has to know
EVERYWHERE = pytest.mark.parametrize("workers", [0, 2])
FETCHERS = pytest.mark.parametrize("fetchers", [None, 0, 1, 3])


class Shapes(Dataset):
    """Items of every kind that collate knows."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "tensor": torch.full((3, 2), index),
            "array": np.full(4, index / 2, dtype=np.float32),
            "number": index,
            "text": f"item {index}",
            "point": Point(float(index), (index, b"bytes")),
        }


class Several(Dataset):
    """Gives a batch in one call, and remembers with what it was called."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        raise AssertionError("__getitems__ is there")

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.calls.append(indices)
        return [index * 2 for index in indices]


class Awaited(Dataset):
    """Gives items to those who await them."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return 10

    async def __getitem__(self, index: int) -> int:
        self.threads.add(threading.current_thread().name)
        await asyncio.sleep(0)
        return index * 3


class AwaitedByName(Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        raise AssertionError("getitem is there")

    async def getitem(self, index: int) -> int:
        await asyncio.sleep(0)
        return index * 3


class AwaitedTogether(AwaitedByName):
    async def __getitems__(self, indices: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return [index * 5 for index in indices]


def same(ours: Any, torchs: Any) -> bool:
    if isinstance(torchs, torch.Tensor):
        return bool(torch.equal(ours, torchs)) and ours.dtype == torchs.dtype
    if isinstance(torchs, dict):
        return list(ours) == list(torchs) and all(same(ours[key], torchs[key]) for key in torchs)
    if isinstance(torchs, list | tuple):
        return type(ours) is type(torchs) and len(ours) == len(torchs) and all(map(same, ours, torchs))
    return bool(ours == torchs) and type(ours) is type(torchs)


@EVERYWHERE
@FETCHERS
@pytest.mark.parametrize("size", [4, None])
def test_batches_are_collated_as_torch_does(workers: int, fetchers: int | None, size: int | None) -> None:
    ours = list(DataLoader(Shapes(), batch_size=size, num_workers=workers, fetchers=fetchers))
    assert same(ours, list(TorchLoader(Shapes(), batch_size=size)))


@EVERYWHERE
@FETCHERS
def test_duplicates_in_a_batch_are_all_there(workers: int, fetchers: int | None) -> None:
    batches = DataLoader(
        list(range(5)), batch_sampler=[[1, 1, 1], [2, 1, 2], [4]], num_workers=workers, fetchers=fetchers
    )
    assert [batch.tolist() for batch in batches] == [[1, 1, 1], [2, 1, 2], [4]]


@EVERYWHERE
@FETCHERS
def test_an_own_collate_gets_the_items_in_order(workers: int, fetchers: int | None) -> None:
    batches = DataLoader(
        list("abcde"), batch_size=2, collate_fn="".join, num_workers=workers, fetchers=fetchers
    )
    assert list(batches) == ["ab", "cd", "e"]


@EVERYWHERE
@FETCHERS
def test_an_empty_batch_is_collated_too(workers: int, fetchers: int | None) -> None:
    batches = DataLoader(
        [1, 2], batch_sampler=[[], [0], []], collate_fn=tuple, num_workers=workers, fetchers=fetchers
    )
    assert list(batches) == [(), (1,), ()]


def test_collate_is_called_in_the_consumers_thread() -> None:
    threads: set[int] = set()

    def collate(items: list[int]) -> list[int]:
        threads.add(threading.get_ident())
        return items

    list(DataLoader(list(range(20)), batch_size=2, fetchers=4, collate_fn=collate))
    assert threads == {threading.get_ident()}


@FETCHERS
def test_getitems_is_called_once_a_batch_with_its_indices(fetchers: int | None) -> None:
    dataset = Several()
    assert [batch.tolist() for batch in DataLoader(dataset, batch_size=4, fetchers=fetchers)] == [
        [0, 2, 4, 6],
        [8, 10, 12, 14],
        [16, 18],
    ]
    assert sorted(dataset.calls) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_getitems_is_for_batches_alone() -> None:
    with pytest.raises(AssertionError, match="__getitems__ is there"):
        list(DataLoader(Several(), batch_size=None))


def test_getitems_in_workers() -> None:
    batches = DataLoader(Several(), batch_size=4, num_workers=2)
    assert torch.cat(list(batches)).tolist() == [index * 2 for index in range(10)]


@EVERYWHERE
@FETCHERS
@pytest.mark.parametrize("kind", [Awaited, AwaitedByName])
def test_async_items_are_awaited(kind: type[Any], workers: int, fetchers: int | None) -> None:
    batches = DataLoader(kind(), batch_size=4, num_workers=workers, fetchers=fetchers)
    assert torch.cat(list(batches)).tolist() == [index * 3 for index in range(10)]
    assert torch.cat(list(batches)).tolist() == [index * 3 for index in range(10)]


@EVERYWHERE
def test_async_batches_are_awaited(workers: int) -> None:
    batches = DataLoader(AwaitedTogether(), batch_size=4, num_workers=workers)
    assert torch.cat(list(batches)).tolist() == [index * 5 for index in range(10)]


def test_async_items_of_all_epochs_live_on_one_loop() -> None:
    dataset = Awaited()
    loader = DataLoader(dataset, batch_size=4)
    for _ in range(3):
        list(loader)
    assert len(dataset.threads) == 1
    assert threading.current_thread().name not in dataset.threads


@EVERYWHERE
def test_async_items_behind_torchs_wrappers(workers: int) -> None:
    part = Subset(Awaited(), [3, 1, 1])
    assert torch.cat(list(DataLoader(part, batch_size=2, num_workers=workers))).tolist() == [9, 3, 3]
    both = ConcatDataset([Awaited(), part])
    expected = [*(index * 3 for index in range(10)), 9, 3, 3]
    assert torch.cat(list(DataLoader(both, batch_size=4, num_workers=workers))).tolist() == expected


def test_items_of_a_subset_are_in_flight_together() -> None:
    """torch's Subset has a ``__getitems__`` that only loops; it must not make the items wait for one another."""
    together = threading.Barrier(4)

    class Meeting(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            together.wait(10)
            return index

    assert torch.cat(list(DataLoader(Subset(Meeting(), range(4)), batch_size=4, fetchers=4))).tolist() == [
        0,
        1,
        2,
        3,
    ]


@EVERYWHERE
def test_tensors_keep_dtype_layout_and_shape(workers: int) -> None:
    items = [
        (
            torch.arange(6).view(2, 3).t(),
            torch.tensor(True),
            torch.empty(0, 3),
            torch.randn(2, dtype=torch.complex64),
            torch.tensor([1.5], dtype=torch.bfloat16),
        )
    ]
    (ours,) = DataLoader(items, batch_size=None, num_workers=workers)
    for got, sent in zip(ours, items[0], strict=True):
        assert got.dtype == sent.dtype
        assert got.stride() == sent.stride()
        assert torch.equal(got, sent)


def test_a_tensor_dataset_comes_through_workers() -> None:
    data = TensorDataset(torch.randn(100, 500), torch.arange(100))
    rows, labels = zip(*DataLoader(data, batch_size=16, num_workers=2), strict=True)
    assert torch.equal(torch.cat(rows), data.tensors[0])
    assert torch.equal(torch.cat(labels), data.tensors[1])


def keep(items: list[Any]) -> list[Any]:
    return items


def test_hundreds_of_tensors_a_batch_come_through_workers() -> None:
    """More than can go by descriptor: the others go by value."""
    items = [torch.full((5000,), float(index)) for index in range(300)]
    (batch,) = DataLoader(items, batch_size=300, num_workers=1, collate_fn=keep)
    assert len(batch) == 300
    assert all(torch.equal(got, sent) for got, sent in zip(batch, items, strict=True))


def test_bytes_longer_than_any_pipe_come_through_workers() -> None:
    items = [bytes([index]) * (3 << 20) for index in range(6)]
    batches = list(DataLoader(items, batch_size=2, num_workers=2, collate_fn=keep))
    assert [item for batch in batches for item in batch] == items


def views(items: list[Any]) -> tuple[Any, Any]:
    base = torch.zeros(4096)
    return base[:10], base[5:]


def test_two_views_of_one_memory_stay_views_of_one_memory() -> None:
    ((first, second),) = DataLoader([0], num_workers=1, collate_fn=views)
    second[0] = 7.0
    assert first[5] == 7.0


def test_what_comes_out_of_a_worker_can_be_written_and_kept() -> None:
    loader = DataLoader(TensorDataset(torch.arange(4000.0).view(4, 1000)), batch_size=2, num_workers=2)
    batches = [batch[0].add_(1) for batch in loader]
    del loader
    assert torch.equal(torch.cat(batches), torch.arange(4000.0).view(4, 1000) + 1)
