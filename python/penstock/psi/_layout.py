"""Where everything lies in a file: for decoders that are not the codec's own, on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _native
from penstock.psi.failures import translated
from penstock.psi.header import Info, from_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer


@dataclass(frozen=True)
class Layout:
    """A file's header and its sections. Every range was checked to lie inside the file."""

    info: Info
    coded_bits: int
    """Width of the coded words: 8, 16 or 32."""
    offset: int
    """Added to a coded word after the shift, to give the sample as an ordered integer."""
    shift: int
    coded_channels: int
    """1 where a palette stands for the channels."""
    grid: tuple[int, int, int]
    """Tiles across, tiles down, and groups of channels; tile = ((slice * groups + group) * down + row) * across + column."""
    palette: np.ndarray[Any, np.dtype[np.uint8]]
    """Colours, each a run of samples."""
    tables: np.ndarray[Any, np.dtype[np.uint8]]
    """The coding tables as they stand in the file, from byte ``tables_start`` on."""
    tables_start: int
    slots: np.ndarray[Any, np.dtype[np.uint32]]
    """The same, ready for use: ``[16, 1024]``; empty where no tile needs them."""
    of_context: np.ndarray[Any, np.dtype[np.uint8]]
    """The table of each context: ``[channels of a group, 256]``."""
    payload: int
    """Byte of the file where the first tile may start."""
    tile_offsets: np.ndarray[Any, np.dtype[np.uint64]]
    """``[tiles + 1]``: bytes from ``payload`` to each tile's start, and to the end of the last."""
    tile_hashes: np.ndarray[Any, np.dtype[np.uint32]]


def layout(file: Buffer, name: Callable[[int], str | None] = lambda _: None) -> Layout:
    """Reads and checks the header and the table of tiles; the tiles themselves are not looked at."""
    with translated(name):
        row = _native.psi_layout(file)
    slots = np.frombuffer(row["slots"], np.uint32)
    of_context = np.frombuffer(row["of_context"], np.uint8)
    return Layout(
        info=from_row(row, memoryview(file).nbytes),
        coded_bits=row["coded_bits"],
        offset=row["offset"],
        shift=row["shift"],
        coded_channels=row["coded_channels"],
        grid=tuple(row["grid"]),
        palette=np.frombuffer(row["palette_bytes"], np.uint8),
        tables=np.frombuffer(row["tables"], np.uint8),
        tables_start=row["tables_start"],
        slots=slots.reshape(-1, 1024),
        of_context=of_context.reshape(-1, 256),
        payload=row["payload"],
        tile_offsets=np.frombuffer(row["tile_offsets"], np.uint64),
        tile_hashes=np.frombuffer(row["tile_hashes"], np.uint32),
    )
