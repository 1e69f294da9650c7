"""The native transforms: small frozen descriptions that the engine runs per sample, without Python.

A transform is a sequence of operations, applied in order to fields of kind ``image``. Geometry (resizing,
crops, pads, flips) is drawn once per sample and applied to its ``mask`` fields as well, there with nearest
resampling; colour is not. What is drawn depends only on (seed, epoch, id, place of the operation), never on
threads or ranks.

>>> transform = [RandomResizedCrop(224), Flip(), Normalize()]
>>> json.loads(compile_program(transform))["ops"][1]
{'op': 'flip', 'p': 0.5, 'axis': 'horizontal'}
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Interpolation: TypeAlias = Literal["nearest", "bilinear", "bicubic"]
"""How pixels between pixels are made; bilinear and bicubic are antialiased as Pillow's."""

Layout: TypeAlias = Literal["NCHW", "NHWC"]
"""The order of the axes of an image batch."""

Mode: TypeAlias = Literal["rgb", "grey", "unchanged"]
"""The channels of images: always three, always one, or as stored (16-bit depth and alpha are kept)."""

DTYPES = (
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
)
"""The element types that a batch can have."""

PROGRAM_VERSION = 1

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_MAX_SIDE = 1 << 24


class Operation(ABC):
    """One step of a transform."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the operation as the engine reads it."""


@dataclass(frozen=True, slots=True)
class Orient(Operation):
    """Turn pictures as their EXIF orientation says. Must come first.

    Without it pixels are taken as they are stored, as torchvision and Pillow's ``Image.open`` do.
    """

    def describe(self) -> dict[str, Any]:
        """Return the operation as the engine reads it."""
        return {"op": "orient"}


@dataclass(frozen=True, slots=True)
class Resize(Operation):
    """Resize to ``size``: (height, width), or one number for the short side, the proportions kept."""

    size: int | tuple[int, int]
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        if isinstance(self.size, int):
            _side(self.size, "Resize")
        else:
            object.__setattr__(self, "size", _size(self.size, "Resize"))
        _choice(self.interpolation, "Resize", "interpolation", ("nearest", "bilinear", "bicubic"))

    def describe(self) -> dict[str, Any]:
        """Return the operation as the engine reads it."""
        return {"op": "resize", "size": self.size, "interpolation": self.interpolation}


