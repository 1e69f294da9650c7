"""PSI in Pillow: open and save, in every mode, frames of volumes, profiles."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError
from tests.support import picture

import penstock.psi.pillow  # noqa: F401 - registers the format
from penstock import psi
from penstock.psi.pictures import write

if TYPE_CHECKING:
    from pathlib import Path


def in_mode(mode: str) -> Image.Image:
    image = picture(1, (50, 41))
    if mode == "I;16":
        return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 200)
    if mode in ("LA", "RGBA"):
        image.putalpha(image.convert("L").rotate(180))
        return image.convert(mode)
    if mode == "P":
        return image.quantize(40)
    if mode in ("I", "F"):
        return image.convert("L").convert(mode)
    if mode in ("LAB", "HSV", "YCbCr", "CMYK"):
        return Image.frombytes(
            mode, (50, 41), np.arange(50 * 41 * (4 if mode == "CMYK" else 3)).astype(np.uint8).tobytes()
        )
    return image.convert(mode)


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I", "F", "CMYK", "YCbCr", "LAB", "HSV"]
)
def test_every_mode_comes_back(tmp_path: Path, mode: str) -> None:
    image = in_mode(mode)
    image.save(tmp_path / "x.psi")
    with Image.open(tmp_path / "x.psi") as found:
        assert (found.format, found.mode, found.size) == ("PSI", mode, image.size)
        assert found.get_format_mimetype() == "image/x-psi"
        assert found.tobytes() == image.tobytes()
        if mode == "P":
            assert found.convert("RGB").tobytes() == image.convert("RGB").tobytes()
    assert (
        Image.open(tmp_path / "x.psi").crop((3, 4, 20, 30)).tobytes() == image.crop((3, 4, 20, 30)).tobytes()
    )


def test_transparency_of_a_palette_comes_back(tmp_path: Path) -> None:
    image = in_mode("P")
    image.info["transparency"] = bytes([0, 128, 255])
    image.save(tmp_path / "x.psi")
    found = Image.open(tmp_path / "x.psi")
    assert found.convert("RGBA").tobytes() == image.convert("RGBA").tobytes()


def test_profiles_and_levels(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    sizes = {}
    for level in ("fast", "dense"):
        path = tmp_path / f"{level}.psi"
        picture(2, (200, 200)).save(path, level=level, icc_profile=b"icc", exif=exif)
        sizes[level] = path.stat().st_size
        assert psi.info(path.read_bytes()).level == level
        with Image.open(path) as found:
            assert found.info["icc_profile"] == b"icc"
            assert found.getexif()[0x0112] == 8
            found.save(tmp_path / "again.psi")
        assert psi.metadata((tmp_path / "again.psi").read_bytes())["icc"] == b"icc"
    assert sizes["dense"] < sizes["fast"]


def test_a_volume_has_frames(tmp_path: Path) -> None:
    volume = np.random.default_rng(0).integers(0, 256, (5, 30, 20)).astype(np.uint8)
    (tmp_path / "v.psi").write_bytes(psi.encode(volume, layout="DHW"))
    with Image.open(tmp_path / "v.psi") as found:
        assert (found.n_frames, found.is_animated) == (5, True)
        for number in (0, 3, 1):
            found.seek(number)
            assert np.array_equal(np.asarray(found), volume[number])
        with pytest.raises(EOFError):
            found.seek(5)


@pytest.mark.parametrize("dtype", ["int8", "int16", "float16"])
def test_types_without_a_mode_show_in_a_wider_one(dtype: str) -> None:
    array = np.arange(-60, 60, dtype=np.float64).reshape(10, 12).astype(dtype)
    found = np.asarray(Image.open(io.BytesIO(psi.encode(array))))
    assert np.array_equal(found, array)


def test_what_pillow_cannot_hold_or_read_is_said() -> None:
    for array in (np.zeros((3, 4, 3), np.uint16), np.zeros((3, 4, 5), np.uint8), np.zeros((3, 4), np.uint32)):
        with pytest.raises(UnidentifiedImageError):
            Image.open(io.BytesIO(psi.encode(array)))
    file = psi.encode(np.asarray(picture(0)))
    with pytest.raises(UnidentifiedImageError):
        Image.open(io.BytesIO(file[:30]))
    broken = bytearray(file)
    broken[-9] ^= 1
    with Image.open(io.BytesIO(bytes(broken))) as image, pytest.raises(OSError, match="tile"):
        image.load()


def test_pillow_knows_psi_once_both_are_imported() -> None:
    code = "import PIL.Image; import penstock.psi; assert '.psi' in PIL.Image.registered_extensions()"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
    code = "import penstock.psi as psi; psi.register_pillow(); import PIL.Image; assert '.psi' in PIL.Image.EXTENSION"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("extension", ["png", "tif", "npy"])
def test_psi_is_written_back_as(extension: str) -> None:
    arrays: list[Any] = [np.asarray(in_mode(mode)) for mode in ("RGB", "L", "RGBA", "I;16")]
    if extension != "png":
        arrays += [np.linspace(0, 1, 120, dtype=np.float32).reshape(10, 12)]
    if extension == "npy":
        arrays += [np.zeros((3, 4, 5, 2), np.int32)]
    for array in arrays:
        made = write(psi.encode(array), extension)
        if extension == "npy":
            found = np.load(io.BytesIO(made))
        elif extension == "tif":
            found = pytest.importorskip("tifffile").imread(io.BytesIO(made))
        else:
            found = np.asarray(Image.open(io.BytesIO(made)))
        assert found.dtype == array.dtype
        assert np.array_equal(found, array)
    with pytest.raises(ValueError, match="images are not written as 'gif'"):
        write(psi.encode(arrays[0]), "gif")
