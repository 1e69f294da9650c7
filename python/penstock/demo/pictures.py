"""Labelled pictures that cost a decoder what photographs cost it, made from a seed.

A picture is light falling over fractal ground, a few things that clutter the view, one subject whose
shape, surface and hue follow the label, and the noise of a sensor. Luminance has the spectrum of
photographs (amplitude about 1/f), colour is smoother than luminance, edges are sharp, so that JPEG and PNG
sizes and the time to decode a byte are those of photographs. Every picture is a pure function of
(seed, index, label, size).
"""

from __future__ import annotations

import functools
import io
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Plane = NDArray[np.float32]
    Pixels = NDArray[np.uint8]

__all__ = ["Picture", "class_names", "make_folder", "picture"]

_SHAPES = ("disc", "square", "triangle", "ring", "cross", "star", "diamond", "pill")
_SURFACES = ("plain", "striped", "dotted", "checked")
_BANK = 1024  # side of the fields that all pictures of a process are cut from
_GOLDEN = 0.61803398875  # neighbouring labels get hues that are far apart


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture and the mask of its subject."""

    pixels: Pixels
    """Height × width × 3, RGB."""
    mask: Pixels
    """Height × width: 0 is ground, label + 1 is the subject."""

    def encode(self, *, quality: int = 95, format: str = "JPEG") -> bytes:
        """Give the pixels as the bytes of a JPEG, PNG or WebP file."""
        return _encode(self.pixels, format, quality)

    def encode_mask(self) -> bytes:
        """Give the mask as the bytes of a grey PNG file."""
        return _encode(self.mask, "PNG", 0)


def class_names(classes: int) -> tuple[str, ...]:
    """Names of the first `classes` classes: what the subject looks like."""
    names = []
    for label in range(classes):
        shape, surface, turn = _looks(label)
        names.append(f"{shape}-{surface}" + (f"-{turn + 1}" if turn else ""))
    return tuple(names)


def picture(seed: int, index: int, label: int, size: tuple[int, int] = (500, 375)) -> Picture:
    """Make picture number `index` of the set `seed`, with a subject of class `label`.

    `size` is (width, height) in pixels, each from 16 to 1024.
    """
    width, height = size
    if not (16 <= width <= _BANK and 16 <= height <= _BANK):
        raise ValueError(f"a picture is 16 to {_BANK} pixels wide and high, not {width} × {height}")
    draw = np.random.default_rng(np.random.SeedSequence([seed, index]))
    canvas = _Canvas(draw, _bank(seed), width, height)
    for _ in range(int(draw.integers(4, 8))):
        canvas.clutter()
    mask = canvas.subject(label)
    return Picture(canvas.develop(), np.where(mask, np.uint8(label + 1 if label < 255 else 255), np.uint8(0)))


def make_folder(
    dest: str | Path,
    n: int,
    *,
    classes: int = 10,
    size: tuple[int, int] = (500, 375),
    quality: int = 95,
    seed: int = 7,
    masks: bool = False,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Write `n` JPEG pictures into `dest` as a folder of class folders, and return it.

    The label of picture i is i mod `classes`. With `masks`, `NAME.mask.png` lies beside each picture.
    Files that are there already are kept, so that a second call costs nothing. `progress` is called with
    the number of pictures that were finished since the last call.
    """
    root = Path(dest)
    names = class_names(classes)
    for name in names:
        (root / name).mkdir(parents=True, exist_ok=True)

    def one(index: int) -> None:
        label = index % classes
        path = root / names[label] / f"{index:06d}.jpg"
        mask_path = path.with_suffix(".mask.png")
        if path.exists() and (mask_path.exists() or not masks):
            return
        made = picture(seed, index, label, size)
        if masks:
            _write(mask_path, made.encode_mask())
        _write(path, made.encode(quality=quality))

    # Nearly all the time is spent in array operations and the encoder, which run without the GIL.
    with ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="pictures") as pool:
        for _ in pool.map(one, range(n)):
            if progress is not None:
                progress(1)
    return root


