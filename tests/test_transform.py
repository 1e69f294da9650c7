"""The native operations: what they check, and what they tell the engine."""

from __future__ import annotations

import dataclasses
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.transform import (
    CenterCrop,
    ColorJitter,
    Flip,
    Grayscale,
    Normalize,
    Operation,
    Orient,
    Pad,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    ToDType,
    compile_program,
    is_operation,
)

EVERY_OPERATION: list[Operation] = [
    Orient(),
    Resize(256),
    Resize((200, 300), interpolation="bicubic"),
    RandomResizedCrop(224),
    CenterCrop((20, 30)),
    RandomCrop(32, padding=4, fill=128, mask_fill=255),
    Pad((1, 2)),
    Flip(axis="vertical"),
    ColorJitter(brightness=0.4, contrast=(0.5, 1.5), saturation=2, hue=0.1),
    Grayscale(p=0.1),
    Normalize(),
    ToDType("bfloat16"),
    ToDType("int64", kind="mask"),
    ToDType("float32", kind="array"),
]


def test_operations_are_frozen_comparable_and_picklable() -> None:
    for operation in EVERY_OPERATION:
        assert pickle.loads(pickle.dumps(operation)) == operation
        for field in dataclasses.fields(operation):  # type: ignore[arg-type]
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(operation, field.name, None)


def test_a_program_holds_every_operation_in_order() -> None:
    program = json.loads(compile_program(EVERY_OPERATION, mode="grey", layout="NHWC"))
    assert program["version"] == 1
    assert (program["mode"], program["layout"]) == ("grey", "NHWC")
    assert [op["op"] for op in program["ops"]] == [
        operation.describe()["op"] for operation in EVERY_OPERATION
    ]


def test_short_forms_become_the_long_ones() -> None:
    assert RandomResizedCrop(224).size == (224, 224)
    assert RandomCrop(8, padding=3).padding == (3, 3, 3, 3)
    assert Pad((1, 2)).padding == (1, 2, 1, 2)
    jitter = ColorJitter(brightness=1.5, hue=0.25)
    assert (jitter.brightness, jitter.contrast, jitter.hue) == ((0.0, 2.5), (1.0, 1.0), (-0.25, 0.25))
    assert Normalize(0.5, 0.25).mean == (0.5,)


def test_the_loaders_dtype_is_a_last_cast() -> None:
    ops = json.loads(compile_program([Normalize()], dtype="float16"))["ops"]
    assert ops[-1] == {"op": "to_dtype", "dtype": "float16", "scale": True, "kind": "image"}


@pytest.mark.parametrize(
    "make",
    [
        lambda: Resize(0),
        lambda: Resize((1, 2, 3)),  # type: ignore[arg-type]
        lambda: Resize(True),
        lambda: Resize(8, interpolation="lanczos"),  # type: ignore[arg-type]
        lambda: RandomResizedCrop(8, scale=(0.5, 0.1)),
        lambda: RandomResizedCrop(8, ratio=(0.0, 1.0)),
        lambda: CenterCrop(1 << 25),
        lambda: RandomCrop(8, padding=-1),
        lambda: Pad((1, 2, 3)),  # type: ignore[arg-type]
        lambda: Pad(1, fill=float("nan")),
        lambda: Pad(1, mask_fill=0.5),  # type: ignore[arg-type]
        lambda: Flip(1.5),
        lambda: Flip(axis="diagonal"),  # type: ignore[arg-type]
        lambda: ColorJitter(brightness=-1),
        lambda: ColorJitter(hue=0.6),
        lambda: Grayscale(float("nan")),
        lambda: Normalize(mean=(1, 2), std=(1,)),
        lambda: Normalize(std=0),
        lambda: ToDType("object"),
        lambda: ToDType("uint8", kind="scalar"),  # type: ignore[arg-type]
    ],
)
def test_parameters_out_of_bounds_are_refused_where_they_are_written(make: object) -> None:
    with pytest.raises(ValueError, match=r"must be|means"):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        ([Normalize(), Flip()], "Flip after Normalize"),
        ([Normalize(), Normalize()], "second Normalize"),
        ([ToDType("uint8"), Normalize()], "needs a float"),
        ([Normalize(), ToDType("uint8")], "lose the fractions"),
        ([ToDType("float32"), ToDType("float16")], "second ToDType"),
        ([Flip(), Orient()], "comes first"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(transform: list[Operation], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compile_program(transform)


def test_what_is_no_operation_is_named() -> None:
    with pytest.raises(TypeError, match=r"transform\[1\] is a function"):
        compile_program([Flip(), lambda image: image])  # type: ignore[list-item]
    assert is_operation(Flip())
    assert not is_operation(Flip)


@given(
    size=st.tuples(st.integers(1, 5000), st.integers(1, 5000)),
    scale=st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 1.0)),
    p=st.floats(0, 1),
)
def test_json_keeps_every_number_exactly(size: tuple[int, int], scale: tuple[float, float], p: float) -> None:
    scale = (min(scale), max(scale))
    crop, flip = json.loads(compile_program([RandomResizedCrop(size, scale=scale), Flip(p)]))["ops"]
    assert tuple(crop["size"]) == size
    assert tuple(crop["scale"]) == scale
    assert flip["p"] == p
