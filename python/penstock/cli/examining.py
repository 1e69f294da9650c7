"""``penstock doctor``."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from penstock.doctor import examine

if TYPE_CHECKING:
    from pathlib import Path


def doctor(
    uri: str,
    *,
    batch_size: int,
    seconds: float,
    crop: int,
    step_ms: float | None,
    out: Path | None,
    json: bool,
    quiet: bool,
) -> None:
    """Measure, and print the table and the sentence."""
    hear = Console(stderr=True)
    with hear.status("") as status:

        def say(text: str) -> None:
            if not quiet:
                status.update(f"measuring: {text}")

        diagnosis = examine(
            uri,
            batch_size=batch_size,
            seconds=seconds,
            crop=crop,
            step=None if step_ms is None else step_ms / 1e3,
            say=say,
        )
    if json:
        typer.echo(json_module.dumps(diagnosis.to_json(), indent=1))
    else:
        from penstock.doctor.report import table

        console = Console()
        # Not a terminal: wide enough that no row is broken.
        console = console if console.is_terminal else Console(width=140)
        console.print(table(diagnosis))
        console.print(diagnosis.sentence, highlight=False, soft_wrap=True)
    if out is not None:
        from penstock.doctor.figure import draw

        draw(out, diagnosis)
        if not json:
            typer.echo(f"the picture is in {out}")
