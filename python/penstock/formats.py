"""The table of formats and what a file name says: the mirror of ``crates/codec/src/format.rs``.

The codes stand in every catalog and never change.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["image", "mask", "array", "bytes", "scalar"]
"""How a field is treated: see docs/design.md."""


class Format(IntEnum):
    """How the bytes of a stored field are coded."""

    RAW = 0
    NPY = 1
    JPEG = 2
    PNG = 3
    WEBP = 4
    PSI = 5
    BYTES = 6
    JSON = 7
    CLS = 8
    NPY_DEFLATE = 9


FORMAT_NAMES: dict[Format, str] = {
    Format.RAW: "raw",
    Format.NPY: "npy",
    Format.JPEG: "jpeg",
    Format.PNG: "png",
    Format.WEBP: "webp",
    Format.PSI: "psi",
    Format.BYTES: "bytes",
    Format.JSON: "json",
    Format.CLS: "cls",
    Format.NPY_DEFLATE: "npy.deflate",
}

EXTENSIONS: dict[Format, tuple[str, ...]] = {
    Format.RAW: ("raw", "bin"),
    Format.NPY: ("npy",),
    Format.JPEG: ("jpg", "jpeg", "jpe", "jfif"),
    Format.PNG: ("png",),
    Format.WEBP: ("webp",),
    Format.PSI: ("psi",),
    Format.BYTES: ("txt", "text", "bytes"),
    Format.JSON: ("json",),
    Format.CLS: ("cls", "cls2", "index"),
    Format.NPY_DEFLATE: (),
}

IMAGE_FORMATS = frozenset({Format.JPEG, Format.PNG, Format.WEBP, Format.PSI})
FOREIGN_IMAGES = frozenset({"tif", "tiff", "bmp", "dcm", "dicom"})
"""Extensions of pictures that no decoder of ours reads: given as bytes, until they are packed as PSI."""
MASK_NAMES = frozenset({"mask", "seg", "label-map"})
VOLUME_NAMES = frozenset({"volume", "stack", "array"})
"""Fields whose PSI files are arrays, not pictures: slices are not rows."""

_BY_EXTENSION: dict[str, Format] = {
    extension: format for format, extensions in EXTENSIONS.items() for extension in extensions
}
_USUAL_FIELD: dict[Format, str] = {
    Format.NPY: "array",
    Format.JPEG: "image",
    Format.PNG: "image",
    Format.WEBP: "image",
    Format.PSI: "image",
    Format.JSON: "json",
    Format.CLS: "label",
}


class NameParts(NamedTuple):
    """What a file name says: which sample, which of its fields, in which format."""

    key: str
    field: str
    format: Format
    known: bool
    """Whether the extension is in the table; other files are given as bytes."""


def format_of_extension(extension: str) -> Format | None:
    """Return the format that a file extension (without the dot, in any case) stands for, if any."""
    return _BY_EXTENSION.get(extension.lower())


def split_name(name: str) -> NameParts | None:
    """Cut a file name into sample key, field and format; None when it has no stem or no extension.

    What follows the first dot of the last path component names the field. A simple known extension gives
    the format's usual name, a compound one its first part:

    >>> split_name("cats/7.jpg")[:2], split_name("cats/7.mask.png")[:2]
    (('cats/7', 'image'), ('cats/7', 'mask'))
    """
    start = name.rfind("/") + 1
    dot = name.find(".", start)
    if dot <= start or dot == len(name) - 1:
        return None
    first, _, rest = name[dot + 1 :].lower().partition(".")
    last = rest.rpartition(".")[2] if rest else first
    format = _BY_EXTENSION.get(last)
    if rest and first:
        field = first
    elif last in ("txt", "text"):
        field = "text"
    elif format is None:
        field = first
    else:
        field = _USUAL_FIELD.get(format, first)
    known = format is not None
    if format is None or format is Format.RAW:  # nothing says the type and shape of a lone raw file
        format = Format.BYTES
    return NameParts(name[:dot], field, format, known)


def kind_of(field: str, format: Format) -> Kind:
    """Return the kind of a stored field from its name and format."""
    if format is Format.PSI and field in VOLUME_NAMES:
        return "array"
    if format in IMAGE_FORMATS:
        return "mask" if field in MASK_NAMES else "image"
    if format in (Format.RAW, Format.NPY, Format.NPY_DEFLATE):
        return "array"
    if format is Format.CLS:
        return "scalar"
    return "bytes"
