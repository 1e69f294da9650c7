"""Where a run stands, as small readable JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import StateError

VERSION = 1


@dataclass(frozen=True)
class LoaderState:
    """``epoch`` and ``step`` name the next batch to hand out; the rest says of what."""

    dataset: str
    plan: Mapping[str, object]
    epoch: int
    step: int

    @classmethod
    def fresh(cls, dataset: str, plan: Mapping[str, object]) -> LoaderState:
        """The start of a run."""
        return cls(dataset, dict(plan), 0, 0)

    def at(self, epoch: int, step: int) -> LoaderState:
        """The same run elsewhere."""
        return replace(self, epoch=epoch, step=step)

    def after(self, epoch: int, step: int, steps_per_epoch: int) -> LoaderState:
        """The state once batch ``step`` of ``epoch`` was handed out."""
        return self.at(epoch + 1, 0) if step + 1 >= steps_per_epoch else self.at(epoch, step + 1)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "penstock": "loader",
            "version": VERSION,
            "dataset": self.dataset,
            "plan": dict(self.plan),
            "epoch": self.epoch,
            "step": self.step,
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any], like: LoaderState) -> LoaderState:
        """The state, checked to be one of the same dataset and order as ``like``."""
        if state.get("penstock") != "loader":
            raise StateError("this is not the state of a penstock Loader")
        if state.get("version") != VERSION:
            raise StateError(
                f"the state has version {state.get('version')!r}; this penstock reads version {VERSION}"
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
        return like.at(epoch, step)
