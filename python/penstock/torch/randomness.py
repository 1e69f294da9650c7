"""The random numbers that an order is drawn from, saved and put back so that the order can be drawn again.

A sampler draws from torch's default generator or from one that the user gave, either when it is iterated or
at its first index. Both moments are recorded. Putting back never disturbs the user's default generator: the
draws are made in a `Stream` beside it. A generator that the user gave is set for good, since the next epoch
goes on from it.
"""

from __future__ import annotations

import base64
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from penstock.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator


def generators_of(*holders: Any) -> list[torch.Generator]:
    """Find the generators that ``holders`` (a loader, a sampler, a sampler in a sampler) draw from."""
    found: list[torch.Generator] = []
    for holder in holders:
        seen = 0
        while holder is not None and seen < 8:
            generator = getattr(holder, "generator", None)
            if isinstance(generator, torch.Generator) and all(generator is not other for other in found):
                found.append(generator)
            holder, seen = getattr(holder, "sampler", None), seen + 1
    return found


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of torch's default generator and of the user's, at one moment."""

    default: torch.Tensor
    own: tuple[torch.Tensor, ...] = ()

    @classmethod
    def now(cls, own: list[torch.Generator]) -> Moment:
        """Record this moment."""
        return cls(torch.get_rng_state(), tuple(generator.get_state() for generator in own))

    def to_json(self) -> dict[str, Any]:
        """Give it as text."""
        return {"default": _text(self.default), "own": [_text(state) for state in self.own]}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Moment:
        """Read what `to_json` gave."""
        try:
            return cls(_tensor(saved["default"]), tuple(_tensor(state) for state in saved["own"]))
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"the saved random state cannot be read: {error!r}") from error


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8)


class Stream:
    """Where a sampler draws: torch's default generator itself, or a course of it that was saved."""

    def __init__(self, own: list[torch.Generator]) -> None:
        self._own = own
        self._course: torch.Tensor | None = None

    def moment(self) -> Moment:
        """Record where this stream stands."""
        now = Moment.now(self._own)
        return now if self._course is None else Moment(self._course, now.own)

    def go_to(self, moment: Moment) -> None:
        """Draw from ``moment`` on."""
        if len(moment.own) != len(self._own):
            raise StateError(
                f"the state was saved by a DataLoader with {len(moment.own)} generators of its own, "
                f"this one has {len(self._own)}: give it the same generator= and sampler"
            )
        self._course = moment.default
        for generator, state in zip(self._own, moment.own, strict=True):
            generator.set_state(state)

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Make the draws of the body from this stream."""
        if self._course is None:
            yield
            return
        users = torch.get_rng_state()
        torch.set_rng_state(self._course)
        try:
            yield
        finally:
            self._course = torch.get_rng_state()
            torch.set_rng_state(users)
