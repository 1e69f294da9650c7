"""What a file says of itself, without decoding it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from penstock import _native
from penstock.psi import axes
from penstock.psi.failures import translated

if TYPE_CHECKING:
    from typing_extensions import Buffer

Level: TypeAlias = Literal["fast", "dense", "max"]
LEVELS: tuple[Level, ...] = ("fast", "dense", "max")


@dataclass(frozen=True)
class Info:
    """A PSI file's header."""

    dtype: np.dtype[Any]
    width: int
    height: int
    depth: int
    """Slices; 1 for a picture."""
    channels: int
    volume: bool
    """Whether the image is a volume, even one of a single slice."""
    significant_bits: int
    """Bits that the values need after an offset and a shift: 12 in a 16-bit container, say."""
    level: Level
    """What it was written at. Every level is read by the same decoder."""
    palette: int
    """Colours of the palette that the encoder found; 0 where there are too many."""
    tile: tuple[int, int]
    """Rows and columns of a tile; tiles decode independently."""
    tiles: int
    file_bytes: int
    """Size of the file, as far as it was given."""

    @property
    def layout(self) -> str:
        """The axes that ``decode`` gives: ``"HW"``, ``"HWC"``, ``"DHW"`` or ``"DHWC"``."""
        return axes.natural(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that ``decode`` gives."""
        return axes.shape_in(self.layout, (self.depth, self.height, self.width), self.channels)

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded image."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def bits_per_pixel(self) -> float:
        """Bits of the file for each pixel, all its channels together."""
        return 8 * self.file_bytes / (self.width * self.height * self.depth)


def info(file: Buffer) -> Info:
    """Reads the header of ``file``: bytes, a mapping of a file, or any other buffer.

    The beginning of a file is enough, up to where its tiles start. Raises DecodeError, TruncatedError or ChecksumError.

    >>> info(file).shape  # doctest: +SKIP
    (480, 640, 3)
    """
    with translated():
        row = _native.psi_info(file)
    return from_row(row, memoryview(file).nbytes)


def from_row(row: dict[str, Any], file_bytes: int) -> Info:
    """The header from what the native part says."""
    return Info(
        dtype=np.dtype(row["dtype"]),
        width=row["width"],
        height=row["height"],
        depth=row["depth"],
        channels=row["channels"],
        volume=row["volume"],
        significant_bits=row["significant_bits"],
        level=LEVELS[min(row["level"], 2)],
        palette=row["palette"],
        tile=(row["tile_height"], row["tile_width"]),
        tiles=row["tiles"],
        file_bytes=file_bytes,
    )
