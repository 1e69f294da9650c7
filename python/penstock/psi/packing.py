"""What ``penstock pack --format psi`` does to a sample's bytes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.formats import FOREIGN_IMAGES, MASK_NAMES, VOLUME_NAMES, Format, kind_of
from penstock.psi.decoding import decode
from penstock.psi.encoding import TYPES, encode
from penstock.psi.header import LEVELS, Level
from penstock.psi.pictures import Picture, foreign_extension, of_array, profiles, read

if TYPE_CHECKING:
    from penstock.formats import Kind

_EXTENSIONS = {Format.PNG: "png", Format.WEBP: "webp", Format.JPEG: "jpg", Format.NPY: "npy"}
_MAYBE_PICTURES = FOREIGN_IMAGES | MASK_NAMES | VOLUME_NAMES | {"image"}
"""Fields of bytes that are looked into."""


class PackEncoder:
    """Turns pictures, masks and arrays into PSI, and compares every sample with what comes back.

    JPEG and lossy WebP stay as they are, since their pixels would only take more room, unless ``lossy`` says otherwise.
    Arrays that PSI cannot hold (float64, one axis, …) stay as they are as well.
    """

    format = Format.PSI

    def __init__(self, level: str, *, lossy: bool = False) -> None:
        self.level = _level(level)
        self.lossy = lossy

    def takes(self, format: Format, field: str) -> bool:
        """Whether items of that format may become PSI."""
        if format is Format.BYTES:
            return field in _MAYBE_PICTURES
        return format in _EXTENSIONS and (self.lossy or format is not Format.JPEG)

    def encode(self, data: memoryview, format: Format, field: str, kind: Kind) -> bytes | None:
        """The PSI file, or None where the item stays as it is. ValueError where it cannot be read."""
        if format is Format.WEBP and not self.lossy and profiles.is_lossy_webp(data):
            return None
        picture: Picture | None
        if format is Format.NPY:
            picture = of_array(np.load(io.BytesIO(data), allow_pickle=False))
            if picture is None or picture.array.dtype.name not in TYPES or not _keeps_its_shape(picture):
                return None
        else:
            extension = _EXTENSIONS.get(format) or foreign_extension(data)
            if extension is None and field not in FOREIGN_IMAGES:
                return None
            picture = read(data, extension or field, mask=kind == "mask")
        # Label maps are small work, and the longer search makes them far smaller: half of dense, below PNG.
        level = "max" if kind == "mask" and self.level == "dense" else self.level
        return encoded_picture(picture, level, threads=1)

    def becomes(self, data: memoryview, format: Format, field: str) -> tuple[str, Kind] | None:
        """What a field is called and treated as once it is packed, from one of its items; None where nothing changes."""
        extension = foreign_extension(data) if format is Format.BYTES else None
        if extension is None:
            return None
        if field in MASK_NAMES:
            return field, "mask"
        name = "volume" if "D" in read(data, extension).layout else "image"
        return name, kind_of(name, Format.PSI)


def _keeps_its_shape(picture: Picture) -> bool:
    """Arrays come back in the shape that they had: no channel axis of length one."""
    sides = dict(zip(picture.layout, picture.array.shape, strict=True))
    return bool(picture.array.size) and bool(sides.get("C", 2) > 1)


def _same(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    """Bit for bit, NaN and signed zeros included."""
    bits = f"u{right.dtype.itemsize}"
    native = right.astype(right.dtype.newbyteorder("="), copy=False)
    if left.shape != right.shape:
        return False
    return bool(
        np.array_equal(np.ascontiguousarray(left).view(bits), np.ascontiguousarray(native).view(bits))
    )


def encoded_picture(picture: Picture, level: str, *, threads: int | None = None) -> bytes:
    """The PSI file of a picture, decoded again and compared, bit for bit. ValueError where PSI cannot hold it."""
    file = encode(
        picture.array, _level(level), layout=picture.layout, metadata=picture.metadata, threads=threads
    )
    if not _same(decode(file, layout=picture.layout, threads=threads, max_bytes=2**63), picture.array):
        raise ValueError("what PSI gives back is not what went in; this is a bug in penstock")
    return file


def _level(name: str) -> Level:
    for known in LEVELS:
        if known == name:
            return known
    raise ValueError(f"level is {name!r}; it is one of {', '.join(LEVELS)}")
