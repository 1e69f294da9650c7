"""What a picture is on its way from one format to another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

EXTENSIONS = ("png", "webp", "jpg", "jpeg", "npy", "tif", "tiff", "bmp", "dcm", "dicom")
"""What can be read."""


def foreign_extension(data: memoryview) -> str | None:
    """What bytes that only this package reads begin as: TIFF, BMP or DICOM; None for anything else."""
    head = bytes(data[:132])
    if head[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return "tif"
    if head[128:132] == b"DICM":
        return "dcm"
    return "bmp" if head[:2] == b"BM" else None


@dataclass(frozen=True)
class Picture:
    """Samples, the order of their axes (``"HWC"``), and what came with them."""

    array: np.ndarray[Any, Any]
    layout: str
    metadata: dict[str, Any] = field(default_factory=dict)
