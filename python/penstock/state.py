"""Where a run stands, as small readable JSON."""

from __future__ import annotations

from collections.abc import Mapping
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

    ``displaced``: in arrival order, the samples that are late and those that are ahead, of ``rank`` of ``world``.
    """

    dataset: str
    plan: Mapping[str, object]
    epoch: int
    step: int
    displaced: Displaced = Displaced()  # noqa: RUF009 - it is frozen
    rank: int = 0
    world: int = 1

    @classmethod
    def fresh(cls, dataset: str, plan: Mapping[str, object], rank: int = 0, world: int = 1) -> LoaderState:
        """The start of a run."""
        return cls(dataset, dict(plan), 0, 0, rank=rank, world=world)

    def at(self, epoch: int, step: int, displaced: Displaced | None = None) -> LoaderState:
        """The same run elsewhere."""
        return replace(self, epoch=epoch, step=step, displaced=displaced or Displaced())

    def after(
        self, epoch: int, step: int, steps_per_epoch: int, displaced: Displaced | None = None
    ) -> LoaderState:
        """The state once batch ``step`` of ``epoch`` was handed out."""
        return self.at(epoch + 1, 0) if step + 1 >= steps_per_epoch else self.at(epoch, step + 1, displaced)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        own: dict[str, Any] = {}
        if self.displaced:
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
        if not (isinstance(epoch, int) and isinstance(step, int) and epoch >= 0 and step >= 0):
            raise StateError(f"the state stands at epoch {epoch!r}, step {step!r}, which is nowhere")
        return like.at(epoch, step, cls._displaced(state, like))

    @staticmethod
    def _displaced(state: Mapping[str, Any], like: LoaderState) -> Displaced:
        late, ahead = state.get("late", []), state.get("ahead", [])
        for ids in (late, ahead):
            if not isinstance(ids, list) or not all(isinstance(id, int) and 0 <= id < 2**64 for id in ids):
                raise StateError("the state's late and ahead samples are no lists of ids")
        rank, world = state.get("rank", like.rank), state.get("world", like.world)
        if (late or ahead) and (rank, world) != (like.rank, like.world):
            raise StateError(
                f"the state was taken in arrival order in the middle of an epoch, by rank {rank} of {world}, and says what "
                f"that rank was late with; this is rank {like.rank} of {like.world}. Give each rank its own state, or go on "
                "from a state taken at the end of an epoch"
            )
        return Displaced(frozenset(late), frozenset(ahead))
