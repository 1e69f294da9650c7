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


def decoded(files, boxes, layout, kind="bits", scale=(), bias=(), *, verify=True, cut=False):
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
    if cut:  # as a slab has them: nothing behind the last file
        blob = blob[: int(offsets[-1] + lengths[-1])]
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


def test_the_last_file_may_end_anywhere():
    for seed in range(4):
        picture = GENERATOR.normal(128, 3 + seed, (40, 130 + seed, 3)).astype(np.uint8)
        files = [psi.encode(picture, level=level) for level in ("dense", "fast")]
        for some in (files, files[::-1]):
            results, status = decoded(some, [whole(file) for file in some], "CHW", cut=True)
            assert status.tolist() == [0, 0]
            for result in results:
                np.testing.assert_array_equal(result, picture.transpose(2, 0, 1))


@pytest.mark.parametrize("flip_x", [False, True])
@pytest.mark.parametrize("flip_y", [False, True])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_regions_and_mirror_images(layout, flip_x, flip_y):
    picture = photo(140, 300, 3)
    file = psi.encode(picture, level="dense")
    boxes = [
        (0, 0, 300, 140),
        (1, 3, 128, 130),
        (127, 100, 2, 2),
        (130, 0, 170, 9),
        (255, 139, 45, 1),
        (6, 7, 201, 24),
    ]
    wanted = [whole(file, x=x, y=y, width=w, height=h, flip_x=flip_x, flip_y=flip_y) for x, y, w, h in boxes]
    results, status = decoded([file] * len(boxes), wanted, layout)
    assert not status.any()
    for result, (x, y, w, h) in zip(results, boxes, strict=True):
        part = picture[y : y + h, x : x + w][:: -1 if flip_y else 1, :: -1 if flip_x else 1]
        np.testing.assert_array_equal(result, part.transpose(2, 0, 1) if layout == "CHW" else part)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_numbers_are_those_of_float32_rounded_once_more(kind):
    picture = photo(33, 140, 3)
    scale, bias = (1 / 58, 1 / 57, 1 / 60), (-2.1, -2.0, -1.8)
    files = [psi.encode(picture), psi.encode(picture.astype(np.uint16) * 200)]
    for file, values in zip(files, (picture, picture.astype(np.uint16) * 200), strict=True):
        box = whole(file, x=2, width=131, flip_x=True)
        (result,), _ = decoded([file], [box], "CHW", kind, scale, bias)
        exact = values[:, 2:133][:, ::-1].transpose(2, 0, 1).astype(np.float32)
        exact = exact * np.float32(scale)[:, None, None] + np.float32(bias)[:, None, None]
        if kind == "bfloat16":
            bits = exact.view(np.uint32)
            exact = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        np.testing.assert_array_equal(result, exact.astype(result.dtype))


def test_palettes_and_label_maps():
    colours = GENERATOR.integers(0, 256, (9, 3), np.uint8)
    picture = colours[GENERATOR.integers(0, 9, (50, 140)) // 3]
    labels = GENERATOR.integers(0, 4, (50, 140), np.uint8).repeat(2, 0)
    for array, layout in ((picture, "HWC"), (labels, "HW")):
        files = [psi.encode(array, level=level) for level in ("fast", "dense", "max")]
        results, status = decoded(files, [whole(file) for file in files], layout)
        assert not status.any()
        for result in results:
            np.testing.assert_array_equal(result, array)


def label_map(height: int, width: int, labels: int, dtype: str) -> np.ndarray:
    """Regions with slanted and curved edges, thin poles, and small boxes."""
    y, x = np.mgrid[0:height, 0:width]
    made = ((x + y // 3) // 37 + (y + (9 * np.sin(x / 11)).astype(int)) // 29 * 7) % labels
    for number in range(12):
        left, top = GENERATOR.integers(0, width), GENERATOR.integers(0, height)
        made[top : top + 3 + number, left : left + 1 + number % 5] = GENERATOR.integers(0, labels)
    values = GENERATOR.choice(np.iinfo(dtype).max, labels, replace=labels > np.iinfo(dtype).max)
    return values.astype(dtype)[made]


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "uint32"])
@pytest.mark.parametrize(("height", "width"), [(140, 260), (20, 128), (33, 7)])
def test_tiles_of_runs(dtype, height, width):
    pictures = [label_map(height, width, labels, dtype) for labels in (2, 9, 200)]
    files = [psi.encode(picture, level=level) for picture in pictures for level in ("fast", "dense", "max")]
    results, status = decoded(files, [whole(file) for file in files], "HW")
    assert not status.any()
    for number, result in enumerate(results):
        np.testing.assert_array_equal(result, pictures[number // 3])
    if height > 128:
        assert len(files[1]) < 4000, "they are runs, not residuals"
        box = {"x": 100, "y": 90, "width": 61, "height": 45, "flip_x": True}
        results, status = decoded(files, [whole(file, **box) for file in files], "HW")
        assert not status.any()
        for number, result in enumerate(results):
            np.testing.assert_array_equal(result, pictures[number // 3][90:135, 100:161][:, ::-1])


def test_damage_in_tiles_of_runs():
    good = np.frombuffer(psi.encode(label_map(140, 260, 9, "uint16")), np.uint8)
    refused = 0
    for number in range(60):
        file = good.copy()
        for at in GENERATOR.integers(len(file) // 4, len(file), 1 + number % 3):
            file[at] ^= 1 << GENERATOR.integers(8)
        for verify in (True, False):
            _, status = decoded([file.tobytes()], [whole(good.tobytes())], "HW", verify=verify)
            refused += int(status[0] != 0)
            assert status[0] in (1, 2, 4) or not verify
    assert refused > 60


def test_damage_is_a_status_and_never_an_access_that_is_not_allowed():
    picture = photo(70, 150, 3)
    refused = 0
    for level in ("fast", "dense"):
        good = np.frombuffer(psi.encode(picture, level=level), np.uint8)
        payload = len(good) // 4
        for number in range(24):
            file = good.copy()
            for at in GENERATOR.integers(payload, len(file), 1 + number % 3):
                file[at] ^= 1 << GENERATOR.integers(8)
            for verify in (True, False):  # run() fails where the kernels read or store what they must not
                _, status = decoded([file.tobytes()], [whole(good.tobytes())], "CHW", verify=verify)
                refused += int(status[0] != 0)
                assert status[0] in (1, 4) or not verify
    assert refused > 48


def test_decimal_floats():
    whole_numbers = GENERATOR.normal(0, 4000, (40, 140, 2)).round()
    picture = (whole_numbers.astype(np.float32) / np.float32(100)).astype(np.float32)
    picture[3, 5:9] = -0.0
    files = [psi.encode(picture, level=level) for level in ("fast", "dense")]
    assert len(files[0]) < picture.nbytes / 1.6, "it is found to be decimal"
    results, status = decoded(files, [whole(file) for file in files], "HWC")
    assert not status.any()
    for result in results:
        np.testing.assert_array_equal(result.view(np.uint32), picture.view(np.uint32))
