"""What torch's own tests ask of a DataLoader, asked of both loaders at once: the same code, the same answer."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, namedtuple
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_convert,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from penstock.torch import DataLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAYS: list[dict[str, Any]] = [{}, {"fetchers": 6}, {"num_workers": 2, "fetchers": 3}]
ways = pytest.mark.parametrize("way", WAYS, ids=["here", "fetchers", "workers"])
Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024 - what users' datasets give


class Named(dict[str, Any]):
    """A mapping of the user's."""


class Row(list[Any]):
    """A sequence of the user's."""


class Unlike(OrderedDict[str, Any]):
    """A mapping that cannot be made from another."""

    def __init__(self) -> None:
        super().__init__(left=1, right=2.5)


class Made(Dataset):
    """Items from a function of the index."""

    def __init__(self, count: int, make: Callable[[int], Any]) -> None:
        self.count, self.make = count, make

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Counting(IterableDataset):
    """The numbers from ``first`` to ``last``, shared out over workers."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        start, step = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(self.first + start, self.last, step))


def same(ours: Any, torchs: Any) -> None:
    """Assert that two batches are the same in type, structure, dtype and value."""
    assert type(ours) is type(torchs)
    if isinstance(torchs, torch.Tensor):
        assert ours.dtype == torchs.dtype
        assert ours.shape == torchs.shape
        assert torch.equal(ours, torchs)
    elif isinstance(torchs, dict):
        assert list(ours) == list(torchs)
        [same(ours[key], torchs[key]) for key in torchs]
    elif isinstance(torchs, (list, tuple)):
        assert len(ours) == len(torchs)
        [same(one, other) for one, other in zip(ours, torchs, strict=True)]
    elif isinstance(torchs, np.ndarray):
        assert ours.dtype == torchs.dtype
        assert np.array_equal(ours, torchs)
    else:
        assert ours == torchs


def both(dataset: Any, way: dict[str, Any], epochs: int = 1, **arguments: Any) -> None:
    """Assert that the drop-in gives, over ``epochs``, what torch's DataLoader gives."""
    workers = {key: value for key, value in way.items() if key != "fetchers"}
    torch.manual_seed(11)
    torchs = torch_data.DataLoader(dataset, **arguments, **workers)
    expected = [batch for _ in range(epochs) for batch in torchs]
    torch.manual_seed(11)
    ours = DataLoader(dataset, **arguments, **way)
    same([batch for _ in range(epochs) for batch in ours], expected)
    assert expected


@ways
@pytest.mark.parametrize(
    "make",
    [
        lambda n: {"image": torch.full((3, 2), n), "name": f"sample {n}", "weight": n / 2},
        lambda n: Pair(torch.tensor(n), {"deep": [n, (n, str(n))]}),
        lambda n: np.full((2, 2), n, np.int16),
        lambda n: np.float32(n),
        lambda n: (n, n * 0.5, n % 2 == 0, bytes([n])),
        lambda n: torch.tensor(n, dtype=torch.bfloat16),
        lambda n: [torch.zeros(0), torch.full((n % 1 + 1,), n)],
        lambda n: Named(a=torch.full((3000,), n), b=Row([n, n / 3])),
        lambda _: Unlike(),
        lambda n: range(n, n + 2),
        lambda n: (None if n < 0 else np.bool_(n % 2), np.uint8(n), np.float16(n)),
        lambda n: torch.full((40, 50), n).t(),
    ],
    ids=[
        "dict",
        "namedtuple",
        "array",
        "array scalar",
        "plain values",
        "bfloat16",
        "empty",
        "own mapping and sequence",
        "mapping without arguments",
        "range",
        "array scalars",
        "transposed",
    ],
)
def test_whatever_items_are_they_are_collated_alike(make: Callable[[int], Any], way: dict[str, Any]) -> None:
    both(Made(12, make), way, batch_size=5)


def a_list(items: list[Any]) -> list[Any]:
    return items


