"""PSI in Pillow: ``Image.open("x.psi")`` and ``image.save("x.psi")``.

Importing this module registers the format; ``penstock.psi`` does so by itself where Pillow was imported before it. The
modes 1, L, LA, P, RGB, RGBA, I;16, I and F are kept, and those of four or three bytes such as CMYK; a volume is an image
of as many frames. Of ``save``: ``level="fast" | "dense" | "max"``, ``icc_profile=`` and ``exif=`` as elsewhere.

>>> import penstock.psi.pillow  # doctest: +SKIP
>>> Image.open("x.psi").convert("L").save("y.psi", level="max")  # doctest: +SKIP
"""

from __future__ import annotations

import io
from typing import IO, TYPE_CHECKING, Any, ClassVar

import numpy as np
from PIL import Image, ImageFile, ImagePalette

from penstock.errors import DataError
from penstock.psi.decoding import decode
from penstock.psi.encoding import encode
from penstock.psi.header import info
from penstock.psi.metadata import metadata
from penstock.psi.pictures.contract import Picture

if TYPE_CHECKING:
    from penstock.psi.header import Info

_MODES = {("uint8", 1): "L", ("uint8", 2): "LA", ("uint8", 3): "RGB", ("uint8", 4): "RGBA"}
_MODES |= {("uint16", 1): "I;16", ("int32", 1): "I", ("float32", 1): "F"}
_AS: dict[tuple[str, int], str] = {("int8", 1): "int32", ("int16", 1): "int32", ("float16", 1): "float32"}
"""What Pillow has no mode for, and a type that holds every value of it."""
_RAW = {"1": "1;8", "I": "I;32NS", "F": "F;32NF", "I;16": "I;16"}
_SAID = {"1", "CMYK", "YCbCr", "LAB", "HSV"}
"""Modes that the samples do not tell: a chunk of the metadata says them."""