class _Canvas:
    """Three planes, luminance and two of colour difference, that a picture is painted on."""

    def __init__(self, draw: np.random.Generator, bank: _Bank, width: int, height: int) -> None:
        self.draw, self.bank, self.width, self.height = draw, bank, width, height
        u = draw.uniform
        # The light falls off across the view, and the ground is lit by it.
        self.light = np.float32(u(95, 150)) + _ramp(width, u(-45, 45)) + _ramp(height, u(-60, 60))[:, None]
        ground = self._cut(bank.rough) * np.float32(u(16, 26)) + self._cut(bank.soft) * np.float32(u(18, 34))
        self.y = self.light + ground
        tint = _chroma(u(0, 1), u(4, 20))
        smooth = self._cut(bank.soft) * np.float32(u(4, 10))
        self.cb = smooth + tint[0]
        self.cr = self._cut(bank.soft) * np.float32(u(4, 10)) + tint[1]
        if u(0, 1) < 0.6:
            self._horizon()

    def _cut(self, field: Plane, width: int | None = None, height: int | None = None) -> Plane:
        w, h = width or self.width, height or self.height
        x, y = self.draw.integers(0, _BANK - w + 1), self.draw.integers(0, _BANK - h + 1)
        part = field[y : y + h, x : x + w]
        turn = self.draw.integers(0, 4)
        return part[:: -1 if turn & 1 else 1, :: -1 if turn & 2 else 1]

    def _horizon(self) -> None:
        u = self.draw.uniform
        rows = int(self.height * u(0.2, 0.6))
        sky = self._cut(self.bank.soft, height=rows) * np.float32(u(6, 18))
        self.y[:rows] = self.light[:rows] + sky + np.float32(u(10, 50))
        tint = _chroma(u(0.88, 1.04), u(5, 30))  # from grey to blue
        self.cb[:rows] = self.cb[:rows] * np.float32(0.4) + tint[0]
        self.cr[:rows] = self.cr[:rows] * np.float32(0.4) + tint[1]

    def clutter(self) -> None:
        """Paint one thing that says nothing of the label: a dull disc, box or wedge with a rough surface."""
        u = self.draw.uniform
        kind = ("disc", "square", "triangle")[int(self.draw.integers(0, 3))]
        reach = u(0.05, 0.22) * self.height
        box, cover, _ = self._place(kind, reach, u(0, 1) * self.width, u(0, 1) * self.height)
        if box is None:
            return
        surface = self._cut(self.bank.rough, *cover.shape[::-1]) * np.float32(u(12, 30))
        shade = self.light[box] + np.float32(u(-70, 70)) + surface
        self._paint(box, cover, shade, _chroma(u(0, 1), u(0, 18)))

    def subject(self, label: int) -> NDArray[np.bool_]:
        """Paint what the label names and return where it is."""
        u = self.draw.uniform
        shape, surface, _ = _looks(label)
        reach = u(0.22, 0.38) * min(self.height, self.width)
        x, y = u(0.35, 0.65) * self.width, u(0.38, 0.62) * self.height
        box, cover, (across, along) = self._place(shape, reach, x, y)
        assert box is not None  # noqa: S101 - the subject's centre is inside the picture
        shade = self.light[box] + np.float32(u(10, 50)) + self._cut(self.bank.rough, *cover.shape[::-1]) * 14
        pitch = np.float32(2 * np.pi * u(4.0, 5.5) / (2 * reach))
        if surface != "plain":
            shade = shade - np.float32(u(45, 65)) * _surface(surface, across * pitch, along * pitch)
        hue = (label * _GOLDEN + u(-0.035, 0.035)) % 1.0
        self._paint(box, cover, shade, _chroma(hue, u(42, 66)))
        mask = np.zeros((self.height, self.width), np.bool_)
        mask[box] = cover > 0.5
        return mask

    def _place(
        self, shape: str, reach: float, x: float, y: float
    ) -> tuple[tuple[slice, slice] | None, Plane, tuple[Plane, Plane]]:
        """Find the box that a turned shape covers, how much of each pixel it covers, and its own coordinates."""
        half = reach * 1.45
        x0, x1 = max(0, int(x - half)), min(self.width, int(x + half) + 1)
        y0, y1 = max(0, int(y - half)), min(self.height, int(y + half) + 1)
        turn = self.draw.uniform(-0.5, 0.5)
        empty = np.zeros((0, 0), np.float32)
        if x1 - x0 < 2 or y1 - y0 < 2:
            return None, empty, (empty, empty)
        dx = np.arange(x0, x1, dtype=np.float32) - np.float32(x)
        dy = (np.arange(y0, y1, dtype=np.float32) - np.float32(y))[:, None]
        cos, sin = np.float32(np.cos(turn)), np.float32(np.sin(turn))
        across, along = dx * cos + dy * sin, dy * cos - dx * sin
        inside = _distance(shape, across, along, np.float32(reach))
        cover = np.clip(inside + np.float32(0.5), 0, 1)
        return (slice(y0, y1), slice(x0, x1)), cover, (across, along)

    def _paint(self, box: tuple[slice, slice], cover: Plane, shade: Plane, tint: tuple[float, float]) -> None:
        self.y[box] += (shade - self.y[box]) * cover
        self.cb[box] += (np.float32(tint[0]) - self.cb[box]) * (cover * np.float32(0.9))
        self.cr[box] += (np.float32(tint[1]) - self.cr[box]) * (cover * np.float32(0.9))

    def develop(self) -> Pixels:
        """Add the sensor's noise, which grows with the light, and turn the planes into RGB."""
        y = self.y
        grain = np.float32(self.draw.uniform(3.6, 5.0))
        y += self._cut(self.bank.grain) * (grain * (np.float32(0.75) + y * np.float32(0.0025)))
        speck = np.float32(self.draw.uniform(1.2, 2.2))
        self.cb += self._cut(self.bank.speck) * speck
        self.cr += self._cut(self.bank.speck) * speck
        out = np.empty((self.height, self.width, 3), np.uint8)
        # The inverse of JPEG's own colour transform (ITU-R BT.601, full range).
        out[..., 0] = _levels(y + np.float32(1.402) * self.cr)
        out[..., 1] = _levels(y - np.float32(0.344136) * self.cb - np.float32(0.714136) * self.cr)
        out[..., 2] = _levels(y + np.float32(1.772) * self.cb)
        return out


