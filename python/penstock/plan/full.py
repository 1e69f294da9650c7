"""The full shuffle: every epoch a fresh permutation of all rows, cut into global batches, cut over ranks."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from penstock.order import order
from penstock.plan.contract import Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class FullShuffle:
    """All ``samples`` rows in a new order each epoch.

    ``batch_size``: samples of a *global* batch, over all ranks. ``shuffle``: False keeps the catalog's order.
    ``drop_last``: leave out a last batch that is not full. ``rank`` of ``world`` gets the rank-th cut of each batch.
    """

    samples: int
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "seed", "rank", "world"):
            value = getattr(self, name)
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise TypeError(f"{name} is {value!r}; it is a whole number")
            object.__setattr__(self, name, operator.index(value))  # NumPy's too: the state is JSON
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}; it must be at least 1")
        if self.world < 1 or not 0 <= self.rank < self.world:
            raise ValueError(f"rank {self.rank} of world {self.world}: rank must be from 0 to world - 1")
        if self.batch_size < self.world:
            raise ValueError(
                f"batch_size {self.batch_size} is the size of a global batch, cut over all ranks: it must be at least "
                f"the number of ranks, {self.world}"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch, the same on every rank."""
        full, rest = divmod(self.samples, self.batch_size)
        return full + (1 if rest and not self.drop_last else 0)

    @property
    def dropped(self) -> int:
        """Samples that each epoch leaves out."""
        return self.samples % self.batch_size if self.drop_last else 0

    def steps(self, epoch: int, start: int = 0) -> Iterator[Step]:
        """The steps of ``epoch`` from step ``start`` on."""
        rows = (
            order(self.seed, epoch, self.samples) if self.shuffle else np.arange(self.samples, dtype=np.int64)
        )
        for step in range(start, self.steps_per_epoch):
            batch = rows[step * self.batch_size : (step + 1) * self.batch_size]
            size = len(batch)
            if size < self.world:
                batch = np.resize(batch, self.world)
            low = len(batch) * self.rank // self.world
            high = len(batch) * (self.rank + 1) // self.world
            yield Step(epoch, step, batch[low:high], max(0, high - max(low, size)), size)

    def of_rank(self, rank: int, world: int) -> FullShuffle:
        """The same global batches as rank ``rank`` of ``world`` gets them."""
        return replace(self, rank=rank, world=world)

    def state(self) -> Mapping[str, object]:
        """What decides the order."""
        return {
            "plan": "full-shuffle",
            "samples": self.samples,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }
