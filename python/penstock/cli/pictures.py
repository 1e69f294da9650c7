"""``penstock psi encode``, ``penstock psi decode`` and ``penstock inspect x.psi``."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Any

import typer

from penstock import psi
from penstock.errors import DataError
from penstock.progress import format_bytes
from penstock.psi.packing import encoded_picture
from penstock.psi.pictures import read, write


def encode(source: Path, dest: Path, *, level: str, mask: bool) -> None:
    """Write ``source`` as PSI and say what it takes."""
    data = _bytes(source)
    picture = read(data, source.suffix[1:], mask=mask)
    file = encoded_picture(picture, level)
    _write(dest, file)
    told = psi.info(file)
    typer.echo(
        f"wrote {dest}: {format_bytes(len(file))}, {told.bits_per_pixel:.2f} bits a pixel, "
        f"{len(file) / len(data):.1%} of {source.name}; it decodes to the same samples"
    )


def decode(source: Path, dest: Path) -> None:
    """Write a PSI file in the format of the name ``dest``."""
    data = _bytes(source)
    made = _named(source, lambda: write(data, dest.suffix[1:]))
    _write(dest, made)
    typer.echo(f"wrote {dest}: {format_bytes(len(made))}, from {format_bytes(len(data))} of PSI")


def inspect(uri: str, *, json: bool, picture: Path | None) -> None:
    """Print what the header says, whether every tile is whole, and write the picture as PNG."""
    path = Path(uri.removeprefix("file://"))
    data = _bytes(path)
    told = _named(path, lambda: psi.info(data))
    about = _named(path, lambda: psi.metadata(data))
    damage = None
    try:
        psi.decode(data)
    except DataError as error:
        damage = error.reason
    rows: dict[str, Any] = {
        "shape": list(told.shape),
        "axes": told.layout,
        "dtype": told.dtype.name,
        "significant bits": told.significant_bits,
        "level": told.level,
        "palette": told.palette,
        "tiles": told.tiles,
        "tile": list(told.tile),
        "bytes": len(data),
        "bits per pixel": round(told.bits_per_pixel, 3),
        "of raw": round(len(data) / told.nbytes, 4),
        "metadata": {
            name: len(value) if isinstance(value, bytes) else value for name, value in about.items()
        },
        "damage": damage,
    }
    if json:
        typer.echo(json_format.dumps(rows, indent=2, ensure_ascii=False))
    else:
        size = "×".join(str(side) for side in told.shape)
        typer.echo(
            f"{path}: {size} ({told.layout}) {told.dtype.name}, {told.significant_bits} significant bits"
        )
        typer.echo(
            f"  {format_bytes(len(data))}, {told.bits_per_pixel:.2f} bits a pixel, {len(data) / told.nbytes:.1%} of raw; "
            f"level {told.level}, {told.tiles:,} tiles of {told.tile[0]}×{told.tile[1]}"
            + (f", palette of {told.palette}" if told.palette else "")
        )
        for name, value in about.items():
            typer.echo(f"  {name}: {format_bytes(len(value)) if isinstance(value, bytes) else value}")
        typer.echo("  every tile decodes" if damage is None else f"  damaged: {damage}")
    if picture is not None and damage is None:
        _write(picture, write(data, "png"))
        typer.echo(f"wrote {picture}", err=json)
    if damage is not None:
        raise typer.Exit(1)


def _bytes(path: Path) -> bytes:
    return path.read_bytes()


def _named(path: Path, work: Any) -> Any:
    try:
        return work()
    except DataError as error:
        raise type(error)(error.reason, key=str(path)) from error


def _write(path: Path, data: bytes) -> None:
    """All of it or nothing: a file of that name is replaced when the new one is whole."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