@dataclass(frozen=True, slots=True)
class RandomResizedCrop(Operation):
    """Cut a random box out and resize it to ``size``, as torchvision does.

    ``scale``: the box's part of the area; ``ratio``: its width over its height. Of a JPEG only the
    box is decoded.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _size(self.size, "RandomResizedCrop"))
        object.__setattr__(self, "scale", _range(self.scale, "RandomResizedCrop", "scale", 1e-12, 1e6))
        object.__setattr__(self, "ratio", _range(self.ratio, "RandomResizedCrop", "ratio", 1e-6, 1e6))
        _choice(self.interpolation, "RandomResizedCrop", "interpolation", ("nearest", "bilinear", "bicubic"))

    def describe(self) -> dict[str, Any]:
        """Return the operation as the engine reads it."""
        return {
            "op": "random_resized_crop",
            "size": self.size,
            "scale": self.scale,
            "ratio": self.ratio,
            "interpolation": self.interpolation,
        }


@dataclass(frozen=True, slots=True)
class CenterCrop(Operation):
    """Cut ``size`` out of the middle; what a smaller picture lacks is filled with 0."""

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _size(self.size, "CenterCrop"))

    def describe(self) -> dict[str, Any]:
        """Return the operation as the engine reads it."""
        return {"op": "center_crop", "size": self.size}


@dataclass(frozen=True, slots=True)
class RandomCrop(Operation):
    """Cut ``size`` out at a random place, after padding by ``padding`` (see :class:`Pad`).

    A picture that is smaller even with its padding is an error of that sample.
    """

    size: int | tuple[int, int]
    padding: int | tuple[int, int] | tuple[int, int, int, int] = 0
    fill: float = 0.0
    mask_fill: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _size(self.size, "RandomCrop"))
        object.__setattr__(self, "padding", _padding(self.padding, "RandomCrop"))
        _fills(self.fill, self.mask_fill, "RandomCrop")

    def describe(self) -> dict[str, Any]:
        """Return the operation as the engine reads it."""
        return {
            "op": "random_crop",
            "size": self.size,
            "padding": self.padding,
            "fill": self.fill,
            "mask_fill": self.mask_fill,
        }


@dataclass(frozen=True, slots=True)
class Pad(Operation):
    """Add pixels around: one number, (left and right, top and bottom), or (left, top, right, bottom).

    ``fill`` is the value of new pixels in images, in units of the stored type (0 to 255 for 8 bits);
    ``mask_fill`` that in masks, such as the label to ignore.
    """

    padding: int | tuple[int, int] | tuple[int, int, int, int]
    fill: float = 0.0
    mask_fill: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "padding", _padding(self.padding, "Pad"))
        _fills(self.fill, self.mask_fill, "Pad")

    def describe(self) -> dict[str, Any]:
        """Return the operation as the engine reads it."""
        return {"op": "pad", "padding": self.padding, "fill": self.fill, "mask_fill": self.mask_fill}


@dataclass(frozen=True, slots=True)
class Flip(Operation):
    """Mirror with probability ``p``: ``"horizontal"`` swaps left and right, ``"vertical"`` top and bottom."""

    p: float = 0.5
    axis: Literal["horizontal", "vertical"] = "horizontal"

    def __post_init__(self) -> None:
        _probability(self.p, "Flip")
        _choice(self.axis, "Flip", "axis", ("horizontal", "vertical"))

    def describe(self) -> dict[str, Any]:
        """Return the operation as the engine reads it."""
        return {"op": "flip", "p": self.p, "axis": self.axis}


@dataclass(frozen=True, slots=True)
class ColorJitter(Operation):
    """Change brightness, contrast, saturation and hue of 8-bit images by random factors, in random order.

    A number b means a factor in [max(0, 1 − b), 1 + b] (for ``hue`` a shift in [−b, b], of the whole circle,
    at most 0.5); a pair is the range itself. The arithmetic is Pillow's, as in torchvision on Pillow images.
    """

    brightness: float | tuple[float, float] = 0.0
    contrast: float | tuple[float, float] = 0.0
    saturation: float | tuple[float, float] = 0.0
    hue: float | tuple[float, float] = 0.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            value = getattr(self, name)
            if isinstance(value, int | float):
                _bounded(value, "ColorJitter", name, 0.0, 1e6)
                value = (max(0.0, 1.0 - value), 1.0 + value)
            object.__setattr__(self, name, _range(value, "ColorJitter", name, 0.0, 1e6))
        hue = self.hue
        if isinstance(hue, int | float):
            _bounded(hue, "ColorJitter", "hue", 0.0, 0.5)
            hue = (-hue, hue)
        object.__setattr__(self, "hue", _range(hue, "ColorJitter", "hue", -0.5, 0.5))

    def describe(self) -> dict[str, Any]:
        """Return the operation as the engine reads it."""
        return {
            "op": "color_jitter",
            "brightness": self.brightness,
            "contrast": self.contrast,
            "saturation": self.saturation,
            "hue": self.hue,
        }


@dataclass(frozen=True, slots=True)
class Grayscale(Operation):
    """Take the colour out with probability ``p``; the number of channels stays."""

    p: float = 1.0

    def __post_init__(self) -> None:
        _probability(self.p, "Grayscale")

    def describe(self) -> dict[str, Any]:
        """Return the operation as the engine reads it."""
        return {"op": "grayscale", "p": self.p}


@dataclass(frozen=True, slots=True)
class Normalize(Operation):
    """Scale integers to [0, 1], subtract ``mean``, divide by ``std``; the result is float32.

    One number for all channels or one for each; the defaults are ImageNet's. :class:`ToDType` before it says
    whether values are scaled, after it which float type is stored.
    """

    mean: float | tuple[float, ...] = (0.485, 0.456, 0.406)
    std: float | tuple[float, ...] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        mean, std = _numbers(self.mean), _numbers(self.std)
        if not mean or len(mean) != len(std):
            raise ValueError(f"Normalize: {len(mean)} means and {len(std)} standard deviations")
        if not all(math.isfinite(value) for value in mean):
            raise ValueError(f"Normalize: mean must be finite, not {mean}")
        if not all(1e-12 <= value < 1e12 for value in std):
            raise ValueError(f"Normalize: std must be positive, not {std}")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "std", std)

    def describe(self) -> dict[str, Any]:
        """Return the operation as the engine reads it."""
        return {"op": "normalize", "mean": self.mean, "std": self.std}


@dataclass(frozen=True, slots=True)
class ToDType(Operation):
    """Give the fields of one kind another element type.

    With ``scale`` (images only) the full range of an integer type becomes [0, 1] of a float, and the other
    way round. Otherwise values are cast as NumPy's ``astype`` does. Masks and arrays are always only cast.
    """

    dtype: str
    scale: bool = True
    kind: Literal["image", "mask", "array"] = "image"

    def __post_init__(self) -> None:
        _choice(self.dtype, "ToDType", "dtype", DTYPES)
        _choice(self.kind, "ToDType", "kind", ("image", "mask", "array"))

    def describe(self) -> dict[str, Any]:
        """Return the operation as the engine reads it."""
        return {"op": "to_dtype", "dtype": self.dtype, "scale": self.scale, "kind": self.kind}


def is_operation(item: object) -> bool:
    """Whether the engine runs this itself; anything else in a loader's transform is called in Python."""
    return isinstance(item, Operation)