def nested(items: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.nested_tensor(items, layout=torch.jagged)


@ways
@pytest.mark.parametrize(
    "make",
    [
        lambda n: torch.zeros(n + 1),
        lambda n: torch.zeros(2000 + n),
        lambda n: [0] * (n + 1),
        lambda _: np.array(["a", "b"]),
        lambda _: np.array([object()]),
        lambda _: None,
        lambda _: {"deep": (object(), 1)},
        lambda _: torch.zeros(2000, requires_grad=True),
        lambda n: torch.zeros(2000, dtype=torch.int32 if n else torch.float64),
    ],
    ids=["shapes", "long shapes", "lengths", "strings", "objects", "none", "deep", "grad", "dtypes"],
)
def test_what_cannot_be_collated_is_refused_alike(make: Callable[[int], Any], way: dict[str, Any]) -> None:
    outcomes = []
    for kind in (torch_data.DataLoader, DataLoader):
        more = {key: value for key, value in way.items() if key != "fetchers" or kind is DataLoader}
        try:
            outcomes.append(next(iter(kind(Made(4, make), batch_size=2, **more))).dtype)
        except Exception as error:
            # From a worker it comes with the traceback before it.
            outcomes.append((type(error), str(error).strip().splitlines()[-1].partition(": ")[2][:60]))
    assert outcomes[0] == outcomes[1]


@ways
@pytest.mark.filterwarnings("ignore:.*not writable:UserWarning")
def test_arrays_that_lie_in_a_file(way: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(6000, dtype=np.float32).reshape(12, 500))
    both(np.load(path, mmap_mode="r"), way, batch_size=5)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_an_iterable_is_as_long_as_torch_says(size: int, drop_last: bool) -> None:
    class Ten(Counting):
        def __len__(self) -> int:
            return 10

    lengths = {
        len(kind(Ten(0, 10), batch_size=size, drop_last=drop_last))
        for kind in (torch_data.DataLoader, DataLoader)
    }
    assert len(lengths) == 1


@ways
@pytest.mark.filterwarnings("ignore:.*(prototype|Sparse invariant checks):UserWarning")
def test_sparse_and_nested_tensors_come_through(way: dict[str, Any]) -> None:
    sparse = Made(
        6,
        lambda n: torch.sparse_coo_tensor(
            [[0, 1], [n % 3, 2]], [float(n), 2.0], (3, 3), check_invariants=True
        ),
    )
    for batch, first in zip(DataLoader(sparse, 3, collate_fn=a_list, **way), (0, 3), strict=True):
        for offset, tensor in enumerate(batch):
            assert torch.equal(tensor.to_dense(), sparse[first + offset].to_dense())
    ragged = Made(6, lambda n: torch.full((n + 1, 2), float(n)))
    for batch, first in zip(DataLoader(ragged, 3, collate_fn=nested, **way), (0, 3), strict=True):
        for offset, tensor in enumerate(batch.unbind()):
            assert torch.equal(tensor, ragged[first + offset])


@ways
@pytest.mark.parametrize("convert", [None, default_convert, list])
def test_without_batches_items_are_converted_alike(convert: Any, way: dict[str, Any]) -> None:
    both(Made(6, lambda n: {"a": np.full(2, n), "n": n}), way, batch_size=None, collate_fn=convert)


@ways
@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(torch.arange(30).view(10, 3), torch.arange(10)),
        ConcatDataset([TensorDataset(torch.arange(7)), TensorDataset(torch.arange(7, 11))]),
        Subset(TensorDataset(torch.arange(20)), [3, 1, 4, 1, 5, 9, 2, 6]),
        StackDataset(a=TensorDataset(torch.arange(9)), b=TensorDataset(torch.arange(9) * 2)),
        list(range(13)),
        torch.arange(8),
    ],
    ids=["tensors", "concat", "subset", "stack", "list", "tensor"],
)
def test_torchs_own_datasets(dataset: Any, way: dict[str, Any]) -> None:
    both(dataset, way, epochs=2, batch_size=3, shuffle=True)


@ways
@pytest.mark.parametrize(
    "arguments",
    [
        {"sampler": SequentialSampler(range(17)), "batch_size": 4, "drop_last": True},
        {"sampler": RandomSampler(range(17), replacement=True, num_samples=23), "batch_size": 4},
        {"sampler": WeightedRandomSampler([0.1] * 9 + [5.0] * 8, 12), "batch_size": 5},
        {"sampler": DistributedSampler(range(17), num_replicas=3, rank=2, seed=4), "batch_size": 2},
        {"batch_sampler": BatchSampler(RandomSampler(range(17)), 4, drop_last=False)},
        {"batch_sampler": [[0], [1, 2], [16, 16, 3], []], "collate_fn": list},
        {"sampler": [5, 3, 1], "batch_size": None},
    ],
    ids=["in turn", "replacement", "weights", "ranks", "batches", "a list of batches", "a list"],
)
def test_samplers_of_every_kind(arguments: dict[str, Any], way: dict[str, Any]) -> None:
    both(Made(17, lambda n: n * 10), way, epochs=2, **arguments)


@ways
def test_a_distributed_sampler_is_told_its_epoch(way: dict[str, Any]) -> None:
    sampler = DistributedSampler(range(20), num_replicas=2, rank=0, seed=1)
    loader = DataLoader(list(range(20)), batch_size=5, sampler=sampler, **way)
    orders = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        orders.append(torch.cat(list(loader)).tolist())
    assert orders[0] == orders[2] != orders[1]


