"""What a Loader yields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Batch(Mapping[str, Any]):
    """Fields by name, and which samples they are of.

    A field is an array with the samples along its first axis (a torch tensor, or a NumPy array where torch is not
    used), a list of arrays where the samples differ in shape, or a list of strings for a text column. The memory
    belongs to the batch as long as anything refers to it; nothing is overwritten under your hands.

    ``ids``: the samples' stable ids, in order. ``epoch``, ``step``: where in the run. ``padding``: how many of the last
    samples repeat others, so that no rank is left without any. ``global_size``: samples of the global batch over all
    ranks, padding not counted. ``skipped``: ids of samples that could not be had (``on_error="skip"``).
    """

    __slots__ = ("_fields", "epoch", "global_size", "ids", "padding", "skipped", "step", "world")

    def __init__(
        self,
        fields: dict[str, Any],
        *,
        ids: npt.NDArray[np.uint64],
        epoch: int,
        step: int,
        padding: int = 0,
        global_size: int | None = None,
        world: int = 1,
        skipped: tuple[int, ...] = (),
    ) -> None:
        self._fields = fields
        self.ids = ids
        self.epoch = epoch
        self.step = step
        self.padding = padding
        self.global_size = len(ids) if global_size is None else global_size
        self.world = world
        self.skipped = skipped

    @property
    def size(self) -> int:
        """Samples in this batch, on this rank."""
        return len(self.ids)

    @property
    def weight(self) -> float:
        """What to multiply this rank's mean loss by, so that gradients averaged over ranks are those of the global batch.

        1.0 where all ranks have the same number of samples.
        """
        return self.world * (self.size - self.padding) / max(self.global_size, 1)

    def __getitem__(self, field: str) -> Any:
        try:
            return self._fields[field]
        except KeyError:
            have = ", ".join(self._fields) or "none"
            raise KeyError(f"the batch has no field {field!r}; it has: {have}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def replace(self, fields: Mapping[str, Any]) -> Batch:
        """The same samples with other fields: what a callable of the user's gives back."""
        return Batch(
            dict(fields),
            ids=self.ids,
            epoch=self.epoch,
            step=self.step,
            padding=self.padding,
            global_size=self.global_size,
            world=self.world,
            skipped=self.skipped,
        )

    def __repr__(self) -> str:
        def shape(value: Any) -> str:
            if isinstance(value, list):
                return f"list of {len(value)}"
            return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"

        fields = ", ".join(f"{name}: {shape(value)}" for name, value in self._fields.items())
        return f"Batch(epoch={self.epoch}, step={self.step}, size={self.size}, {{{fields}}})"
