"""One picture of a run: some of a batch as the network saw it, and what every thread did when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.batch import Batch
    from penstock.demo.training import Outcome
    from penstock.trace import Span

__all__ = ["draw"]

_ACROSS, _DOWN = 10, 2
_WINDOW_STEPS = 8
"""Steps that the timeline shows: few enough that single samples can be seen."""
COLOURS = {"fetch": "#e8a33d", "decode": "#2f7f8f", "copy": "#2f7f8f", "wait": "#c8442f", "step": "#c9ced6"}
_MEANING = {
    "fetch": "fetch: bytes of a sample",
    "decode": "decode, crop, normalise",
    "copy": "copy: fetch and decode in one",
    "wait": "wait: the trainer has no batch",
    "step": "step: the network learns",
}
INK, PAPER = "#22262b", "#fbfaf8"
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def draw(path: Path, batch: Batch, labels: Sequence[str], spans: Sequence[Span], outcome: Outcome) -> None:
    """Write the picture to `path`: `batch` as a grid under its `labels`, `spans` as a timeline, `outcome` as words."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 7.6), dpi=110, facecolor=PAPER)
    FigureCanvasAgg(figure)
    rows = figure.add_gridspec(
        _DOWN + 1,
        _ACROSS,
        height_ratios=[1] * _DOWN + [1.75],
        left=0.065,
        right=0.985,
        top=0.855,
        bottom=0.085,
        hspace=0.2,
        wspace=0.06,
    )
    figure.text(0.015, 0.935, "penstock demo", fontsize=21, weight="bold", color=INK)
    figure.text(
        0.015,
        0.893,
        f"{outcome.images_per_second:,.0f} images/s through the training step   ·   the trainer waited "
        f"{outcome.waited_share:.1%} of the time   ·   {outcome.accuracy:.0%} of unseen pictures named rightly",
        fontsize=12.5,
        color=INK,
    )
    _grid(figure, rows, batch, labels)
    _timeline(figure.add_subplot(rows[_DOWN, :]), spans)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, facecolor=PAPER)


def _grid(figure: Any, rows: Any, batch: Batch, labels: Sequence[str]) -> None:
    images = np.asarray(batch["image"], dtype=np.float32)
    shown = np.clip(
        images.transpose(0, 2, 3, 1) * np.array(_STD, np.float32) + np.array(_MEAN, np.float32), 0, 1
    )
    for at in range(min(_ACROSS * _DOWN, len(shown))):
        axes = figure.add_subplot(rows[at // _ACROSS, at % _ACROSS])
        axes.imshow(shown[at], interpolation="lanczos")
        axes.set_title(labels[at], fontsize=8.5, color=INK, pad=3)
        axes.set_axis_off()


def _timeline(axes: Any, spans: Sequence[Span]) -> None:
    """Draw the trainer's lane on top and one lane a worker below, over a few steps amid the run."""
    begin, end = _window(spans)
    inside = [span for span in spans if span.stage in COLOURS and span.end_ns > begin and span.start_ns < end]
    workers = sorted({span.thread for span in inside if span.thread >= 0})
    lanes = {-1: 0, **{thread: lane for lane, thread in enumerate(workers, start=1)}}
    for stage in COLOURS:
        for thread, lane in lanes.items():
            bars = [
                (
                    (max(span.start_ns, begin) - begin) / 1e6,
                    (min(span.end_ns, end) - max(span.start_ns, begin)) / 1e6,
                )
                for span in inside
                if span.stage == stage and span.thread == thread
            ]
            # Edges keep strokes apart where there is room for them; narrow strokes would be nothing but edge.
            wide = bars and sum(width for _, width in bars) / len(bars) > (end - begin) / 1e6 / 300
            edge = {"edgecolor": PAPER, "linewidth": 0.4} if wide else {"linewidth": 0}
            axes.broken_barh(bars, (lane - 0.36, 0.72), facecolor=COLOURS[stage], **edge)
    for span in inside:
        if span.stage == "step" and span.start_ns >= begin and span.end_ns <= end:
            middle = ((span.start_ns + span.end_ns) / 2 - begin) / 1e6
            axes.text(middle, 0, f"step {span.step}", ha="center", va="center", fontsize=8.5, color=INK)
    axes.set_xlim(0, (end - begin) / 1e6)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_yticks(
        list(lanes.values()), ["trainer", *(f"worker {thread}" for thread in workers)], fontsize=10
    )
    axes.set_xlabel(
        f"milliseconds, over {_WINDOW_STEPS} steps in the middle of the run", fontsize=10, color=INK
    )
    axes.tick_params(length=0, colors=INK)
    axes.set_facecolor("#f1f0ec")
    for side in axes.spines.values():
        side.set_visible(False)
    _legend(axes, {span.stage for span in inside})


def _legend(axes: Any, stages: set[str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=COLOURS[stage], label=_MEANING[stage]) for stage in COLOURS if stage in stages]
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, frameon=False, fontsize=9.5, labelcolor=INK,
        borderaxespad=0.2, handlelength=1.2, columnspacing=1.8,
    )  # fmt: skip


def _window(spans: Sequence[Span]) -> tuple[int, int]:
    """Nanoseconds between which the timeline is drawn: some whole steps amid the run."""
    steps = [span for span in spans if span.stage == "step"]
    if not steps:
        return 0, max((span.end_ns for span in spans), default=1)
    first = max(0, (len(steps) - _WINDOW_STEPS) // 2)
    chosen = steps[first : first + _WINDOW_STEPS]
    begin = steps[first - 1].end_ns if first else chosen[0].start_ns
    return begin, chosen[-1].end_ns
