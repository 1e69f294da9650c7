"""docs/psi.md is enough to write a decoder: one that was written from it reads what the codec writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.psi.reference import TYPES, Reader

from penstock import psi


def picture(kind: str, dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    high = {"uint8": 255, "int8": 127}.get(dtype, 4000)
    if kind == "noise":
        size = np.dtype(dtype).itemsize
        noise: np.ndarray[Any, Any] = rng.integers(0, 256, (*shape[:-1], shape[-1] * size), np.uint8).view(
            dtype
        )
        return noise
    if kind == "labels":
        return (rng.integers(0, 5, shape) * (high // 8)).astype(dtype)
    y, x = np.meshgrid(np.arange(shape[0]), np.arange(shape[1]), indexing="ij")
    smooth = (
        high / 2 + high / 3 * np.sin(x / 9) * np.cos(y / 7) + rng.normal(0, high / 60, (shape[0], shape[1]))
    )
    stacked = np.stack(
        [smooth * (1 - 0.1 * c) + rng.normal(0, high / 90, smooth.shape) for c in range(shape[2])], -1
    )
    if kind == "decimal":
        stacked = np.round(stacked - high / 2) / 100
    if kind == "single":
        stacked[:] = 7
    return stacked.astype(dtype)


def bits(array: np.ndarray[Any, Any]) -> bytes:
    return np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("level", ["fast", "dense", "max"])
def test_a_decoder_written_from_the_page_reads_every_type_and_level(dtype: str, level: Any) -> None:
    for number, (kind, shape) in enumerate(
        [("smooth", (21, 137, 3)), ("smooth", (130, 19, 1)), ("noise", (9, 14, 2)), ("labels", (17, 23, 3))]
    ):
        array = picture(kind, dtype, shape, number)
        file = bytes(psi.encode(array, level=level))
        found = Reader(file).decode()
        assert found.dtype == array.dtype
        assert bits(found) == bits(array), (kind, shape)


def test_it_reads_palettes_decimals_constants_alpha_and_many_channels() -> None:
    for kind, dtype, shape in [
        ("decimal", "float32", (40, 50, 1)),
        ("single", "uint16", (30, 140, 3)),
        ("smooth", "uint8", (64, 60, 4)),
        ("smooth", "uint16", (33, 30, 6)),
    ]:
        array = picture(kind, dtype, shape, 3)
        file = bytes(psi.encode(array, level="dense"))
        assert bits(Reader(file).decode()) == bits(array), (kind, dtype, shape)
    assert Reader(bytes(psi.encode(picture("decimal", "float32", (40, 50, 1), 3)))).decimal == 3
    assert Reader(bytes(psi.encode(picture("labels", "uint8", (64, 60, 3), 3)))).entries > 0


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32"])
def test_it_reads_tiles_of_runs(dtype: str) -> None:
    y, x = np.mgrid[0:150, 0:300]
    labels = ((x + y // 3) // 37 + (y + (9 * np.sin(x / 11)).astype(int)) // 29) % 6 * 20
    labels[30:60, 40:43] = 101
    labels[90, 10:200] = 3
    for array in (labels.astype(dtype), (labels > 50).astype(dtype)):
        reader = Reader(bytes(psi.encode(array, level="dense")))
        assert any(body[0] == 4 for body in reader.bodies), "there are tiles of runs"
        assert bits(reader.decode()[0, ..., 0]) == bits(array)


def test_it_reads_stored_files() -> None:
    array = np.random.default_rng(1).integers(0, 256, (400, 3, 5), np.uint8)
    reader = Reader(bytes(psi.encode(array, layout="DHW")))
    assert reader.stored
    assert bits(reader.decode()) == bits(array)
