"""What the constructor takes and refuses, attributes and lengths: as torch's DataLoader."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from penstock.torch import DataLoader

NUMBERS = list(range(10))


class Endless(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(10**6))


def test_the_signature_is_torchs_and_fetchers() -> None:
    ours, torchs = inspect.signature(DataLoader).parameters, inspect.signature(TorchLoader).parameters
    assert [name for name in ours if name != "fetchers"] == list(torchs)
    for name, parameter in torchs.items():
        assert ours[name].default == parameter.default, name
        assert ours[name].kind == parameter.kind, name


def test_it_is_a_torch_loader_for_those_who_ask() -> None:
    assert isinstance(DataLoader(NUMBERS), TorchLoader)


WRONG: list[dict[str, Any]] = [
    {"num_workers": -1},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"num_workers": 1, "prefetch_factor": -1},
    {"persistent_workers": True},
    {"sampler": SequentialSampler(NUMBERS), "shuffle": True},
    {"batch_sampler": [[1]], "batch_size": 2},
    {"batch_sampler": [[1]], "shuffle": True},
    {"batch_sampler": [[1]], "sampler": SequentialSampler(NUMBERS)},
    {"batch_sampler": [[1]], "drop_last": True},
    {"batch_size": None, "drop_last": True},
    {"batch_size": 0},
    {"batch_size": -1},
    {"batch_size": 2.5},
    {"drop_last": "yes"},
    {"multiprocessing_context": "fork"},
    {"num_workers": 1, "multiprocessing_context": "bad"},
    {"num_workers": 1, "multiprocessing_context": object()},
]


@pytest.mark.parametrize("arguments", WRONG, ids=repr)
def test_what_torch_refuses_is_refused_alike(arguments: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)) as torchs:
        TorchLoader(NUMBERS, **arguments)
    with pytest.raises((ValueError, TypeError)) as ours:
        DataLoader(NUMBERS, **arguments)
    assert ours.type is torchs.type
    assert str(ours.value) == str(torchs.value)


@pytest.mark.parametrize(
    "arguments",
    [{"shuffle": True}, {"sampler": SequentialSampler(NUMBERS)}, {"batch_sampler": [[1]]}],
    ids=repr,
)
def test_an_iterable_dataset_takes_no_order(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="DataLoader with IterableDataset"):
        DataLoader(Endless(), **arguments)


@pytest.mark.parametrize("fetchers", [-1, 1.5, True, "many"])
def test_fetchers_is_a_number_or_none(fetchers: Any) -> None:
    with pytest.raises(ValueError, match="fetchers"):
        DataLoader(NUMBERS, fetchers=fetchers)


def test_more_workers_than_cores_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="suggested max number of worker"):
        DataLoader(NUMBERS, num_workers=1000)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"batch_size": 3},
        {"batch_size": 3, "drop_last": True},
        {"batch_size": None},
        {"batch_sampler": [[1, 2], [3]]},
    ],
    ids=repr,
)
def test_the_length_is_torchs(arguments: dict[str, Any]) -> None:
    loader = DataLoader(NUMBERS, **arguments)
    assert len(loader) == len(TorchLoader(NUMBERS, **arguments))
    assert len(iter(loader)) == len(loader)


def test_some_attributes_stay_as_they_were_given() -> None:
    loader = DataLoader(NUMBERS, batch_size=2)
    for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"):
        with pytest.raises(ValueError, match="should not be set"):
            setattr(loader, name, None)


def test_the_usual_samplers_are_made() -> None:
    assert isinstance(DataLoader(NUMBERS).sampler, SequentialSampler)
    assert isinstance(DataLoader(NUMBERS, shuffle=True).sampler, RandomSampler)


def test_an_empty_dataset_gives_nothing() -> None:
    assert list(DataLoader([], batch_size=4)) == []
    assert list(DataLoader([], batch_size=4, num_workers=2)) == []


def test_a_loader_is_pickled_without_what_runs() -> None:
    loader = DataLoader(NUMBERS, batch_size=2, fetchers=3)
    running = iter(loader)
    next(running)
    copy = pickle.loads(pickle.dumps(loader))
    assert [batch.tolist() for batch in copy] == [
        batch.tolist() for batch in TorchLoader(NUMBERS, batch_size=2)
    ]


def test_an_iterator_is_not_pickled() -> None:
    with pytest.raises(NotImplementedError, match="state_dict"):
        pickle.dumps(iter(DataLoader(NUMBERS)))


def test_pinning_without_an_accelerator_warns_and_goes_on() -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    loader = DataLoader(NUMBERS, batch_size=5, pin_memory=True)
    with pytest.warns(UserWarning, match="no accelerator is found"):
        batches = list(loader)
    assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_pinned(workers: int) -> None:
    tensors = torch.arange(40.0).view(10, 4)
    loader = DataLoader(
        [{"x": row, "y": (index, "text")} for index, row in enumerate(tensors)],
        batch_size=5,
        num_workers=workers,
        pin_memory=True,
    )
    for batch in loader:
        assert batch["x"].is_pinned()
        assert batch["y"][0].is_pinned()
        assert batch["y"][1] == ["text"] * 5
