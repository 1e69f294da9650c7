"""Which kernels there are: the source is compiled once for each variant that a batch needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

KERNELS = Path(__file__).parent / "kernels"

WARPS = 16
"""Warps of a block, each with a tile of its own: with the tables of one picture in shared memory, two such blocks fit a
multiprocessor."""

_TILE = 128  # what a warp knows of its tile: see kernels/tile.cuh
_TABLES = 4 * 16 * 1024 + 2 * 4 * 33 * 16  # slots of 16 tables; the table of each context of four channels
_RING = 2048  # of a warp: see kernels/rans.cuh

OUT = MappingProxyType(
    {
        ("bits", 1): 1,
        ("bits", 2): 2,
        ("bits", 4): 4,
        ("float16", 2): 12,
        ("bfloat16", 2): 22,
        ("float32", 4): 14,
    }
)
"""What a kernel writes, by (kind, bytes of an element): samples as they are, or numbers after scale and bias."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What a kernel is compiled for.

    ``bits`` of a coded word; ``channels`` of a tile, 0 where they differ; whether pictures have coding ``tables``; whether
    samples are ``plain`` bytes in aligned rows; ``out``: one of :data:`OUT`.
    """

    bits: int
    channels: int
    tables: bool
    plain: bool
    out: int

    @property
    def definitions(self) -> tuple[str, ...]:
        """For the compiler."""
        values = {
            "PSI_BITS": self.bits,
            "PSI_CHANNELS": self.channels,
            "PSI_TABLES": int(self.tables),
            "PSI_PLAIN": int(self.plain),
            "PSI_OUT": self.out,
            "PSI_WARPS": WARPS,
            "PSI_BLOCKS": 2,
        }
        return tuple(f"-D{name}={value}" for name, value in values.items())

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        # One ring more: the first starts at a multiple of its size.
        return WARPS * _TILE + (_TABLES + (WARPS + 1) * _RING if self.tables else 0)


@cache
def sources() -> MappingProxyType[str, str]:
    """The kernels' files by name."""
    return MappingProxyType(
        {path.name: path.read_text() for path in sorted(KERNELS.iterdir()) if path.suffix in (".cu", ".cuh")}
    )
