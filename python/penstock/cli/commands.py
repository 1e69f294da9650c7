"""What the commands are called and what they take; the work is imported when one runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_STORAGE = Annotated[
    list[str] | None,
    typer.Option(
        "--storage",
        metavar="NAME=VALUE",
        help="An option of the far store, such as endpoint=http://…; may repeat.",
    ),
]

_go_on = "nothing was changed"

_URI = Annotated[
    str,
    typer.Argument(
        metavar="URI", help="A folder, tar shards, packed shards, .npy: what penstock.open takes."
    ),
]
_THREADS = Annotated[
    int | None, typer.Option(min=1, help="How many threads; by default the CPUs that may be used.")
]


def how_to_go_on() -> str:
    """What an interrupted command tells the user to do."""
    return _go_on


def _goes_on(text: str) -> None:
    global _go_on
    _go_on = text


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (pack, verify, inspect, doctor, demo):
        app.command()(command)
    psi = typer.Typer(help="Turn single pictures into PSI and back.", no_args_is_help=True)
    psi.command()(encode)
    psi.command()(decode)
    app.add_typer(psi, name="psi")


def pack(
    source: Annotated[str, typer.Argument(metavar="SRC", help="What to pack: what penstock.open takes.")],
    dest: Annotated[
        str,
        typer.Argument(metavar="DEST", help="The folder or URI (s3://bucket/prefix) for shards and catalog."),
    ],
    *,
    shard_size: Annotated[str, typer.Option(help="Close a shard after so many bytes.")] = "256MiB",
    threads: _THREADS = None,
    where: Annotated[
        str | None, typer.Option(help="Keep only samples for which this holds: \"label == 'cat'\".")
    ] = None,
    shuffle: Annotated[
        int | None, typer.Option(metavar="SEED", min=0, help="Pack in an order drawn from this seed.")
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            metavar="keep|raw|psi",
            help="keep: as they are. raw: arrays as plain rows. psi: images, masks and arrays as PSI, losslessly.",
        ),
    ] = "keep",
    level: Annotated[str, typer.Option(help="How hard PSI tries: fast, dense or max.")] = "dense",
    lossy: Annotated[
        bool,
        typer.Option("--lossy", help="With psi: JPEG and lossy WebP too, whose pixels take more room so."),
    ] = False,
    on_error: Annotated[
        str,
        typer.Option(
            metavar="raise|skip", help="What a bad sample does: end the pack, or be left out and counted."
        ),
    ] = "raise",
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all back afterwards and compare checksums.")
    ] = False,
    restart: Annotated[
        bool,
        typer.Option("--restart", help="Throw away what an unfinished pack left in DEST, and begin anew."),
    ] = False,
    storage: _STORAGE = None,
    dest_storage: Annotated[
        list[str] | None,
        typer.Option(
            "--dest-storage", metavar="NAME=VALUE", help="The same for DEST; by default that of SRC."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Write any dataset as tar shards and a catalog with checksums.

    Killed at any moment and started again, it goes on and ends in the same bytes.
    """
    from penstock.cli import packing

    _goes_on("finished shards are kept; run the same command again to go on")
    given = packing.storage(storage)
    dest_given = packing.storage(dest_storage) if dest_storage else given
    packing.pack(
        source,
        dest,
        packing.options(
            shard_size=shard_size,
            threads=threads,
            where=where,
            shuffle=shuffle,
            format=format,
            level=level,
            lossy=lossy,
            on_error=on_error,
        ),
        restart=restart,
        quiet=quiet,
        storage=given,
        dest_storage=dest_given,
    )
    if verify:
        _goes_on("the pack is complete, reading back is not: `penstock verify DEST` starts it again")
        packing.verify(dest, threads=threads, quiet=quiet, storage=dest_given)


def verify(
    uri: Annotated[str, typer.Argument(metavar="DEST", help="A folder that was packed.")],
    *,
    threads: _THREADS = None,
    storage: _STORAGE = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Read packed shards back and compare every checksum."""
    from penstock.cli import packing

    packing.verify(uri, threads=threads, quiet=quiet, storage=packing.storage(storage))


def inspect(
    uri: _URI,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    grid: Annotated[Path | None, typer.Option(metavar="PNG", help="Write a grid of pictures there.")] = None,
    rows: Annotated[int, typer.Option(min=0, help="How many samples to show.")] = 5,
    storage: _STORAGE = None,
) -> None:
    """Show what is in there: schema, sizes, labels, samples, shards, pictures."""
    from penstock.cli import inspecting, packing

    inspecting.inspect(uri, json=json, grid=grid, rows=rows, storage=packing.storage(storage))


def doctor(
    uri: _URI,
    *,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples of a batch.")] = 256,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.05, help="For each of ten levels of the raw store; the layers above get three times it."
        ),
    ] = 1.0,
    crop: Annotated[
        int,
        typer.Option(min=0, metavar="SIDE", help="Decode pictures to crops of this side; 0: as they are."),
    ] = 224,
    step_ms: Annotated[
        float | None,
        typer.Option(
            min=0, help="How long a training step takes; by default as long as the loader for a batch."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="PNG", help="Draw it there.")] = Path("doctor.png"),
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Measure every layer from the raw store to the training step, and say what limits.

    Reads only, for about half a minute.
    """
    from penstock.cli import examining

    examining.doctor(
        uri,
        batch_size=batch_size,
        seconds=seconds,
        crop=crop,
        step_ms=step_ms,
        out=out,
        json=json,
        quiet=quiet,
    )


def encode(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="png, tif, bmp, npy, dcm, webp or jpg.")],
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="The .psi to write.")],
    *,
    level: Annotated[str, typer.Option(help="How hard to try: fast, dense or max.")] = "dense",
    mask: Annotated[
        bool, typer.Option("--mask", help="A label map: of a palette keep the numbers, not the colours.")
    ] = False,
) -> None:
    """Write a picture as PSI, and compare every sample with what comes back."""
    from penstock.cli import pictures

    pictures.encode(source, dest, level=level, mask=mask)


def decode(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A .psi.")],
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="The .png, .tif or .npy to write.")],
) -> None:
    """Write a PSI picture as PNG, TIFF or npy."""
    from penstock.cli import pictures

    pictures.decode(source, dest)


def demo(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Less data, fewer epochs.")] = False,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where data and pictures go.")] = Path(
        "demo-out"
    ),
) -> None:
    """Make labelled pictures, pack them, train on them, and show where the time went."""
    from penstock.demo import run

    _goes_on("run it again: what is made is used again")
    run(quick=quick, out=out)
