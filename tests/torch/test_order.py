"""Which indices come in which order: those of torch's DataLoader after the same seed, for every kind of sampler."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import (
    DataLoader as TorchLoader,
)

from penstock.torch import DataLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COUNT = 23


class Numbers(Dataset):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return index * 10


def plain(batches: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


ARGUMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "in sequence": lambda: {"batch_size": 4},
    "last dropped": lambda: {"batch_size": 4, "drop_last": True},
    "shuffled": lambda: {"batch_size": 4, "shuffle": True},
    "shuffled by a generator": lambda: {"batch_size": 4, "shuffle": True, "generator": generator()},
    "no batches": lambda: {"batch_size": None, "shuffle": True},
    "replacement": lambda: {
        "batch_size": 4,
        "sampler": RandomSampler(Numbers(), replacement=True, num_samples=50),
    },
    "weighted": lambda: {"batch_size": 4, "sampler": WeightedRandomSampler([1.0] * COUNT, 30)},
    "subset": lambda: {"batch_size": 4, "sampler": SubsetRandomSampler(range(3, 17), generator=generator())},
    "distributed": lambda: {"batch_size": 3, "sampler": DistributedSampler(Numbers(), 2, 1)},
    "batch sampler": lambda: {
        "batch_sampler": BatchSampler(SequentialSampler(Numbers()), 5, drop_last=False)
    },
    "batches of any kind": lambda: {"batch_sampler": [(1, 2), [3], torch.tensor([4, 4, 4]), range(3)]},
    "indices in a list": lambda: {"batch_size": 2, "sampler": [5, 5, 5, 1]},
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("fetchers", [None, 4])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_two_epochs_are_torchs(name: str, workers: int, fetchers: int | None) -> None:
    torch.manual_seed(5)
    theirs = TorchLoader(Numbers(), num_workers=workers, **ARGUMENTS[name]())
    expected = [plain(theirs), plain(theirs)]
    afterwards = torch.rand(1)

    torch.manual_seed(5)
    ours = DataLoader(Numbers(), num_workers=workers, fetchers=fetchers, **ARGUMENTS[name]())
    assert [plain(ours), plain(ours)] == expected
    assert torch.equal(torch.rand(1), afterwards), "as much was drawn from torch's generator"


def test_persistent_workers_draw_as_torchs_do() -> None:
    def epochs(kind: type[Any]) -> list[Any]:
        torch.manual_seed(5)
        loader = kind(Numbers(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
        return [plain(loader) for _ in range(3)]

    assert epochs(DataLoader) == epochs(TorchLoader)


def test_a_generator_goes_on_from_epoch_to_epoch() -> None:
    def epochs(kind: type[Any]) -> list[Any]:
        loader = kind(Numbers(), batch_size=4, shuffle=True, generator=generator())
        return [plain(loader) for _ in range(3)]

    assert epochs(DataLoader) == epochs(TorchLoader)


class Drawn(Dataset):
    """Items drawn from the three generators that a worker seeds."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        info = torch.utils.data.get_worker_info()
        seed = info.seed if info else -1
        return seed, random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_what_items_draw_is_what_they_draw_with_torch(workers: int) -> None:
    def drawn(kind: type[Any]) -> list[Any]:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)
        return [
            [column.tolist() for column in batch]
            for batch in kind(Drawn(), batch_size=4, num_workers=workers)
        ]

    assert drawn(DataLoader) == drawn(TorchLoader)


class Lazy:
    """A sampler whose order is drawn when it is iterated, not when it is asked for the first index."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(COUNT).tolist())

    def __len__(self) -> int:
        return COUNT


def test_a_sampler_that_draws_when_it_is_iterated() -> None:
    torch.manual_seed(9)
    expected = plain(TorchLoader(Numbers(), batch_size=4, sampler=Lazy()))
    torch.manual_seed(9)
    assert plain(DataLoader(Numbers(), batch_size=4, sampler=Lazy())) == expected


@settings(deadline=None, max_examples=60)
@given(
    indices=st.lists(st.integers(0, COUNT - 1), max_size=40),
    size=st.integers(1, 9),
    fetchers=st.sampled_from([None, 0, 1, 2, 7]),
    drop_last=st.booleans(),
)
def test_any_indices_come_each_in_its_place(
    indices: list[int], size: int, fetchers: int | None, drop_last: bool
) -> None:
    arguments: dict[str, Any] = {"batch_size": size, "sampler": indices, "drop_last": drop_last}
    assert plain(DataLoader(Numbers(), fetchers=fetchers, **arguments)) == plain(
        TorchLoader(Numbers(), **arguments)
    )
