"""The kernels against the Rust decoder, sample for sample, in an emulated warp."""

from __future__ import annotations

import numpy as np
import pytest
from tests.psi_gpu.emulation import POISON, run

from penstock import psi
from penstock.psi.axes import shape_in
from penstock.psi.gpu.plan import Box, fill, joined, plan

GENERATOR = np.random.default_rng(20)


def photo(height: int, width: int, channels: int, dtype: str = "uint8") -> np.ndarray:
    """Something smooth with noise, as a photograph is to a codec."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (7 + c)) + np.cos(y / (11 - c)) + np.sin((x + y) / 23) for c in range(channels)]
    values = np.stack(waves, -1) / 6 + 0.5 + GENERATOR.normal(0, 0.01, (height, width, channels))
    if np.dtype(dtype).kind == "f":
        return values.astype(dtype)
    info = np.iinfo(dtype)
    return np.clip(info.min + values * (info.max - info.min), info.min, info.max).astype(dtype)


def whole(file: bytes, **changes) -> Box:
    info = psi.info(file)
    values = {
        "x": 0, "y": 0, "z": 0, "width": info.width, "height": info.height, "depth": info.depth,
        "channels": info.channels,
    }  # fmt: skip
    return Box(**{**values, **changes})


def decoded(files, boxes, layout, kind="bits", scale=(), bias=(), *, verify=True):
    """Each file's box as the kernels decode it, and the statuses; what surrounds the samples must stay as it was."""
    dtype = {"float16": np.float16, "bfloat16": np.uint16, "float32": np.float32}.get(kind) or psi.info(
        files[0]
    ).dtype
    shapes = [shape_in(layout, (b.depth, b.height, b.width), b.channels) for b in boxes]
    counts = [int(np.prod(shape)) for shape in shapes]
    starts = np.cumsum([16] + [-(-count // 16) * 16 + 16 for count in counts])
    offsets, lengths, total = joined(files)
    blob = np.zeros(total, np.uint8)
    fill(blob, files, offsets)
    made = plan(blob, offsets, lengths, boxes, starts[:-1].tolist(), layout, kind, np.dtype(dtype).itemsize)
    space = np.full((int(starts[-1]) + 16) * np.dtype(dtype).itemsize + 64, POISON, np.uint8)
    shift = -space.ctypes.data % 64
    out = space[shift : shift + (int(starts[-1]) + 16) * np.dtype(dtype).itemsize].view(dtype)
    status = run(made, blob, out, len(files), scale, bias, verify=verify)
    results = []
    for start, count, shape in zip(starts, counts, shapes, strict=False):
        results.append(out[start : start + count].reshape(shape).copy())
        out[start : start + count] = np.full(1, POISON, np.uint8).repeat(out.itemsize).view(dtype)[0]
    assert (out.view(np.uint8) == POISON).all(), "the kernels stored outside of the boxes"
    return results, status


@pytest.mark.parametrize("level", ["fast", "dense", "max"])
@pytest.mark.parametrize(("height", "width"), [(8, 128), (131, 200), (1, 1), (9, 7)])
def test_pictures_of_three_channels_are_those_of_the_rust_decoder(level, height, width):
    pictures = [photo(height, width, 3), GENERATOR.integers(0, 256, (height, width, 3), np.uint8)]
    files = [psi.encode(picture, level=level) for picture in pictures]
    results, status = decoded(files, [whole(file) for file in files], "CHW")
    assert status.tolist() == [0, 0]
    for result, picture in zip(results, pictures, strict=True):
        np.testing.assert_array_equal(result, picture.transpose(2, 0, 1))


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "uint16", "int16", "float16", "float32", "uint32", "int32"]
)
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6])
def test_every_type_and_number_of_channels(dtype, channels):
    picture = photo(21, 150, channels, dtype)
    files = [psi.encode(picture, level="dense"), psi.encode(picture, level="fast")]
    results, status = decoded(files, [whole(file) for file in files], "HWC")
    assert status.tolist() == [0, 0]
    for result in results:
        np.testing.assert_array_equal(result.view(np.uint8), picture.view(np.uint8))
