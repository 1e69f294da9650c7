"""From PSI back to a format that every tool opens."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import PenstockError
from penstock.psi.decoding import decode
from penstock.psi.header import info
from penstock.psi.metadata import metadata

if TYPE_CHECKING:
    from typing_extensions import Buffer

WRITABLE = ("png", "tif", "tiff", "npy")


def write(file: Buffer, extension: str) -> bytes:
    """The image of a PSI file as PNG, TIFF or npy, every sample as it was.

    Raises ValueError for an image that the format cannot hold, PenstockError where a library is missing.
    """
    kind = extension.lower()
    if kind not in WRITABLE:
        raise ValueError(f"images are not written as {extension!r}; there are {', '.join(WRITABLE)}")
    array = decode(file)
    if kind == "npy":
        out = io.BytesIO()
        np.save(out, array, allow_pickle=False)
        return out.getvalue()
    if kind != "png" and (made := _by_tifffile(array, file)) is not None:
        return made
    try:
        from PIL import Image  # noqa: F401 - told of before anything is tried
    except ImportError as error:
        raise PenstockError(
            "PNG and TIFF are written by Pillow (or, TIFF, by tifffile), which is not installed: pip install pillow"
        ) from error
    from penstock.psi.pillow import image_of

    image = image_of(array, metadata(file), info(file))
    about = {
        name: image.info[key] for name, key in (("icc_profile",) * 2, ("exif",) * 2) if key in image.info
    }
    if "transparency" in image.info and kind == "png":
        about["transparency"] = image.info["transparency"]
    out = io.BytesIO()
    image.save(out, "PNG" if kind == "png" else "TIFF", **about)
    return out.getvalue()


def _by_tifffile(array: np.ndarray[Any, Any], file: Buffer) -> bytes | None:
    try:
        import tifffile
    except ImportError:
        return None
    told = info(file)
    out = io.BytesIO()
    colour = "rgb" if told.channels in (3, 4) and array.dtype in (np.uint8, np.uint16) else "minisblack"
    tifffile.imwrite(
        out,
        array,
        photometric=colour,
        iccprofile=metadata(file).get("icc"),
        metadata={"axes": _axes(told.layout)},
    )
    return out.getvalue()


def _axes(layout: str) -> str:
    return layout.translate(str.maketrans("DHWC", "ZYXS"))
