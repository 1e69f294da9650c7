"""``penstock inspect``."""

from __future__ import annotations

import json as json_format
from typing import TYPE_CHECKING

import typer
from rich.console import Console

import penstock
from penstock.inspect import draw_grid, look, show

if TYPE_CHECKING:
    from pathlib import Path


def inspect(uri: str, *, json: bool, grid: Path | None, rows: int, storage: dict[str, object]) -> None:
    """Print what is in there, and draw some of it."""
    if uri.lower().endswith(".psi"):
        from penstock.cli import pictures

        pictures.inspect(uri, json=json, picture=grid)
        return
    data = penstock.open(uri, storage=storage)
    seen = look(data, rows=rows)
    if json:
        typer.echo(json_format.dumps(seen.as_json(), indent=2, ensure_ascii=False))
    else:
        show(seen, Console(soft_wrap=False))
    if grid is not None:
        bad = draw_grid(data, grid)
        unread = f" ({bad} samples could not be read)" if bad else ""
        typer.echo(f"wrote {grid}{unread}", err=json)