@dataclass(frozen=True, slots=True)
class _Bank:
    """Random fields of mean 0 and variance 1 that pictures take their surfaces and noise from."""

    rough: Plane
    soft: Plane
    grain: Plane
    speck: Plane


@functools.lru_cache(maxsize=4)
def _bank(seed: int) -> _Bank:
    draw = np.random.default_rng(np.random.SeedSequence([seed, 2**32]))
    grain = _field(draw, 0.0)
    speck = _field(draw, 0.8)
    return _Bank(rough=_field(draw, 1.15), soft=_field(draw, 1.9), grain=grain, speck=speck)


def _field(draw: np.random.Generator, slope: float) -> Plane:
    """Draw a random field whose amplitude falls with frequency as f ** -slope."""
    spectrum = np.fft.rfft2(draw.standard_normal((_BANK, _BANK)))
    fy, fx = np.fft.fftfreq(_BANK)[:, None], np.fft.rfftfreq(_BANK)[None, :]
    # Nothing is coarser than a quarter of the field: a cut would otherwise be one flat slope.
    frequency = np.maximum(np.hypot(fy, fx), 4 / _BANK)
    field = np.fft.irfft2(spectrum * frequency**-slope, s=(_BANK, _BANK))
    field -= field.mean()
    field /= field.std()
    return field.astype(np.float32)


def _looks(label: int) -> tuple[str, str, int]:
    """Give shape, surface and how often the pairs have been gone through, for a label."""
    turn, pair = divmod(label, len(_SHAPES) * len(_SURFACES))
    shape = pair % len(_SHAPES)
    return _SHAPES[shape], _SURFACES[(pair + pair // len(_SHAPES)) % len(_SURFACES)], turn


def _distance(shape: str, across: Plane, along: Plane, reach: np.float32) -> Plane:
    """Say how far, in pixels and roughly, each point is inside the shape (negative outside)."""
    a, b = np.abs(across), np.abs(along)
    if shape == "disc":
        return reach * np.float32(0.95) - np.hypot(across, along)
    if shape == "square":
        return reach * np.float32(0.82) - np.maximum(a, b)
    if shape == "triangle":
        return reach * np.float32(0.5) - np.maximum(a * np.float32(0.866) - along * np.float32(0.5), along)
    if shape == "ring":
        return reach * np.float32(0.24) - np.abs(np.hypot(across, along) - reach * np.float32(0.72))
    if shape == "cross":
        thin, long = reach * np.float32(0.3), reach * np.float32(0.98)
        return np.maximum(np.minimum(thin - a, long - b), np.minimum(thin - b, long - a))
    if shape == "star":
        angle = np.arctan2(across, along)
        star: Plane = reach * (np.float32(0.7) + np.float32(0.28) * np.cos(5 * angle)) - np.hypot(
            across, along
        )
        return star
    if shape == "diamond":
        return reach - (a + b * np.float32(0.75))
    pill: Plane = reach * np.float32(0.42) - np.hypot(across, np.maximum(b - reach * np.float32(0.55), 0))
    return pill


def _surface(kind: str, u: Plane, v: Plane) -> Plane:
    """Draw a pattern from 0 to 1 with steep sides."""
    if kind == "striped":
        wave = np.sin(u)
    elif kind == "dotted":
        wave = np.cos(u) + np.cos(v) - np.float32(0.9)
    else:
        wave = np.sin(u * np.float32(0.8)) * np.sin(v * np.float32(0.8)) * 2
    pattern: Plane = np.clip(wave * np.float32(2.5) + np.float32(0.5), 0, 1)
    return pattern


def _chroma(hue: float, strength: float) -> tuple[float, float]:
    angle = 2 * np.pi * hue
    return float(np.cos(angle) * strength), float(np.sin(angle) * strength)


def _ramp(length: int, span: float) -> Plane:
    return np.linspace(-span / 2, span / 2, length, dtype=np.float32)


def _levels(plane: Plane) -> Pixels:
    return np.clip(plane, 0, 255, out=plane).astype(np.uint8)


def _encode(pixels: Pixels, format: str, quality: int) -> bytes:
    try:
        from PIL import Image
    except ImportError:
        raise ImportError(
            "penstock's made-up pictures are encoded by Pillow, which is not installed: pip install pillow"
        ) from None
    out = io.BytesIO()
    if format == "PNG":
        Image.fromarray(pixels).save(out, "PNG")
    else:
        Image.fromarray(pixels).save(out, format, quality=quality)
    return out.getvalue()


def _write(path: Path, data: bytes) -> None:
    """Write so that the file is either whole or not there."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    part.replace(path)
