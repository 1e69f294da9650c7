"""One picture: latency and throughput over concurrency, and what happened to each batch when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.demo.figure import COLOURS, INK, PAPER
from penstock.progress import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.doctor.diagnosis import Diagnosis
    from penstock.trace import Span

__all__ = ["draw"]

_STEPS = 14
"""Batches of the timeline."""
_LANES = ("fetch", "copy", "decode", "wait", "step")
_MEANING = {
    "fetch": "fetch: from the first request of a batch to its last byte",
    "copy": "read and decoded in one, from the first sample to the last",
    "decode": "decode: from the first sample to the last",
    "wait": "wait: the trainer has no batch",
    "step": "step: the trainer is busy",
}
_LAYER_COLOURS = {"window": "#7a5ea8", "decode": "#2f7f8f", "loader": "#c8442f"}


def draw(path: Path, diagnosis: Diagnosis) -> None:
    """Write the picture to ``path``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sentence = _wrapped(diagnosis.sentence)
    top = 0.865 - 0.025 * (sentence.count("\n") + 1)
    figure = Figure(figsize=(13, 8.6), dpi=110, facecolor=PAPER)
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        2, 2, height_ratios=[1, 1.15], left=0.07, right=0.975, top=top, bottom=0.075, hspace=0.38, wspace=0.2
    )
    figure.text(0.02, 0.955, f"penstock doctor   {diagnosis.uri}", fontsize=17, weight="bold", color=INK)
    figure.text(0.02, 0.92, sentence, fontsize=11, color=INK, va="top")
    _throughput(figure.add_subplot(grid[0, 0]), diagnosis)
    _latency(figure.add_subplot(grid[0, 1]), diagnosis)
    _timeline(figure.add_subplot(grid[1, :]), diagnosis.spans)
    figure.savefig(path)


def _wrapped(text: str, width: int = 150) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width))


def _axes(axes: Any, diagnosis: Diagnosis) -> None:
    axes.set_facecolor(PAPER)
    axes.set_xscale("log", base=2)
    counts = [level.in_flight for level in diagnosis.levels]
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xlabel("reads in flight", color=INK)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _throughput(axes: Any, diagnosis: Diagnosis) -> None:
    _axes(axes, diagnosis)
    counts = [level.in_flight for level in diagnosis.levels]
    axes.plot(counts, [level.samples_per_s for level in diagnosis.levels], "o-", color=INK, label="raw store")
    for layer in diagnosis.layers:
        if layer.name in _LAYER_COLOURS:
            label = f"{layer.name}: {layer.samples_per_s:,.0f}/s, {format_bytes(layer.bytes_per_s)}/s"
            axes.axhline(
                layer.samples_per_s,
                color=_LAYER_COLOURS[layer.name],
                linestyle="--",
                linewidth=1.4,
                label=label,
            )
    enough = diagnosis.enough
    axes.axvline(enough.in_flight, color=INK, linewidth=0.8, linestyle=":")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_title(
        f"throughput: {enough.in_flight} in flight are enough for {format_bytes(enough.bytes_per_s)}/s",
        loc="left",
        fontsize=11.5,
        color=INK,
    )
    axes.set_ylabel("samples/s", color=INK)
    axes.legend(frameon=False, fontsize=9)


def _latency(axes: Any, diagnosis: Diagnosis) -> None:
    _axes(axes, diagnosis)
    counts = [level.in_flight for level in diagnosis.levels]
    axes.plot(counts, [1e3 * level.median for level in diagnosis.levels], "o-", color=INK, label="median")
    axes.plot(
        counts,
        [1e3 * level.p99 for level in diagnosis.levels],
        "o-",
        color=COLOURS["fetch"],
        label="99 of 100 below",
    )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter("{x:,g}")
    first = diagnosis.levels[0]
    axes.set_title(
        f"latency of a read: {1e3 * first.median:,.2f} ms alone, {1e3 * diagnosis.enough.median:,.2f} ms at "
        f"{diagnosis.enough.in_flight} in flight",
        loc="left",
        fontsize=11.5,
        color=INK,
    )
    axes.set_ylabel("milliseconds", color=INK)
    axes.legend(frameon=False, fontsize=9)


def _timeline(axes: Any, spans: tuple[Span, ...]) -> None:
    """A lane a batch: when its bytes came, when it was decoded, waited for, and used."""
    axes.set_facecolor(PAPER)
    keys = sorted({(span.epoch, span.step) for span in spans if span.stage == "step"})[-_STEPS:]
    extents: dict[tuple[tuple[int, int], str], tuple[int, int]] = {}
    for span in spans:
        key = (span.epoch, span.step)
        if key in keys and span.stage in _LANES:
            start, end = extents.get((key, span.stage), (span.start_ns, span.end_ns))
            extents[key, span.stage] = (min(start, span.start_ns), max(end, span.end_ns))
    origin = min((start for start, _ in extents.values()), default=0)
    used = [stage for stage in _LANES if any(stage == known for _, known in extents)]
    for stage in used:
        bars = [
            (keys.index(key), (start - origin) / 1e9, (end - start) / 1e9)
            for (key, known), (start, end) in extents.items()
            if known == stage
        ]
        # The trainer's spans below the loader's, so that neither hides the other.
        low = stage in ("wait", "step")
        axes.barh(
            [lane + (0.2 if low else -0.2) for lane, _, _ in bars],
            [length for _, _, length in bars],
            left=[start for _, start, _ in bars],
            height=0.36 if low or stage != "decode" else 0.2,
            color=COLOURS[stage],
            label=_MEANING[stage],
        )
    axes.set_yticks(range(len(keys)), [f"batch {step}" for _, step in keys], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("seconds", color=INK)
    axes.set_title("the last batches, with the synthetic step", loc="left", fontsize=11.5, color=INK)
    axes.grid(axis="x", alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if used:  # below the diagonal that batches make
        axes.legend(frameon=False, fontsize=9, loc="lower left")
