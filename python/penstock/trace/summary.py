"""Spans → a row a stage."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.progress import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.trace.spans import Span


@dataclass(frozen=True, slots=True)
class StageSummary:
    """What one stage took."""

    stage: str
    spans: int
    samples: int
    bytes: int
    seconds: float
    """Summed over threads and processes."""
    median: float
    """Seconds of a span."""
    p99: float
    """Seconds of a span: 99 of 100 took no longer."""


@dataclass(frozen=True)
class Summary:
    """A row a stage, the one that took the most time first, and the time from first to last span."""

    stages: tuple[StageSummary, ...]
    seconds: float

    def __iter__(self) -> Iterator[StageSummary]:
        return iter(self.stages)

    def __getitem__(self, stage: str) -> StageSummary:
        for row in self.stages:
            if row.stage == stage:
                return row
        raise KeyError(f"no span of the stage {stage!r}; there are {', '.join(r.stage for r in self.stages)}")

    def share(self, stage: str) -> float:
        """Share of the whole time that lies in spans of ``stage``; 0 where there are none. Above 1 with several threads."""
        return sum(row.seconds for row in self.stages if row.stage == stage) / max(self.seconds, 1e-9)

    def __str__(self) -> str:
        head = f"{'stage':<10} {'spans':>8} {'samples':>9} {'bytes':>10} {'seconds':>9} {'median':>10} {'p99':>10}"
        rows = [
            f"{row.stage:<10} {row.spans:>8,} {row.samples:>9,} {format_bytes(row.bytes):>10} {row.seconds:>9.3f} "
            f"{_duration(row.median):>10} {_duration(row.p99):>10}"
            for row in self.stages
        ]
        return "\n".join([head, *rows, f"{self.seconds:.3f} s from the first span to the last"])


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def summarise(spans: Sequence[Span]) -> Summary:
    """Sum ``spans`` by stage."""
    of_stage: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        of_stage[span.stage].append(span)
    rows = []
    for stage, members in of_stage.items():
        durations = np.array([span.end_ns - span.start_ns for span in members]) / 1e9
        rows.append(
            StageSummary(
                stage,
                len(members),
                sum(span.samples for span in members),
                sum(span.bytes for span in members),
                float(durations.sum()),
                float(np.median(durations)),
                float(np.quantile(durations, 0.99)),
            )
        )
    rows.sort(key=lambda row: -row.seconds)
    first = min((span.start_ns for span in spans), default=0)
    return Summary(tuple(rows), (max((span.end_ns for span in spans), default=first) - first) / 1e9)
