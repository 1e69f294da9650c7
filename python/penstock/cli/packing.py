"""``penstock pack`` and ``penstock verify``."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

import typer

from penstock.pack import OnError, PackFormat, PackOptions, parse_size
from penstock.pack import pack as run_pack
from penstock.pack import verify as run_verify
from penstock.progress import format_bytes, format_seconds

_SHOWN = 20
_Choice = TypeVar("_Choice", bound=Enum)


def options(
    *,
    shard_size: str,
    threads: int | None,
    where: str | None,
    shuffle: int | None,
    format: str,
    level: str,
    lossy: bool,
    on_error: str,
) -> PackOptions:
    """The options that the arguments say; typer.BadParameter for what makes no sense."""
    try:
        size = parse_size(shard_size)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--shard-size") from error
    try:
        return PackOptions(
            shard_size=size,
            threads=threads,
            where=where,
            shuffle=shuffle,
            format=_choice(PackFormat, format, "--format"),
            level=level,
            lossy=lossy,
            on_error=_choice(OnError, on_error, "--on-error"),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _choice(kind: type[_Choice], value: str, name: str) -> _Choice:
    try:
        return kind(value)
    except ValueError as error:
        known = ", ".join(str(each.value) for each in kind)
        raise typer.BadParameter(f"{value!r} is not one of {known}", param_hint=name) from error


def storage(given: list[str] | None) -> dict[str, object]:
    """The options of a store that NAME=VALUE arguments say."""
    pairs = [text.partition("=") for text in given or ()]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise typer.BadParameter(f"{wrong[0]!r} has no value: write NAME=VALUE", param_hint="--storage")
    return {name.strip(): value for name, _, value in pairs}


def pack(
    source: str,
    dest: str,
    options: PackOptions,
    *,
    restart: bool,
    quiet: bool,
    storage: dict[str, object],
    dest_storage: dict[str, object],
) -> None:
    """Pack and say what was done."""
    done = run_pack(
        source, dest, options, restart=restart, quiet=quiet, storage=storage, dest_storage=dest_storage
    )
    what = f"{done.samples:,} samples in {done.shards:,} shards, {format_bytes(done.bytes)}, in {done.dest}"
    if done.was_complete:
        typer.echo(f"already complete, nothing written: {what}")
    else:
        rate = done.source_bytes / max(done.seconds, 1e-9) / 1e6
        before = done.shards - done.new_shards
        resumed = f" ({before:,} shards were there from an earlier run)" if before else ""
        typer.echo(f"packed {what}, in {format_seconds(done.seconds)}, {rate:,.0f} MB/s{resumed}")
    if done.skipped:
        typer.echo(f"skipped {len(done.skipped):,} bad samples:", err=True)
        _list(done.skipped)


def verify(uri: str, *, threads: int | None, quiet: bool, storage: dict[str, object]) -> None:
    """Read back and say what was found; exit code 1 if anything is wrong."""
    found = run_verify(uri, threads=threads, quiet=quiet, storage=storage)
    rate = found.bytes / max(found.seconds, 1e-9) / 1e6
    read = (
        f"{found.samples:,} samples in {found.objects:,} shards, {format_bytes(found.bytes)}, "
        f"in {format_seconds(found.seconds)}, {rate:,.0f} MB/s"
    )
    if not found.bad:
        typer.echo(f"verified {read}: every checksum is right")
        return
    typer.echo(f"read {read}: {len(found.bad):,} things are wrong:", err=True)
    _list(found.bad)
    raise typer.Exit(1)


def _list(texts: tuple[str, ...]) -> None:
    for text in texts[:_SHOWN]:
        typer.echo(f"  {text}", err=True)
    if len(texts) > _SHOWN:
        typer.echo(f"  … and {len(texts) - _SHOWN:,} more", err=True)