@ways
def test_a_dataset_that_grows_is_as_long_as_it_is_at_each_epoch(way: dict[str, Any]) -> None:
    growing = [1, 2, 3]
    loader = DataLoader(growing, batch_size=2, **way)
    assert len(loader) == 2
    assert torch.cat(list(loader)).tolist() == [1, 2, 3]
    growing += [4, 5]
    assert len(loader) == 3
    assert torch.cat(list(loader)).tolist() == [1, 2, 3, 4, 5]


@ways
def test_loaders_and_iterators_in_turns(way: dict[str, Any]) -> None:
    loader = DataLoader(list(range(12)), batch_size=3, **way)
    other = DataLoader(list(range(100, 112)), batch_size=3, **way)
    rows = [[batch.tolist() for batch in row] for row in zip(loader, other, loader, strict=True)]
    assert rows == [
        [[n, n + 1, n + 2], [n + 100, n + 101, n + 102], [n, n + 1, n + 2]] for n in range(0, 12, 3)
    ]


@ways
def test_iterable_datasets_in_a_chain(way: dict[str, Any]) -> None:
    both(ChainDataset([Counting(0, 7), Counting(20, 25)]), way, epochs=2, batch_size=3)
    both(ChainDataset([Counting(0, 7), Counting(20, 25)]), way, batch_size=3, drop_last=True)
    both(Counting(3, 9), way, batch_size=None)


@pytest.mark.parametrize("way", WAYS, ids=["here", "fetchers", "workers"])
def test_a_large_index_is_not_cut(way: dict[str, Any]) -> None:
    large = 2**62 + 1
    loader = DataLoader(Made(5, lambda n: n - 2**62), sampler=[large, large + 1], batch_size=2, **way)
    assert [batch.tolist() for batch in loader] == [[1, 2]]


def test_worker_init_sets_the_affinity_that_items_are_fetched_with() -> None:
    core = min(os.sched_getaffinity(0))
    loader = DataLoader(
        Made(4, lambda _: sorted(os.sched_getaffinity(0))),
        num_workers=2,
        fetchers=2,
        collate_fn=list,
        worker_init_fn=lambda _: os.sched_setaffinity(0, {core}),
    )
    assert list(loader) == [[[core]]] * 4


def test_a_loader_may_be_used_in_any_thread() -> None:
    came: list[Any] = []
    loader = DataLoader(list(range(8)), batch_size=2, num_workers=1)
    iterator = iter(loader)
    came.append(next(iterator).tolist())
    thread = threading.Thread(target=lambda: came.extend(batch.tolist() for batch in iterator))
    thread.start()
    thread.join(60)
    assert came == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_convolutions_in_forked_workers() -> None:
    """A library with threads of its own was used before the fork: the child must not wait for them."""
    weights = torch.ones(3, 3, 3, 3)
    torch.nn.functional.conv2d(torch.ones(2, 3, 32, 32), weights)
    loader = DataLoader(
        Made(4, lambda n: torch.nn.functional.conv2d(torch.full((1, 3, 32, 32), float(n)), weights).sum()),
        batch_size=2,
        num_workers=2,
        timeout=60,
    )
    assert torch.cat(list(loader)).tolist() == [n * 27.0 * 30 * 30 * 3 for n in range(4)]


def test_workers_in_workers_are_refused_as_processes_refuse_children() -> None:
    def nested(_: int) -> Any:
        return next(iter(DataLoader([1, 2], num_workers=1)))

    for kind in (torch_data.DataLoader, DataLoader):
        with pytest.raises(AssertionError, match="daemonic processes are not allowed to have children"):
            list(kind(Made(1, nested), num_workers=1))


def test_a_loader_in_a_worker_has_fetchers() -> None:
    def nested(n: int) -> Any:
        return torch.cat(list(DataLoader(Made(4, lambda m: 10 * n + m), batch_size=2, fetchers=4)))

    rows = torch.cat(list(DataLoader(Made(2, nested), num_workers=2)))
    assert rows.tolist() == [[0, 1, 2, 3], [10, 11, 12, 13]]


def test_what_is_assigned_after_the_start_is_refused_as_in_torch() -> None:
    for kind in (torch_data.DataLoader, DataLoader):
        loader = kind(list(range(6)), batch_size=2)
        for name, value in (("batch_size", 3), ("sampler", [1]), ("drop_last", True), ("dataset", [7])):
            with pytest.raises(ValueError, match=f"{name} attribute should not be set after"):
                setattr(loader, name, value)
        with pytest.raises(ValueError, match="multiprocessing_context can only be used"):
            loader.multiprocessing_context = "no such way"


def test_random_splits_cover_the_dataset() -> None:
    parts = torch_data.random_split(range(20), [0.5, 0.3, 0.2], generator=torch.Generator().manual_seed(1))
    seen = [
        n for part in parts for batch in DataLoader(part, batch_size=4, fetchers=3) for n in batch.tolist()
    ]
    assert sorted(seen) == list(range(20))
