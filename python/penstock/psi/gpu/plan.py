"""What is to be decoded where: the part of a batch that needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _native
from penstock.psi.failures import translated
from penstock.psi.gpu.variants import OUT, WARPS, Variant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    from typing_extensions import Buffer

ALIGN = 16
"""Files start at multiples of this in the blob."""

PADDING = 64
"""Bytes behind the last file that kernels may read."""

NUMBERS = ("float16", "bfloat16", "float32")
"""Types that a kernel converts to; any other type of the output is that of the samples."""


@dataclass(frozen=True, slots=True)
class Box:
    """What is decoded of one file: a box of ``channels`` samples each, mirrored where ``flip_x`` or ``flip_y`` say so."""

    x: int
    y: int
    z: int
    width: int
    height: int
    depth: int
    channels: int
    flip_x: bool = False
    flip_y: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: which kernel, and which of the manifest's blocks."""

    variant: Variant
    first_block: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The manifest that the kernels read (see kernels/picture.cuh), and how to launch them."""

    manifest: bytes
    blocks_at: int
    launches: tuple[Launch, ...]


def strides_of(layout: str, box: Box) -> tuple[int, int, int, int]:
    """Distances in elements between slices, rows, columns and channels of a box in ``layout`` (``"CHW"``, ``"DHWC"``, …)."""
    sizes = {"D": box.depth, "H": box.height, "W": box.width, "C": box.channels}
    distances, step = {}, 1
    for axis in reversed(layout):
        distances[axis] = step
        step *= sizes[axis]
    return (distances.get("D", 0), distances.get("H", 0), distances.get("W", 0), distances.get("C", 0))


def plan(
    blob: Buffer,
    offsets: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    boxes: Sequence[Box],
    starts: Sequence[int],
    layout: str,
    kind: str,
    itemsize: int,
    *,
    positions: npt.NDArray[np.int64] | None = None,
    name: Callable[[int], str | None] = lambda _: None,
    max_bytes: int = 1 << 40,
) -> Plan:
    """Plans a batch.

    ``offsets``, ``lengths``: the files in ``blob``; ``positions``: where they will be on the device, where that differs.
    ``starts``: first element of each box in the output. ``kind``: ``"bits"`` for samples as they are, or one of
    :data:`NUMBERS`. ``name`` says what the file of a number is called.

    Raises what ``penstock.psi.decode`` raises for a bad header.
    """
    requests = np.empty((len(boxes), 15), np.int64)
    requests[:, 0] = offsets
    requests[:, 1] = lengths
    requests[:, 2] = offsets if positions is None else positions
    for row, box, start in zip(requests, boxes, starts, strict=True):
        slices, rows, columns, channels = strides_of(layout, box)
        if box.flip_y:
            start, rows = start + (box.height - 1) * rows, -rows
        row[3:] = (
            box.x, box.y, box.z, box.width, box.height, box.depth, box.flip_x,
            start, slices, rows, columns, channels,
        )  # fmt: skip
    return planned(blob, requests, kind, itemsize, name=name, max_bytes=max_bytes)


def planned(
    blob: Any,
    requests: npt.NDArray[np.int64],
    kind: str,
    itemsize: int,
    *,
    name: Callable[[int], str | None] = lambda _: None,
    max_bytes: int = 1 << 40,
) -> Plan:
    """As :func:`plan`, of rows that are written already: see crates/python/src/psi_device.rs for their columns."""
    with translated(name):
        manifest, blocks_at, launches = _native.psi_manifest(blob, requests, WARPS, max_bytes)
    out = OUT[kind, itemsize]
    return Plan(
        manifest,
        blocks_at,
        tuple(
            Launch(Variant(bits, channels, tables, plain, out), first, blocks)
            for bits, channels, tables, plain, first, blocks in launches
        ),
    )


def readable(nbytes: int) -> int:
    """How far kernels load from files of that many bytes in all: whole units of :data:`ALIGN`, the last one into the padding."""
    return -(-nbytes // ALIGN) * ALIGN


def joined(files: Sequence[Buffer]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """Where files lie when each starts at a multiple of :data:`ALIGN`: offsets, lengths, and bytes in all."""
    lengths = np.fromiter((memoryview(file).nbytes for file in files), np.int64, len(files))
    ends = np.cumsum((lengths + ALIGN - 1) // ALIGN * ALIGN)
    total = int(ends[-1]) if len(files) else 0
    return ends - (lengths + ALIGN - 1) // ALIGN * ALIGN, lengths, total


def fill(target: npt.NDArray[Any], files: Sequence[Buffer], offsets: npt.NDArray[np.int64]) -> None:
    """Copies ``files`` to their places."""
    for file, offset in zip(files, offsets.tolist(), strict=True):
        data = np.frombuffer(memoryview(file), np.uint8)
        target[offset : offset + len(data)] = data
