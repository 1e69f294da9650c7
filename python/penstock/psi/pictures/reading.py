"""From a file of another format to samples, none of them changed."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _native
from penstock.errors import PenstockError
from penstock.formats import Format
from penstock.psi.pictures import profiles
from penstock.psi.pictures.contract import EXTENSIONS, Picture
from penstock.transform import compile_program

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

_AXES = {"Y": "H", "X": "W", "S": "C", "C": "C"}
"""tifffile's names of axes; all others count slices."""
_DICOM_KEPT = (
    *("Modality", "RescaleSlope", "RescaleIntercept", "WindowCenter", "WindowWidth"),
    *("PixelSpacing", "SliceThickness", "PhotometricInterpretation"),
)
"""What a trainer needs of a DICOM header. Nothing that says who the patient is."""


def read(data: Buffer, extension: str, *, mask: bool = False) -> Picture:
    """The samples of a file. ``mask``: of a palette picture the indices, not the colours.

    Raises ValueError with what is wrong with the file, PenstockError where a library is missing.

    >>> read(data, "png").array.shape  # doctest: +SKIP
    (480, 640, 3)
    """
    reader = _READERS.get(extension.lower())
    if reader is None:
        raise ValueError(f"no picture format is called {extension!r}; there are {', '.join(EXTENSIONS)}")
    return reader(memoryview(data).cast("B"), mask)


def _native_picture(format: Format) -> Callable[[memoryview, bool], Picture]:
    def reader(data: memoryview, mask: bool) -> Picture:  # noqa: FBT001 - called by position
        program = compile_program(mode="unchanged")
        try:
            made = _native.decode(data, int(format), ("x", "mask" if mask else "image", None), program)
        except EOFError as error:
            raise ValueError(str(error)) from None
        array = np.asarray(made)
        if array.ndim == 3 and array.shape[2] == 1:
            array = array[..., 0]
        about: dict[str, Any] = _PROFILES[format](data)
        if not mask:
            about.pop("palette", None)  # its colours are in the samples
        return Picture(array, "HWC"[: array.ndim], about)

    return reader


_PROFILES: dict[Format, Callable[[memoryview], dict[str, bytes]]] = {
    Format.PNG: profiles.of_png,
    Format.WEBP: profiles.of_webp,
    Format.JPEG: profiles.of_jpeg,
}


def _npy(data: memoryview, _mask: bool) -> Picture:  # noqa: FBT001
    array = np.load(io.BytesIO(data), allow_pickle=False)
    picture = of_array(array)
    if picture is None:
        raise ValueError(
            f"an array of shape {array.shape}; a picture has two axes and a volume three or four"
        )
    return picture


def of_array(array: np.ndarray[Any, Any]) -> Picture | None:
    """An array as a picture or volume: up to four values along the last of three axes are channels. None for other shapes."""
    layouts = {2: "HW", 3: "HWC" if array.ndim == 3 and array.shape[2] <= 4 else "DHW", 4: "DHWC"}
    return Picture(array, layouts[array.ndim]) if array.ndim in layouts else None


def _tiff(data: memoryview, mask: bool) -> Picture:  # noqa: FBT001
    try:
        import tifffile
    except ImportError:
        return _pillow(data, mask)
    try:
        with tifffile.TiffFile(io.BytesIO(data)) as file:
            array, axes = file.series[0].asarray(), file.series[0].axes
            icc = file.pages[0].tags.get("InterColorProfile")
    except Exception as error:  # noqa: BLE001 - it raises what it likes for a bad file or a codec that it lacks
        try:
            return _pillow(data, mask)
        except (PenstockError, ValueError):
            raise ValueError(f"tifffile cannot read it: {error}") from error
    layout = "".join(_AXES.get(axis, "D") for axis in axes)
    for _ in range(len(layout)):  # axes of length one beyond slices are no axes
        repeated = next(
            (i for i, a in enumerate(layout) if layout.count(a) > 1 and array.shape[i] == 1), None
        )
        if repeated is None:
            break
        array, layout = array.squeeze(repeated), layout[:repeated] + layout[repeated + 1 :]
    if len(set(layout)) != len(layout):
        raise ValueError(
            f"a TIFF with the axes {axes}; a picture has rows, columns and channels, a volume slices"
        )
    return Picture(array, layout, {} if icc is None else {"icc": bytes(icc.value)})


def _pillow(data: memoryview, mask: bool) -> Picture:  # noqa: FBT001
    try:
        from PIL import Image
    except ImportError as error:
        raise PenstockError(
            "TIFF and BMP need Pillow (or, for TIFF, tifffile), which is not installed: pip install pillow tifffile"
        ) from error
    from penstock.psi.pillow import samples_of

    try:
        with Image.open(io.BytesIO(data)) as image:
            frames = getattr(image, "n_frames", 1)
            if frames == 1:
                return samples_of(image, indices=mask)
            pages = []
            for number in range(frames):
                image.seek(number)
                pages.append(samples_of(image, indices=mask))
    except Exception as error:
        raise ValueError(f"Pillow cannot read it: {error}") from error
    if len({(page.array.shape, page.array.dtype) for page in pages}) > 1:
        raise ValueError(f"a file of {frames} pages of different sizes or types")
    return Picture(np.stack([page.array for page in pages]), "D" + pages[0].layout, pages[0].metadata)


def _dicom(data: memoryview, _mask: bool) -> Picture:  # noqa: FBT001
    try:
        import pydicom
    except ImportError as error:
        raise PenstockError("DICOM needs pydicom, which is not installed: pip install pydicom") from error
    try:
        file = pydicom.dcmread(io.BytesIO(data))
        array = file.pixel_array
    except Exception as error:
        raise ValueError(f"pydicom cannot read it: {error}") from error
    colour = int(getattr(file, "SamplesPerPixel", 1)) > 1
    layout = ("D" if array.ndim == 3 + colour else "") + "HW" + ("C" if colour else "")
    about = {name: _plain(file.get(name)) for name in _DICOM_KEPT if file.get(name) is not None}
    return Picture(array, layout, {"json": {"dicom": about}} if about else {})


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return str(value)
    try:
        return [float(part) for part in value]
    except TypeError:
        return float(value)


_READERS: dict[str, Callable[[memoryview, bool], Picture]] = {
    "png": _native_picture(Format.PNG),
    "webp": _native_picture(Format.WEBP),
    "jpg": _native_picture(Format.JPEG),
    "jpeg": _native_picture(Format.JPEG),
    "npy": _npy,
    "tif": _tiff,
    "tiff": _tiff,
    "bmp": _pillow,
    "dcm": _dicom,
    "dicom": _dicom,
}
