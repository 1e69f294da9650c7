"""Resampled pixels are Pillow's within a level: on noise of black and white, where every weight shows."""

from __future__ import annotations

import io
from typing import Any, Literal

import numpy as np
import pytest
from PIL import Image

from penstock import _native
from penstock.formats import Format
from penstock.transform import Resize, compile_program

Interpolation = Literal["bilinear", "bicubic"]
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def resized(picture: Image.Image, size: tuple[int, int], interpolation: Interpolation) -> Any:
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1)
    program = compile_program([Resize(size, interpolation=interpolation)], mode="unchanged", layout="NHWC")
    return np.asarray(_native.decode(file.getvalue(), int(Format.PNG), ("image", "image", None), program))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_size_to_any_other(channels: int, interpolation: Interpolation) -> None:
    rng = np.random.default_rng([5, channels])
    worst: dict[str, int] = {}
    for turn in range(150):
        # Small ones for the odd cases, larger ones for the vector code.
        width, height, out_width, out_height = (int(side) for side in rng.integers(1, (24, 160)[turn % 2], 4))
        noise = (rng.random((height, width, channels)) < 0.5).astype(np.uint8) * 255
        picture = Image.fromarray(noise[..., 0] if channels == 1 else noise)
        theirs = np.asarray(picture.resize((out_width, out_height), FILTERS[interpolation]), np.int16)
        ours = resized(picture, (out_height, out_width), interpolation).reshape(theirs.shape)
        apart = int(np.abs(ours.astype(np.int16) - theirs).max())
        if apart > 1:
            worst[f"{width}x{height} to {out_width}x{out_height}"] = apart
    assert not worst
