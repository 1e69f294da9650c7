"""A picture of some samples: a grid of tiles with their labels under them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pathlib import Path

    from PIL.Image import Image

    from penstock.catalog import Field
    from penstock.dataset import Dataset

_TILE = 192
_CAPTION = 18
_GAP = 6
_PAPER = (250, 250, 248)
_INK = (40, 40, 44)
_RED = (176, 32, 32)
_COLOURS = 256


def draw_grid(data: Dataset, path: Path, *, count: int = 20, seed: int = 0) -> int:
    """Draw up to ``count`` samples, drawn by ``seed``, as a PNG at ``path``; gives how many could not be read.

    Images as they are, masks in colours beside their image, arrays scaled to greys, with label or key below. Raises
    PenstockError where Pillow is missing or nothing in the dataset can be seen.

        draw_grid(penstock.open("photos/"), Path("grid.png"))
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise PenstockError(
            "a picture grid needs Pillow, which is not installed: pip install 'penstock[pictures]'"
        ) from error
    fields = visible_fields(data)
    if not fields:
        names = ", ".join(field.name for field in data.catalog.stored)
        raise PenstockError(
            f"nothing here can be drawn: stored are {names or 'no fields'}, none an image, mask or array"
        )
    shown = data.select(*(field.name for field in fields)).sample(min(count, len(data)), seed=seed)
    captions = _captions(data, shown)
    across = max(1, min(len(shown), round(math.sqrt(len(shown) * 1.6 / len(fields)))))
    down = max(1, math.ceil(len(shown) / across))
    step_x = _TILE * len(fields) + _GAP * (len(fields) + 1)
    step_y = _TILE + _CAPTION + _GAP
    sheet = Image.new("RGB", (across * step_x + _GAP, down * step_y + _GAP), _PAPER)
    bad = 0
    for at in range(len(shown)):
        x, y = at % across * step_x + _GAP, at // across * step_y + _GAP
        try:
            sample = shown[at]
            for n, field in enumerate(fields):
                tile = _fit(to_picture(sample[field.name], field.kind))
                left = x + n * (_TILE + _GAP) + (_TILE - tile.width) // 2
                sheet.paste(tile, (left, y + (_TILE - tile.height) // 2))
        except PenstockError as error:
            bad += 1
            _write(sheet, x, y + _TILE // 2, str(getattr(error, "reason", error)), step_x - _GAP, _RED)
        _write(sheet, x, y + _TILE + 2, captions[at], step_x - _GAP, _INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path, format="PNG")
    return bad


def visible_fields(data: Dataset) -> list[Field]:
    """The first image with its mask, or the first array."""
    stored = data.catalog.stored
    images = [field for field in stored if field.kind == "image"][:1]
    masks = [field for field in stored if field.kind == "mask"][:1]
    return (images + masks) or [field for field in stored if field.kind == "array"][:1]


def to_picture(value: Any, kind: str) -> npt.NDArray[np.uint8]:
    """Any decoded value as uint8 ``[H, W, 3]``."""
    array: npt.NDArray[Any] = np.asarray(value)
    if kind == "mask":
        return _coloured(_plane(array))
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3, 4):
        array = np.moveaxis(array, 0, 2)
    if array.ndim == 3 and array.shape[2] in (3, 4):
        return _scaled(array[:, :, :3])
    grey = _scaled(_plane(array))
    return np.repeat(grey[:, :, None], 3, axis=2)


def _plane(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Two dimensions of an array: the middle of each of the first ones; a row of values becomes a strip."""
    if array.ndim == 3 and array.shape[2] <= 2:
        array = array[:, :, 0]
    while array.ndim > 2:
        array = array[array.shape[0] // 2]
    if array.ndim < 2:
        array = array.reshape(1, -1)
    return array if array.size else np.zeros((1, 1), np.uint8)


def _scaled(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Values to 0…255: bytes as they are, anything else from its smallest to its largest finite value."""
    if array.dtype == np.uint8:
        return array
    values = array.astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    values = np.nan_to_num((values - low) / ((high - low) or 1.0), nan=0.0, posinf=1.0, neginf=0.0)
    scaled: npt.NDArray[np.uint8] = (values.clip(0, 1) * 255).round().astype(np.uint8)
    return scaled


def _coloured(labels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """A colour for each class of a mask, far from its neighbours'; 0 is black."""
    n = np.arange(_COLOURS)
    hue = n * 0.618033988749895 % 1.0
    wheel = np.abs((hue[:, None] * 6 + np.array([0.0, 4.0, 2.0])) % 6 - 3) - 1
    table = (np.clip(wheel, 0, 1) * 0.75 + 0.25) * 255
    table[0] = 0
    coloured: npt.NDArray[np.uint8] = table.astype(np.uint8)[labels.astype(np.int64) % _COLOURS]
    return coloured


def _fit(pixels: npt.NDArray[np.uint8]) -> Image:
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(pixels))
    scale = _TILE / max(picture.width, picture.height)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST)


def _captions(data: Dataset, shown: Dataset) -> list[str]:
    column = data.catalog.header.class_column
    if column is None:
        column = "label" if "label" in data.columns else None
    if column is None:
        return [key.rpartition("/")[2] for key in shown.catalog.keys()]  # noqa: SIM118 - a method of ours
    classes = data.classes
    values = shown.catalog.to_arrow([column]).column(column).to_pylist()
    return [
        classes[value] if classes and isinstance(value, int) and 0 <= value < len(classes) else str(value)
        for value in values
    ]


def _write(sheet: Image, x: int, y: int, text: str, width: int, colour: tuple[int, int, int]) -> None:
    from PIL import ImageDraw, ImageFont

    font = ImageFont.load_default(13)
    draw = ImageDraw.Draw(sheet)
    while text and draw.textlength(text, font) > width:
        text = text[:-2] + "…" if len(text) > 2 else ""
    draw.text((x, y), text, fill=colour, font=font)