def compile_program(
    transform: Sequence[Operation] = (),
    *,
    mode: Mode = "rgb",
    dtype: str | None = None,
    layout: Layout | None = None,
) -> str:
    """Return the program that the engine compiles: checked, as JSON.

    ``dtype``: element type of images, as a last ``ToDType(dtype)`` would give it. ``layout``: by default
    planes (NCHW) for images that the transform makes floats, NHWC for the others.

    >>> compile_program([Resize(256)], dtype="float16")[:40]
    '{"version": 1, "ops": [{"op": "resize", '
    """
    _choice(mode, "images", "mode", ("rgb", "grey", "unchanged"))
    if layout is not None:
        _choice(layout, "images", "layout", ("NCHW", "NHWC"))
    operations = list(transform)
    if dtype is not None:
        operations.append(ToDType(dtype))
    _check_order(operations)
    return json.dumps(
        {
            "version": PROGRAM_VERSION,
            "ops": [operation.describe() for operation in operations],
            "mode": mode,
            "layout": layout,
        },
        allow_nan=False,
    )


def _check_order(operations: Sequence[Operation]) -> None:
    """Pixels first, values last, in the words of the operations; the engine checks the same."""
    normalized = False
    cast: str | None = None
    for place, operation in enumerate(operations):
        name = type(operation).__name__
        if not isinstance(operation, Operation):
            raise TypeError(f"transform[{place}] is a {name}; operations come from penstock.transform")
        if isinstance(operation, Normalize):
            if normalized:
                raise ValueError("a second Normalize: put both into one")
            if cast is not None and cast not in _FLOATS:
                raise ValueError(f"Normalize after ToDType({cast!r}): it needs a float")
            normalized = True
        elif isinstance(operation, ToDType):
            if operation.kind != "image":
                continue
            if normalized and operation.dtype not in _FLOATS:
                raise ValueError(f"ToDType({operation.dtype!r}) after Normalize would lose the fractions")
            if cast is not None and not normalized:
                raise ValueError(f"a second ToDType for images, after {cast!r}")
            cast = operation.dtype
        elif normalized or cast is not None:
            raise ValueError(f"{name} after Normalize or ToDType: operations on pixels come before those")
        elif isinstance(operation, Orient) and place > 0:
            raise ValueError("Orient after another operation: it comes first")


def _side(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_SIDE:
        raise ValueError(f"{name}: size must be 1 to {_MAX_SIDE} pixels, not {value!r}")
    return value


def _size(value: object, name: str) -> tuple[int, int]:
    if isinstance(value, int):
        return (_side(value, name), value)
    if isinstance(value, Sequence) and len(value) == 2:
        return (_side(value[0], name), _side(value[1], name))
    raise ValueError(f"{name}: size must be a number or (height, width), not {value!r}")


def _padding(value: object, name: str) -> tuple[int, int, int, int]:
    sides = [value] if isinstance(value, int) else list(value) if isinstance(value, Sequence) else []
    if len(sides) not in (1, 2, 4) or not all(isinstance(n, int) and 0 <= n <= _MAX_SIDE for n in sides):
        raise ValueError(f"{name}: padding must be one, two or four numbers of pixels, not {value!r}")
    left, top, right, bottom = {1: sides * 4, 2: sides * 2, 4: sides}[len(sides)]
    return (left, top, right, bottom)


def _fills(fill: float, mask_fill: int, name: str) -> None:
    if not math.isfinite(fill):
        raise ValueError(f"{name}: fill must be finite, not {fill}")
    if not isinstance(mask_fill, int) or not -(2**63) <= mask_fill < 2**63:
        raise ValueError(f"{name}: mask_fill must be an integer of 64 bits, not {mask_fill!r}")


def _bounded(value: float, name: str, what: str, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name}: {what} must be {low:g} to {high:g}, not {value!r}")


def _probability(value: float, name: str) -> None:
    _bounded(value, name, "p", 0.0, 1.0)


def _range(value: object, name: str, what: str, low: float, high: float) -> tuple[float, float]:
    if isinstance(value, Sequence) and len(value) == 2:
        begin, end = float(value[0]), float(value[1])
        if low <= begin <= end <= high:
            return (begin, end)
    raise ValueError(f"{name}: {what} must be two ascending numbers from {low:g} to {high:g}, not {value!r}")


def _numbers(value: object) -> tuple[float, ...]:
    if isinstance(value, int | float):
        return (float(value),)
    if isinstance(value, Sequence):
        return tuple(float(number) for number in value)
    raise ValueError(f"Normalize: a number or one per channel, not {value!r}")


def _choice(value: object, name: str, what: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: {what} must be one of {', '.join(choices)}, not {value!r}")
