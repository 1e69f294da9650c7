"""An inspection in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table

from penstock.progress import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from penstock.inspect.look import Inspection, StoredField

_BARS = 24
"""Labels that are shown one by one."""
_SHARDS = 12
_BAD = 10
_BAR_WIDTH = 40


def show(seen: Inspection, console: Console) -> None:
    """Print all of it."""
    size = "" if seen.bytes is None else f", {format_bytes(seen.bytes)}"
    console.print(
        f"[bold]{escape(seen.uri)}[/]: {seen.samples:,} samples{size} in {seen.objects:,} objects",
        soft_wrap=True,
    )
    for note in seen.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    _stored(seen, console)
    _columns(seen, console)
    if seen.histogram:
        _bars(f"{seen.label} ({len(seen.histogram):,} values)", seen.histogram, console)
    for group in seen.groups:
        console.print(
            f"\n[bold]{escape(group.column)}[/]: {group.count:,} groups of {group.smallest:,} to {group.largest:,} samples, "
            f"median {group.median:,.0f}"
        )
    _rows(seen, console)
    _shards(seen, console)
    if seen.bad:
        console.print(f"\n[red]{len(seen.bad):,} samples cannot be read:[/]")
        for text in seen.bad[:_BAD]:
            console.print(f"  {escape(text)}", soft_wrap=True)
        if len(seen.bad) > _BAD:
            console.print(f"  … and {len(seen.bad) - _BAD:,} more")


def _stored(seen: Inspection, console: Console) -> None:
    table = _table(
        "stored fields",
        ("field", "kind", "format", "samples", "min", "median", "max", "total", "crc"),
    )
    for each in seen.stored:
        sizes = each.sizes
        shown: tuple[str, ...] = ("?",) * 4
        if sizes is not None:
            shown = tuple(map(format_bytes, (sizes.min, sizes.median, sizes.max, sizes.total)))
        table.add_row(
            _starred(each.name, starred=each.in_batch),
            each.kind,
            _formats(each),
            f"{each.samples:,}",
            *shown,
            "yes" if each.checksums else "no",
        )
    console.print(table)


def _formats(each: StoredField) -> str:
    if len(each.formats) == 1:
        text = next(iter(each.formats))
    else:
        text = ", ".join(f"{name} {count:,}" for name, count in each.formats.items())
    if each.dtype is not None and each.shape is not None:
        text += f" {each.dtype} {'×'.join(map(str, each.shape)) or 'scalar'}"
    return text


def _columns(seen: Inspection, console: Console) -> None:
    if not seen.columns:
        return
    table = _table("columns", ("column", "type", "missing", "distinct", "min", "mean", "max", "values"))
    for each in seen.columns:
        figures = ["" if value is None else f"{value:,.6g}" for value in (each.min, each.mean, each.max)]
        values = ", ".join(f"{value} {count:,}" for value, count in list(each.values.items())[:4])
        more = " …" if len(each.values) > 4 else ""
        table.add_row(
            _starred(each.name, starred=each.in_batch),
            each.type,
            f"{each.missing:,}",
            f"{each.distinct:,}",
            *figures,
            escape(values + more),
        )
    console.print(table)


def _bars(title: str, counts: Mapping[str, int], console: Console) -> None:
    table = _table(title, ("label", "samples", "", ""))
    table.columns[1].justify = "right"
    most, total = max(counts.values(), default=0), sum(counts.values())
    shown = list(counts.items())
    if len(shown) > _BARS:
        shown = sorted(shown, key=lambda pair: (-pair[1], pair[0]))[:_BARS]
    for label, count in shown:
        table.add_row(escape(label), f"{count:,}", f"{count / max(1, total):.1%}", bar(count / max(1, most)))
    console.print(table)
    if len(counts) > _BARS:
        rest = total - sum(count for _, count in shown)
        console.print(f"… and {len(counts) - _BARS:,} more with {rest:,} samples")


def bar(share: float, width: int = _BAR_WIDTH) -> str:
    """A bar of blocks, to an eighth of a character: ``bar(0.5, 4)`` is two full blocks."""
    eighths = round(share * width * 8)
    full, part = divmod(eighths, 8)
    if share > 0 and eighths == 0:
        part = 1
    return "█" * full + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[part]


def _rows(seen: Inspection, console: Console) -> None:
    if not seen.rows:
        return
    names = list(dict.fromkeys(name for row in seen.rows for name in row.values))
    table = _table("samples", ("id", "key", *names))
    for row in seen.rows:
        table.add_row(str(row.id), escape(row.key), *(escape(row.values.get(name, "")) for name in names))
    console.print(table)


def _shards(seen: Inspection, console: Console) -> None:
    if not seen.shards:
        return
    table = _table("shards", ("shard", "samples", "bytes of samples"))
    for shard in seen.shards[:_SHARDS]:
        table.add_row(escape(shard.name), f"{shard.samples:,}", format_bytes(shard.bytes))
    console.print(table)
    if len(seen.shards) > _SHARDS:
        console.print(f"… and {len(seen.shards) - _SHARDS:,} more")


def _starred(name: str, *, starred: bool) -> str:
    return f"[bold]{escape(name)}[/]" if starred else escape(name)


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(
        title=escape(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False,
        padding=(0, 1, 0, 0),
    )  # fmt: skip
    for name in columns:
        numeric = name in {"samples", "min", "median", "mean", "max", "total", "missing", "distinct", "id"}
        table.add_column(escape(name), justify="right" if numeric else "left", overflow="fold")
    return table