def samples_of(image: Image.Image, *, indices: bool) -> Picture:
    """The samples of a Pillow image. ``indices``: of a palette image the numbers, else its colours."""
    about: dict[str, Any] = {}
    if image.info.get("icc_profile"):
        about["icc"] = image.info["icc_profile"]
    exif = image.getexif()
    if exif:
        about["exif"] = exif.tobytes().removeprefix(b"Exif\0\0")
    if image.mode in ("P", "PA"):
        if indices and image.mode == "P":
            about["palette"] = _palette(image)
        else:
            image = image.convert("RGBA" if "transparency" in image.info or image.mode == "PA" else "RGB")
    elif image.mode.startswith("I;16"):
        image = image if image.mode == "I;16" else image.convert("I;16")
    elif image.mode == "1":
        image = image.convert("L")
        about["MODE"] = b"1"
        if indices:
            return Picture(np.asarray(image) // 255, "HW", {k: v for k, v in about.items() if k != "MODE"})
    elif image.mode in _SAID:
        about["MODE"] = image.mode.encode()
    elif image.mode not in _MODES.values():
        raise ValueError(f"Pillow's mode {image.mode}; convert it to RGB or RGBA first")
    array = np.asarray(image)
    return Picture(array, "HWC"[: array.ndim], about)


def _palette(image: Image.Image) -> bytes:
    colours = bytearray(image.getpalette("RGBA") or b"\0\0\0\xff")
    transparency = image.info.get("transparency")
    if isinstance(transparency, int) and 4 * transparency + 3 < len(colours):
        colours[4 * transparency + 3] = 0
    elif isinstance(transparency, bytes):
        alpha = transparency[: len(colours) // 4]
        colours[3 : 4 * len(alpha) : 4] = alpha
    return bytes(colours)


def mode_of(told: Info, about: dict[str, Any]) -> str:
    """Pillow's mode for a file; ValueError where it has none."""
    kind = (told.dtype.name, told.channels)
    said = about.get("MODE", b"").decode("ascii", "replace")
    if told.dtype == np.uint8 and said in _SAID and Image.getmodebands(said) == told.channels:
        return str(said)
    if kind == ("uint8", 1) and "palette" in about:
        return "P"
    mode = _MODES.get(kind) or _MODES.get((_AS.get(kind, ""), told.channels))
    if mode is None:
        raise ValueError(
            f"Pillow has no mode for {told.channels} channels of {told.dtype}; penstock.psi.decode gives them as an array"
        )
    return mode


def image_of(array: np.ndarray[Any, Any], about: dict[str, Any], told: Info) -> Image.Image:
    """A Pillow image over decoded samples of one slice."""
    mode = mode_of(told, about)
    if told.volume:
        if told.depth > 1:
            raise ValueError(f"a volume of {told.depth} slices as one picture; write it as tif or npy")
        array = array[0]
    image = Image.frombytes(mode, (told.width, told.height), _bytes(array, told), "raw", _RAW.get(mode, mode))
    if mode == "P":
        image.putpalette(_colours(about["palette"]))
    _describe(image, about)
    return image


def _bytes(array: np.ndarray[Any, Any], told: Info) -> bytes:
    return array.astype(_AS.get((told.dtype.name, told.channels), told.dtype.name), copy=False).tobytes()


def _describe(image: Image.Image, about: dict[str, Any]) -> None:
    if "icc" in about:
        image.info["icc_profile"] = about["icc"]
    if "exif" in about:
        image.info["exif"] = b"Exif\0\0" + about["exif"]
    if image.mode == "P":
        alpha = about["palette"][3::4]
        if any(value != 255 for value in alpha):
            image.info["transparency"] = alpha


def _colours(palette: bytes) -> bytes:
    """Without alpha, for all 256 numbers."""
    colours = b"".join(palette[at : at + 3] for at in range(0, len(palette), 4))
    return colours.ljust(768, b"\0")


class PsiImageFile(ImageFile.ImageFile):
    """A PSI file that Pillow has opened; the pixels are decoded when they are asked for."""

    format: ClassVar[str] = "PSI"  # type: ignore[misc]
    format_description: ClassVar[str] = "PSI lossless image"  # type: ignore[misc]

    def _open(self) -> None:
        self._file = self.fp.read() if self.fp is not None else b""
        try:
            self._told, self._about = info(self._file), metadata(self._file)
            self._mode = mode_of(self._told, self._about)
        except (DataError, ValueError) as error:
            raise SyntaxError(str(error)) from error  # what Pillow expects of a file that is none
        self._size = (self._told.width, self._told.height)
        self.n_frames = self._told.depth
        self.is_animated = self.n_frames > 1
        self._frame = 0
        self.tile = []
        if self.mode == "P":
            self.palette = ImagePalette.raw("RGB", _colours(self._about["palette"]))
        _describe(self, self._about)

    def seek(self, frame: int) -> None:
        """Goes to a slice of a volume; EOFError past the last."""
        if self._seek_check(frame):
            self._frame = frame
            self._decoded = False

    def tell(self) -> int:
        """The slice that is shown."""
        return self._frame

    _decoded = False

    def load(self) -> Any:
        """Decodes the slice, once."""
        if not self._decoded:
            region = (slice(self._frame, self._frame + 1),) if self._told.volume else None
            try:
                array = decode(self._file, region=region)
            except DataError as error:
                raise OSError(str(error)) from error
            if self.fp is not None and getattr(self, "_exclusive_fp", False):
                self.fp.close()
            self.fp = io.BytesIO(_bytes(array, self._told))
            way = _RAW.get(self.mode, self.mode)
            self.tile = [ImageFile._Tile("raw", (0, 0, *self.size), 0, way)]  # noqa: SLF001 - as plug-ins do
            self._decoded = True
        return super().load()

    def load_read(self, size: int) -> bytes:
        """Decoded bytes. That it is here keeps Pillow from mapping the file itself."""
        return self.fp.read(size) if self.fp is not None else b""


def _save(image: Image.Image, out: IO[bytes], _name: str | bytes) -> None:
    options = image.encoderinfo
    picture = samples_of(image, indices=True)
    about = dict(picture.metadata)
    if image.mode == "1":  # as it was: black and white, and said to be so
        about["MODE"] = b"1"
        picture = Picture(picture.array * np.uint8(255), picture.layout)
    if options.get("icc_profile"):
        about["icc"] = options["icc_profile"]
    if "exif" in options:
        exif = options["exif"]
        about["exif"] = (exif.tobytes() if isinstance(exif, Image.Exif) else bytes(exif)).removeprefix(
            b"Exif\0\0"
        )
    out.write(encode(picture.array, options.get("level", "dense"), layout=picture.layout, metadata=about))


def _accept(prefix: bytes) -> bool:
    return prefix.startswith(b"\x8fPSI")


def register() -> None:
    """Makes Pillow know PSI. More than once does no harm."""
    Image.register_open(PsiImageFile.format, PsiImageFile, _accept)
    Image.register_save(PsiImageFile.format, _save)
    Image.register_extension(PsiImageFile.format, ".psi")
    Image.register_mime(PsiImageFile.format, "image/x-psi")


register()
