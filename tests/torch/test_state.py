"""Saved anywhere and gone on from, an epoch is the one that would have been: the second and third time too."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from penstock.errors import StateError
from penstock.torch import DataLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COUNT = 22
pytestmark = pytest.mark.timeout(60)


class Numbers(Dataset):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return index


class Noisy(Numbers):
    """Items drawn from a generator, whose state is the dataset's."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(4)

    def __getitem__(self, index: int) -> float:
        return index + float(torch.rand((), generator=self.generator))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])


class Walk:
    """A sampler with a state of its own."""

    def __init__(self) -> None:
        self.at = 0
        self.epoch = 0

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        while self.at < COUNT:
            self.at += 1
            yield order[self.at - 1]
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class Shares(IterableDataset):
    """Each worker gives its share, of another length than the others'."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        yield from range(worker, COUNT - 5 * worker, workers)


class StatefulShares(Shares):
    """The same, that knows its place and would give something else if it were read again from the start."""

    def __init__(self) -> None:
        self.given = 0
        self.starts = 0

    def __iter__(self) -> Iterator[int]:
        items = list(super().__iter__())
        self.starts += self.given == 0
        while self.given < len(items):
            self.given += 1
            yield items[self.given - 1] + 1000 * self.starts
        self.given = 0

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given, "starts": self.starts}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given, self.starts = state["given"], state["starts"]


class Cursor:
    """An iterator that knows its place, of a dataset that does not."""

    def __init__(self) -> None:
        self.items = list(Shares())
        self.at = 0

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> int:
        if self.at == len(self.items):
            raise StopIteration
        self.at += 1
        return self.items[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Cursors(IterableDataset):
    def __iter__(self) -> Cursor:
        return Cursor()


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(2)


MAKE: dict[str, Callable[[], dict[str, Any]]] = {
    "in sequence": lambda: {"dataset": Numbers()},
    "shuffled": lambda: {"dataset": Numbers(), "shuffle": True},
    "shuffled by a generator": lambda: {"dataset": Numbers(), "shuffle": True, "generator": seeded()},
    "no batches": lambda: {"dataset": Numbers(), "shuffle": True, "batch_size": None},
    "last dropped": lambda: {"dataset": Numbers(), "shuffle": True, "drop_last": True},
    "replacement": lambda: {
        "dataset": Numbers(),
        "sampler": RandomSampler(Numbers(), replacement=True, num_samples=70, generator=seeded()),
    },
    "weighted": lambda: {"dataset": Numbers(), "sampler": WeightedRandomSampler([1.0] * COUNT, 30)},
    "subset": lambda: {"dataset": Numbers(), "sampler": SubsetRandomSampler(range(4, 20))},
    "distributed": lambda: {"dataset": Numbers(), "sampler": DistributedSampler(Numbers(), 2, 0)},
    "sampler with a state": lambda: {"dataset": Numbers(), "sampler": Walk()},
    "batch sampler of one with a state": lambda: {
        "dataset": Numbers(),
        "batch_sampler": BatchSampler(Walk(), 3, drop_last=False),
    },
    "dataset with a state": lambda: {"dataset": Noisy(), "shuffle": True},
    "iterable": lambda: {"dataset": Shares()},
    "iterable without batches": lambda: {"dataset": Shares(), "batch_size": None},
    "iterable with a state": lambda: {"dataset": StatefulShares()},
    "iterator with a state": lambda: {"dataset": Cursors()},
}


def loader(name: str, **more: Any) -> DataLoader:
    arguments = MAKE[name]()
    if "batch_sampler" not in arguments:
        arguments.setdefault("batch_size", 3)
    return DataLoader(**arguments, **more)


def plain(batches: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


@pytest.mark.parametrize(
    "more", [{}, {"fetchers": 4}, {"num_workers": 2}], ids=["here", "fetchers", "workers"]
)
@pytest.mark.parametrize("name", MAKE)
def test_an_epoch_goes_on_exactly_from_every_batch(name: str, more: dict[str, int]) -> None:
    if name == "dataset with a state" and "fetchers" in more:
        pytest.skip("fetchers= was asked for: a dataset with a state is then read ahead")
    torch.manual_seed(3)
    whole = plain(loader(name, **more))
    torch.manual_seed(3)
    first = loader(name, **more)
    running = iter(first)
    steps = range(len(whole) + 1) if "num_workers" not in more else (0, 1, 2, len(whole) // 2, len(whole))
    done = 0
    for step in steps:
        while done < step:
            assert plain([next(running)]) == [whole[done]]
            done += 1
        state = pickle.loads(pickle.dumps(first.state_dict()))
        torch.manual_seed(99)
        second = loader(name, **more)
        second.load_state_dict(state)
        assert plain(second) == whole[step:], step


@pytest.mark.parametrize(
    "more", [{}, {"fetchers": 4}, {"num_workers": 2}], ids=["here", "fetchers", "workers"]
)
@pytest.mark.parametrize("name", MAKE)
def test_resumed_again_and_again_it_is_the_same_epoch(name: str, more: dict[str, int]) -> None:
    if name == "dataset with a state" and "fetchers" in more:
        pytest.skip("fetchers= was asked for: a dataset with a state is then read ahead")
    torch.manual_seed(3)
    whole = plain(loader(name, **more))
    torch.manual_seed(3)
    got: list[Any] = []
    state: dict[str, Any] = {}
    for turn in range(6):
        count = turn % 3 + 1
        if len(got) + count > len(whole):
            break
        part = loader(name, **more)
        part.load_state_dict(state)
        running = iter(part)
        got += plain([next(running) for _ in range(count)])
        state = part.state_dict()
        torch.manual_seed(turn)
    rest = loader(name, **more)
    rest.load_state_dict(state)
    assert got + plain(rest) == whole


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "name", ["shuffled by a generator", "sampler with a state", "in sequence", "replacement"]
)
def test_the_epochs_after_the_resumed_one_are_the_same_too(name: str, workers: int) -> None:
    uninterrupted = loader(name, num_workers=workers)
    epochs = [plain(uninterrupted) for _ in range(4)]
    first = loader(name, num_workers=workers)
    assert plain(first) == epochs[0]
    running = iter(first)
    head = plain([next(running), next(running)])
    second = loader(name, num_workers=workers)
    second.load_state_dict(first.state_dict())
    assert head + plain(second) == epochs[1]
    assert plain(second) == epochs[2]
    third = loader(name, num_workers=workers)
    third.load_state_dict(second.state_dict())
    assert plain(third) == epochs[3], "saved between two epochs"


@pytest.mark.parametrize(
    "more", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=repr
)
def test_saved_between_epochs_the_next_one_is_fixed_here_and_there(more: dict[str, Any]) -> None:
    """Without a generator of its own, too."""
    first = loader("shuffled", **more)
    states = [first.state_dict()]
    epochs = []
    for _ in range(2):
        torch.rand(5)
        epochs.append(plain(first))
        states.append(first.state_dict())
    epochs.append(plain(first))
    for state, epoch in zip(states, epochs, strict=True):
        torch.rand(5)
        other = loader("shuffled", **more)
        other.load_state_dict(state)
        torch.rand(5)
        assert plain(other) == epoch


def test_asking_for_the_state_changes_nothing() -> None:
    def epochs(*, ask: bool) -> list[Any]:
        torch.manual_seed(8)
        asked = loader("shuffled by a generator")
        out = []
        for _ in range(3):
            if ask:
                asked.state_dict()
            batches = []
            for batch in asked:
                batches.append(batch.tolist())
                if ask:
                    asked.state_dict()
            out.append(batches)
        return [out, torch.rand(3).tolist()]

    assert epochs(ask=True) == epochs(ask=False)


def test_loading_does_not_touch_torchs_generator() -> None:
    first = loader("shuffled")
    next(iter(first))
    state = first.state_dict()
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    second = loader("shuffled")
    second.load_state_dict(state)
    list(second)
    assert torch.equal(torch.rand(1), expected)


def test_the_number_of_workers_may_change_where_no_worker_has_a_place_of_its_own() -> None:
    torch.manual_seed(1)
    first = loader("shuffled", num_workers=2)
    whole_running = iter(first)
    head = plain([next(whole_running) for _ in range(3)])
    state = first.state_dict()
    rest = plain(whole_running)
    for workers in (0, 1, 2):
        second = loader("shuffled", num_workers=workers)
        second.load_state_dict(state)
        assert plain(second) == rest
    assert len(head) == 3


@pytest.mark.parametrize("more", [{"fetchers": 4}, {"num_workers": 2}], ids=repr)
def test_out_of_order_each_sample_comes_once(more: dict[str, int]) -> None:
    first = loader("shuffled", in_order=False, **more)
    running = iter(first)
    got = sum(plain([next(running) for _ in range(3)]), [])
    second = loader("shuffled", in_order=False, **more)
    second.load_state_dict(first.state_dict())
    rest = sum(plain(second), [])
    assert sorted(got + rest) == list(range(COUNT))


def test_out_of_order_what_came_early_does_not_come_again() -> None:
    import threading

    go = threading.Event()

    class Held(Numbers):
        def __getitem__(self, index: int) -> int:
            assert index != 0 or go.wait(20)
            return index

    first = DataLoader(Held(), batch_size=2, fetchers=4, in_order=False)
    running = iter(first)
    got = [next(running).tolist() for _ in range(3)]
    state = first.state_dict()
    go.set()
    assert state["batches"] == 0
    assert len(state["beyond"]) == 3
    second = DataLoader(Held(), batch_size=2, fetchers=4, in_order=False)
    second.load_state_dict(state)
    rest = plain(second)
    assert sorted(sum(got + rest, [])) == list(range(COUNT))


def test_a_failed_batch_is_not_tried_again() -> None:
    class Bad(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == 4:
                raise ValueError(index)
            return index

    first = DataLoader(Bad(), batch_size=3)
    running = iter(first)
    next(running)
    with pytest.raises(ValueError, match="4"):
        next(running)
    second = DataLoader(Bad(), batch_size=3)
    second.load_state_dict(first.state_dict())
    assert plain(second)[0] == [6, 7, 8]


def test_the_state_is_small_readable_json() -> None:
    first = loader("shuffled by a generator")
    running = iter(first)
    next(running)
    text = json.dumps(first.state_dict())
    assert len(text) < 64_000
    second = loader("shuffled by a generator")
    second.load_state_dict(json.loads(text))
    assert plain(second) == plain(running)


def test_an_empty_state_is_none() -> None:
    first = loader("in sequence")
    first.load_state_dict({})
    assert plain(first) == plain(loader("in sequence"))


class Forgetful:
    """A sampler that draws another order each time, from where nobody can save it."""

    def __init__(self) -> None:
        self.turn = 0

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        self.turn += 1
        return iter([(index * self.turn) % COUNT for index in range(COUNT)])


def test_an_order_that_cannot_be_drawn_again_is_an_error() -> None:
    sampler = Forgetful()
    first = DataLoader(Numbers(), batch_size=3, sampler=sampler)
    running = iter(first)
    for _ in range(2):
        next(running)
    second = DataLoader(Numbers(), batch_size=3, sampler=sampler)
    second.load_state_dict(first.state_dict())
    with pytest.raises(StateError, match="does not draw the same order again"):
        next(iter(second))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"dataset": range(50), "batch_size": 3}, "number of batches"),
        ({"dataset": Numbers(), "batch_size": 5}, "batch_size"),
        ({"dataset": Shares(), "batch_size": 3}, "kind of dataset"),
    ],
    ids=["another length", "another batch size", "another kind"],
)
def test_the_state_of_something_else_is_an_error(other: dict[str, Any], words: str) -> None:
    state = loader("in sequence").state_dict()
    with pytest.raises(StateError, match=words):
        DataLoader(**other).load_state_dict(state)


def test_places_of_other_workers_are_an_error() -> None:
    first = loader("iterable", num_workers=2)
    next(iter(first))
    with pytest.raises(StateError, match="num_workers=2"):
        loader("iterable").load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: {"_num_yielded": 3},
        lambda state: {**state, "version": 99},
        lambda state: {key: value for key, value in state.items() if key != "batches"},
        lambda state: {**state, "batches": "many"},
        lambda state: {**state, "random": {"before": {"default": "?", "own": []}, "first": None}},
    ],
    ids=["torchdata's", "a later version", "a part missing", "not a number", "not base64"],
)
def test_a_damaged_state_is_an_error(damage: Callable[[dict[str, Any]], Any]) -> None:
    with pytest.raises(StateError):
        loader("in sequence").load_state_dict(damage(loader("in sequence").state_dict()))
