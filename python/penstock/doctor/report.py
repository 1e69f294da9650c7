"""The table that `penstock doctor` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from penstock.progress import format_bytes

if TYPE_CHECKING:
    from penstock.doctor.diagnosis import Diagnosis

_SHOWN_ERROR = 60


def table(diagnosis: Diagnosis) -> Table:
    """A row a level of the raw store, and a row a layer above it."""
    title = (
        f"{diagnosis.uri}: {diagnosis.samples:,} samples of {format_bytes(diagnosis.sample_bytes)}, "
        f"batches of {diagnosis.batch_size}"
    )
    rows = Table(title=title, title_justify="left", title_style="bold")
    rows.add_column("layer")
    for name in ("samples/s", "bytes/s", "median", "p99"):
        rows.add_column(name, justify="right")
    rows.add_column("")
    enough = diagnosis.enough.in_flight
    for level in diagnosis.levels:
        note = "enough" if level.in_flight == enough else ""
        if level.failed:
            note = f"{level.failed} failed: {(level.error or '')[:_SHOWN_ERROR]}"
        rows.add_row(
            f"raw store, {level.in_flight} in flight",
            f"{level.samples_per_s:,.0f}",
            f"{format_bytes(level.bytes_per_s)}/s",
            _milliseconds(level.median),
            _milliseconds(level.p99),
            note,
        )
    rows.add_section()
    for layer in diagnosis.layers:
        rows.add_row(
            layer.name,
            f"{layer.samples_per_s:,.0f}",
            f"{format_bytes(layer.bytes_per_s)}/s",
            "",
            "",
            layer.note,
        )
    return rows


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms" if seconds == seconds else "–"
