"""How far an epoch has come: what ``state_dict`` saves, and what ``load_state_dict`` goes on from.

It counts batches *delivered*, not fetched: what is in flight when a state is saved is fetched again after it
is loaded.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from penstock.errors import StateError
from penstock.torch.randomness import Moment

if TYPE_CHECKING:
    from collections.abc import Callable

FORMAT = "penstock.torch.DataLoader"
VERSION = 1

Kind = Literal["map", "iterable"]


@dataclass(slots=True)
class WorkerProgress:
    """How far one worker has come: of what it delivered, not of what it has read ahead."""

    batches: int = 0
    ended: bool = False
    dataset: Any = None
    iterator: Any = None

    def to_json(self) -> dict[str, Any]:
        """Give it as a plain dict."""
        return {
            "batches": self.batches,
            "ended": self.ended,
            "dataset": self.dataset,
            "iterator": self.iterator,
        }


@dataclass(slots=True)
class Progress:
    """How far one epoch has come.

    ``batches``: all before this one are delivered. ``beyond``: delivered although an earlier one is not
    (only with ``in_order=False``). ``yielded``: batches that came out whole (a batch that raised is
    delivered, not yielded). ``ended``: the iterable dataset read here gave its last item, if not its end.
    ``draws_seed``: the epoch after this one draws a seed for its workers (persistent ones keep theirs).
    ``last``: digest of the indices of batch ``batches - 1``. ``turn``: the worker whose batch is next
    (iterable). ``given``: books the batch that was given out last; what counts as given out is decided by this
    one store (see `Epoch.__next__`), and the rest of the bookkeeping follows when there is time for it.
    """

    kind: Kind
    num_workers: int
    batch_size: int | None
    length: int | None
    seed: int
    batches: int = 0
    beyond: set[int] = field(default_factory=set)
    yielded: int = 0
    finished: bool = False
    turn: int = 0
    draws_seed: bool = True
    last: int | None = None
    before: Moment | None = None
    first: Moment | None = None
    sampler: dict[str, Any] | None = None
    workers: list[WorkerProgress] = field(default_factory=list)
    dataset: Any = None
    iterator: Any = None
    ended: bool = False
    given: Callable[[], None] | None = None

    def settle(self) -> None:
        """Book the batch that was given out last. An interrupt may cut this short: twice is as good as once."""
        if self.given is not None:
            self.given()
            self.given = None

    @property
    def midway(self) -> bool:
        """Whether this epoch has begun and is not over."""
        return not self.finished and (self.first is not None or self.batches > 0)

    def deliver(self, number: int) -> None:
        """Take in that batch ``number`` was given out; harmless if it was taken in before."""
        if number < self.batches:
            return
        if number != self.batches:
            self.beyond.add(number)
            return
        self.batches += 1
        while self.beyond and self.batches in self.beyond:
            self.beyond.remove(self.batches)
            self.batches += 1

    def to_json(self) -> dict[str, Any]:
        """Give the state: plain values, beside what the user's sampler and dataset put in."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "num_workers": self.num_workers,
            "batch_size": self.batch_size,
            "length": self.length,
            "batches": self.batches,
            "beyond": sorted(self.beyond),
            "yielded": self.yielded,
            "finished": self.finished,
            "turn": self.turn,
            "seed": self.seed,
            "draws_seed": self.draws_seed,
            "last": self.last,
            "random": {
                "before": self.before.to_json() if self.before else None,
                "first": self.first.to_json() if self.first else None,
            },
            "sampler": copy.deepcopy(self.sampler),
            "dataset": copy.deepcopy(self.dataset),
            "iterator": copy.deepcopy(self.iterator),
            "ended": self.ended,
            "workers": copy.deepcopy([worker.to_json() for worker in self.workers]),
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Progress:
        """Read what `to_json` gave; StateError if it is anything else."""
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            raise StateError(
                f"this is not the state of a {FORMAT} (states of torchdata cannot be read: "
                "they keep the order differently)"
            )
        if state.get("version") != VERSION:
            raise StateError(f"the state has version {state.get('version')!r}, this penstock reads {VERSION}")
        try:
            random = state["random"]
            return cls(
                kind=state["kind"],
                num_workers=int(state["num_workers"]),
                batch_size=state["batch_size"],
                length=state["length"],
                seed=int(state["seed"]),
                batches=int(state["batches"]),
                beyond={int(number) for number in state["beyond"]},
                yielded=int(state["yielded"]),
                finished=bool(state["finished"]),
                turn=int(state["turn"]),
                draws_seed=bool(state["draws_seed"]),
                last=state["last"],
                before=Moment.from_json(random["before"]) if random["before"] else None,
                first=Moment.from_json(random["first"]) if random["first"] else None,
                sampler=copy.deepcopy(state["sampler"]),
                dataset=copy.deepcopy(state["dataset"]),
                iterator=copy.deepcopy(state["iterator"]),
                ended=bool(state["ended"]),
                workers=[WorkerProgress(**copy.deepcopy(worker)) for worker in state["workers"]],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"the state of the DataLoader is damaged: {error!r}") from error

    def check_fits(self, other: Progress, *, stateful_dataset: bool) -> None:
        """Raise StateError unless a loader that would begin as ``other`` can go on from this."""
        for name, meaning in (
            ("kind", "kind of dataset"),
            ("batch_size", "batch_size"),
            ("length", "number of batches"),
        ):
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                raise StateError(
                    f"the state was saved with {meaning} {mine!r}, this DataLoader has {its!r}: "
                    "it cannot go on from it"
                )
        per_worker = self.kind == "iterable" or stateful_dataset
        if per_worker and self.num_workers != other.num_workers:
            raise StateError(
                f"the state was saved with num_workers={self.num_workers}, "
                f"this DataLoader has {other.num_workers}: "
                "each worker's place in the dataset is its own, so the number must be the same"
            )


def digest(indices: Any) -> int | None:
    """Give a number that tells one batch of indices from another, in any process; None: no plain values."""
    if isinstance(indices, torch.Tensor):
        indices = indices.tolist()
    if isinstance(indices, int | str):
        indices = (indices,)
    if not isinstance(indices, Sequence) or not all(isinstance(index, int | str) for index in indices):
        return None
    return zlib.crc32(repr(list(indices)).encode())
