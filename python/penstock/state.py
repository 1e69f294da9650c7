"""Where a run stands, as small readable JSON.

In arrival order, in the middle of an epoch, each rank has a state of its own: the samples that it is late with and those that
it has handed out ahead. A rank goes on from its own state. Another number of ranks needs the states of all of them: what all
are late with is what is left of the steps before, and it is as much as all have handed out ahead, so that the samples that are
left fill the batches that are left. :func:`gone_on` puts them together; ``arrival.dealt`` gives each new rank its part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.arrival import Displaced
from penstock.errors import StateError

VERSION = 1
DISPLACED_VERSION = 2
"""With samples that are late or ahead: what does not know of them must not go on from it."""


@dataclass(frozen=True)
class LoaderState:
    """``epoch`` and ``step`` name the next batch to hand out; the rest says of what.

    ``displaced``: in the middle of an epoch in arrival order, the samples that are late and those that are ahead, of ``rank``
    of ``world``; None where all batches were as planned.
    """

    dataset: str
    plan: Mapping[str, object]
    epoch: int
    step: int
    displaced: Displaced | None = None
    rank: int = 0
    world: int = 1

    @classmethod
    def fresh(cls, dataset: str, plan: Mapping[str, object], rank: int = 0, world: int = 1) -> LoaderState:
        """The start of a run."""
        return cls(dataset, dict(plan), 0, 0, rank=rank, world=world)

    def at(self, epoch: int, step: int, displaced: Displaced | None = None) -> LoaderState:
        """The same run elsewhere."""
        return replace(self, epoch=epoch, step=step, displaced=displaced)

    def after(
        self, epoch: int, step: int, steps_per_epoch: int, displaced: Displaced | None = None
    ) -> LoaderState:
        """The state once batch ``step`` of ``epoch`` was handed out."""
        return self.at(epoch + 1, 0) if step + 1 >= steps_per_epoch else self.at(epoch, step + 1, displaced)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        own: dict[str, Any] = {}
        # Of several ranks, one that has nothing displaced must say so: the others may have.
        if self.displaced is not None and (self.displaced or self.world > 1):
            own = {"late": sorted(self.displaced.late), "ahead": sorted(self.displaced.ahead)}
            own |= {"rank": self.rank, "world": self.world}
        return {
            "penstock": "loader",
            "version": DISPLACED_VERSION if own else VERSION,
            "dataset": self.dataset,
            "plan": dict(self.plan),
            "epoch": self.epoch,
            "step": self.step,
            **own,
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any], like: LoaderState) -> LoaderState:
        """The state, checked to be one of the same dataset and order as ``like``."""
        if not isinstance(state, Mapping) or state.get("penstock") != "loader":
            raise StateError("this is not the state of a penstock Loader")
        if state.get("version") not in (VERSION, DISPLACED_VERSION):
            raise StateError(
                f"the state has version {state.get('version')!r}; this penstock reads versions up to {DISPLACED_VERSION}"
            )
        if state.get("dataset") != like.dataset:
            raise StateError(
                "the state was taken over another dataset, or the dataset has changed since: its samples would not be the same"
            )
        saved = state.get("plan")
        if not isinstance(saved, Mapping):
            raise StateError("the state says nothing of its plan")
        for name in sorted(set(saved) | set(like.plan)):
            if saved.get(name) != like.plan.get(name):
                raise StateError(
                    f"the state was taken with {name}={saved.get(name)!r}, but this loader has {name}={like.plan.get(name)!r}: "
                    "the batches that are left would not be the same"
                )
        epoch, step = state.get("epoch"), state.get("step")
        if not (type(epoch) is int and type(step) is int and 0 <= epoch < 2**63 and 0 <= step < 2**63):
            raise StateError(f"the state stands at epoch {epoch!r}, step {step!r}, which is nowhere")
        own = cls._displaced(state)
        if own is None:
            return like.at(epoch, step)
        rank, world = state.get("rank", like.rank), state.get("world", like.world)
        if not (type(rank) is int and type(world) is int and 0 <= rank < world):
            raise StateError(f"the state was taken by rank {rank!r} of {world!r}, which is nobody")
        return replace(like.at(epoch, step, own), rank=rank, world=world)

    @staticmethod
    def _displaced(state: Mapping[str, Any]) -> Displaced | None:
        if "late" not in state and "ahead" not in state:
            return None
        late, ahead = state.get("late", []), state.get("ahead", [])
        for ids in (late, ahead):
            if not isinstance(ids, list) or not all(type(id) is int and 0 <= id < 2**64 for id in ids):
                raise StateError("the state's late and ahead samples are no lists of ids")
        return Displaced(frozenset(late), frozenset(ahead))


def gone_on(given: Mapping[str, Any] | Sequence[Mapping[str, Any]], like: LoaderState) -> LoaderState:
    """What ``given``, one state or those of all ranks, say to the rank of ``like``.

    The result is that rank's own, or of ``rank`` 0 of 1: then it says what all ranks together have displaced.
    """
    states = [LoaderState.from_json(state, like) for state in _listed(given)]
    first = states[0]
    for state in states:
        if (state.epoch, state.step) != (first.epoch, first.step):
            raise StateError(
                f"the states stand at different places (epoch {first.epoch}, step {first.step}; epoch {state.epoch}, step "
                f"{state.step}): give those that all ranks saved after the same batch"
            )
    moved = [(state, state.displaced) for state in states if state.displaced is not None]
    if not moved:
        return first
    for state, _ in moved:
        if (state.rank, state.world) == (like.rank, like.world):
            return state
    world = moved[0][0].world
    if any(state.world != world for state, _ in moved):
        raise StateError("the states are of different numbers of ranks: they are not of one run")
    ranks = [state.rank for state, _ in moved]
    if len(set(ranks)) < len(ranks):
        raise StateError(f"two of the states are of the same rank of {world}: give one of each")
    if missing := sorted(set(range(world)) - set(ranks)):
        have, lack = (", ".join(map(str, some)) for some in (sorted(ranks), missing))
        raise StateError(
            f"in arrival order, in the middle of an epoch, each rank has a state of its own. This is rank {like.rank} of "
            f"{like.world}, and the state is of rank {have} of {world}: what rank {lack} handed out is not in it. Give the "
            f"states of all {world} ranks, load_state_dict([...]), or one that was taken at the end of an epoch"
        )
    late = frozenset[int]().union(*(displaced.late for _, displaced in moved))
    ahead = frozenset[int]().union(*(displaced.ahead for _, displaced in moved))
    return replace(like.at(first.epoch, first.step, Displaced(late, ahead)), rank=0, world=1)


def _listed(given: Any) -> Sequence[Mapping[str, Any]]:
    if isinstance(given, Mapping):
        return [given]
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or not given:
        raise StateError("give the state of a penstock Loader, or a list of the states of all its ranks")
    return given
