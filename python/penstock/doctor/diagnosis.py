"""What was measured, and what follows from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock.progress import format_bytes

if TYPE_CHECKING:
    from penstock.trace import Span

KEPT = 0.85
"""A layer that keeps this share of what the one below gives is not what limits."""
NEARLY = 0.95
"""Of the best throughput: the fewest requests in flight that reach it are enough."""


@dataclass(frozen=True, slots=True)
class Level:
    """The raw store with so many reads in flight."""

    in_flight: int
    samples_per_s: float
    bytes_per_s: float
    median: float
    """Seconds of a read."""
    p99: float
    """Seconds of a read: 99 of 100 took no longer."""
    failed: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer, running alone."""

    name: str
    samples_per_s: float
    bytes_per_s: float
    note: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All layers of one dataset. ``layers``: window, decode (unless nothing is decoded), loader, loader with a step."""

    uri: str
    samples: int
    sample_bytes: float
    """Stored bytes of a sample, on average."""
    batch_size: int
    cores: int
    levels: tuple[Level, ...]
    layers: tuple[Layer, ...]
    step_seconds: float
    waited_share: float
    """Share of the time in which the synthetic step waited for a batch."""
    spans: tuple[Span, ...] = ()

    @property
    def best(self) -> Level:
        """The level that gave the most."""
        return max(self.levels, key=lambda level: level.samples_per_s)

    @property
    def enough(self) -> Level:
        """The level with the fewest reads in flight that gave nearly as much."""
        return next(level for level in self.levels if level.samples_per_s >= NEARLY * self.best.samples_per_s)

    def rate(self, name: str) -> float | None:
        """Samples a second of a layer; None where it was not measured."""
        return next((layer.samples_per_s for layer in self.layers if layer.name == name), None)

    @property
    def limit(self) -> str:
        """What limits: ``store``, ``decode``, ``window``, ``cores`` or ``loader``."""
        raw, window, decode, loader = (
            self.best.samples_per_s,
            self.rate("window"),
            self.rate("decode"),
            self.rate("loader") or 0.0,
        )
        lowest = min(raw, decode if decode is not None else raw)
        if loader >= KEPT * lowest:
            return "store" if lowest == raw else "decode"
        if window is not None and window < KEPT * raw and window <= loader / KEPT:
            return "window"
        # Both at once take the cores from each other: the sum of their times is all that there is.
        if decode is not None and loader >= KEPT / (1 / raw + 1 / decode):
            return "cores"
        return "loader"

    @property
    def sentence(self) -> str:
        """One sentence: what limits, by how much, and what to change."""
        loader, enough = self.rate("loader") or 0.0, self.enough
        decode = self.rate("decode")
        say = {
            "store": (
                f"The store limits: it gives {format_bytes(enough.bytes_per_s)}/s with {enough.in_flight} reads in flight "
                f"and no more with more, and the loader takes {loader / self.best.samples_per_s:.0%} of that; a nearer or "
                "wider store, smaller samples or a cache would help"
            ),
            "decode": (
                f"Decoding limits: {_cores(self.cores)} {_verb(self.cores, 'decode')} {decode or 0:,.0f} samples/s where the "
                f"store gives {self.best.samples_per_s:,.0f}; smaller pictures, a cheaper format or more cores would help"
            ),
            "cores": (
                f"The cores limit: reading ({self.best.samples_per_s:,.0f} samples/s alone) and decoding "
                f"({decode or 0:,.0f} alone) share {_cores(self.cores)} and give {loader:,.0f} together"
            ),
            "window": (
                f"The window limits: it takes {(self.rate('window') or 0) / self.best.samples_per_s:.0%} of what the store "
                f"gives with {self.best.in_flight} reads in flight; give the Loader a larger window="
            ),
            "loader": (
                f"The loader limits: it gives {loader:,.0f} samples/s where every layer below gives "
                f"{min(self.best.samples_per_s, decode or self.best.samples_per_s):,.0f} or more; "
                "larger batches cost less each"
            ),
        }[self.limit]
        if not self.step_seconds:
            return say + "."
        if self.waited_share < 0.05:
            then = (
                f"a step of {self.step_seconds * 1e3:.0f} ms a batch waits {self.waited_share:.1%} of its time, "
                "so that training would not notice"
            )
        else:
            then = f"a step of {self.step_seconds * 1e3:.0f} ms a batch waits {self.waited_share:.0%} of its time for data"
        return f"{say}; {then}."

    def to_json(self) -> dict[str, Any]:
        """Everything but the spans, as plain values."""
        return {
            "uri": self.uri,
            "samples": self.samples,
            "sample_bytes": self.sample_bytes,
            "batch_size": self.batch_size,
            "cores": self.cores,
            "levels": [asdict(level) for level in self.levels],
            "layers": [asdict(layer) for layer in self.layers],
            "step_seconds": self.step_seconds,
            "waited_share": self.waited_share,
            "limit": self.limit,
            "sentence": self.sentence,
        }


def _cores(count: int) -> str:
    return "one core" if count == 1 else f"{count} cores"


def _verb(count: int, verb: str) -> str:
    return verb + "s" if count == 1 else verb
