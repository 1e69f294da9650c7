"""Drawing the indices of batches from the user's sampler: at the right moment, and again after a resume."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from penstock.errors import StateError
from penstock.torch.access import is_stateful
from penstock.torch.progress import Progress, digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.torch.randomness import Stream


class Indices:
    """The batches of indices of one epoch, numbered.

    ``sampler``: the batch sampler, or the sampler where batches are not made. What draws the order again
    after a resume is, in this order: the sampler's own ``load_state_dict``; else its random state and
    skipping what was delivered.
    """

    def __init__(
        self, sampler: Any, stream: Stream, progress: Progress, *, resumed: bool, midway: bool
    ) -> None:
        self._sampler = sampler
        self._stream = stream
        self._progress = progress
        self._parts: dict[str, Any] = {"sampler": sampler, "inner": getattr(sampler, "sampler", None)}
        self._saved: dict[int, dict[str, Any]] = {}
        self._drawn: dict[int, Any] = {}
        self._last: Any = None
        self._moved = False
        self._begun = False
        self._midway = midway
        self.number = self._skip = progress.batches if midway else 0
        self._delivered = set(progress.beyond) if midway else set()
        state = progress.sampler if resumed else None
        if state:
            for name in ("sampler", "inner"):
                if name in state and is_stateful(self._parts[name]):
                    self._parts[name].load_state_dict(state[name])
        with stream.drawing():
            self._iterator: Iterator[Any] = iter(sampler)
        self._parts["iterator"] = self._iterator
        if state and midway and "iterator" in state and is_stateful(self._iterator):
            self._iterator.load_state_dict(state["iterator"])  # type: ignore[attr-defined]
        self._stateful = any(is_stateful(part) for part in self._parts.values())
        if self._stateful:
            self._skip = 0
            progress.sampler = self._snapshot()

    def draw(self) -> tuple[int, Any]:
        """Give the next batch that is not delivered yet: its number and indices. StopIteration at the end."""
        while True:
            if self._over():
                raise StopIteration
            indices = next(self._iterator) if self._begun else self._first()
            number, self.number = self.number, self.number + 1
            if self._stateful:
                self._saved[number] = self._snapshot()
            if number in self._delivered:
                continue
            self._drawn[number] = indices
            return number, indices

    def _over(self) -> bool:
        """Whether the sampler's state was saved after its last batch: it may stand at its next epoch already."""
        length = self._progress.length
        return (
            self._stateful
            and self._midway
            and not self._begun
            and length is not None
            and self.number >= length
        )

    def deliver(self, number: int) -> None:
        """Take in that batch ``number`` was given out, and keep the place of the sampler as of then."""
        progress = self._progress
        if number not in self._drawn:
            return
        indices = self._drawn.pop(number)
        before = progress.batches
        progress.deliver(number)
        if progress.batches == before:
            return
        self._last, self._moved = (indices if number == progress.batches - 1 else None), True
        if self._stateful:
            for passed in range(before, progress.batches):
                progress.sampler = self._saved.pop(passed, progress.sampler)

    def settle(self) -> None:
        """Bring the progress up to date for being saved, and fix what is to be drawn for it if nothing is yet."""
        if not self._begun and self._progress.first is None:
            self._progress.first = self._stream.moment()
            self._stream.go_to(self._progress.first)
        if self._moved:
            self._progress.last = digest(self._last)

    def finish(self) -> None:
        """Take in that the epoch is over: the next one begins where the sampler stands now."""
        if self._stateful:
            self._progress.sampler = self._snapshot()

    def _first(self) -> Any:
        self._begun = True
        progress, stream = self._progress, self._stream
        if progress.first is None:
            progress.first = stream.moment()
        elif not self._stateful:
            stream.go_to(progress.first)
        last = None
        with stream.drawing():
            try:
                for _ in range(self._skip):
                    last = next(self._iterator)
            except StopIteration:
                raise StateError(
                    f"the state was saved after {progress.batches} batches, but the sampler has fewer: "
                    "it belongs to another dataset or sampler"
                ) from None
            if self._skip and progress.last is not None and digest(last) != progress.last:
                raise StateError(
                    "the sampler does not draw the same order again, so the epoch cannot go on where it was: "
                    "give the sampler state_dict and load_state_dict, or have it draw from a torch.Generator "
                    "in an attribute `generator`"
                )
            return next(self._iterator)

    def _snapshot(self) -> dict[str, Any]:
        return {
            name: copy.deepcopy(part.state_dict()) for name, part in self._parts.items() if is_stateful(part)
        }
