"""The contract between a plan and the Loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Step:
    """What one rank gets at one step.

    ``epoch``, ``step``: where in the run. ``rows``: catalog rows of the samples, in order. ``padding``: how many of the
    last rows repeat samples of the same global batch, so that no rank is left without any. ``global_size``: samples
    of the whole global batch, padding not counted. ``planned``: for arrival order, the steps at which the rows were
    planned where that is not this one: what a resumed run was late with.
    """

    epoch: int
    step: int
    rows: npt.NDArray[np.int64]
    padding: int
    global_size: int
    planned: npt.NDArray[np.int64] | None = None


@runtime_checkable
class Plan(Protocol):
    """A step's samples as a function of (epoch, step) alone.

    What must hold, and is checked by ``penstock.testing.PlanSuite``:

    - over one epoch and all ranks, each row comes exactly once, padding left out; with ``drop_last`` at most one
      global batch's worth is left out, and ``dropped`` says how many;
    - the global batch of a step is the same for any number of ranks;
    - ``steps(epoch, start)`` is the tail of ``steps(epoch, 0)``: resuming changes nothing.

    A plan may have ``of_rank(rank, world) -> Plan``, the same plan as another rank gets it: without it, a run in arrival order
    cannot go on in the middle of an epoch on another number of ranks.
    """

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch, the same on every rank."""
        ...

    @property
    def dropped(self) -> int:
        """Samples that each epoch leaves out (``drop_last``)."""
        ...

    def steps(self, epoch: int, start: int = 0) -> Iterator[Step]:
        """The steps of ``epoch`` from step ``start`` on."""
        ...

    def state(self) -> Mapping[str, object]:
        """What decides the order, as JSON values: a state saved under other values does not fit."""
        ...
