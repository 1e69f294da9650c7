"""psi.encode and psi.decode: every array comes back bit for bit, however it lies in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock import psi
from penstock.errors import ChecksumError, DecodeError, TruncatedError

TYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "float32"]


def bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def same(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and np.array_equal(bits(left), bits(right))


def texture(shape: tuple[int, ...], dtype: str = "uint8", seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    walk = rng.integers(-3, 4, shape).cumsum(axis=-1) + np.arange(shape[0]).reshape(
        -1, *[1] * (len(shape) - 1)
    )
    return walk.astype(dtype)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], str]:
    """An array of any type with any bits, seen through steps, reversed axes and another order of axes."""
    layout = draw(st.sampled_from(["HW", "WH", "HWC", "CHW", "HCW", "DHW", "DHWC", "CDHW", "DCHW"]))
    sides = [draw(st.integers(1, 6 if axis in "CD" else 150)) for axis in layout]
    dtype = draw(st.sampled_from(TYPES))
    kind = draw(st.sampled_from(["any", "few", "smooth", "constant"]))
    steps = [draw(st.sampled_from([1, 1, 2, -1, -3])) for _ in sides]
    stored = tuple(side * abs(step) for side, step in zip(sides, steps, strict=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if kind == "any":  # any bits: NaN payloads, signed zeros, denormals
        array = rng.integers(0, 256, (*stored[:-1], stored[-1] * np.dtype(dtype).itemsize), np.uint8).view(
            dtype
        )
    elif kind == "few":
        array = draw(hnp.arrays(dtype, 5))[rng.integers(0, 5, stored)]
    elif kind == "smooth":
        array = rng.integers(-2, 3, stored).cumsum(axis=-1).astype(dtype)
    else:
        array = np.full(stored, draw(hnp.from_dtype(np.dtype(dtype))))
    return array[tuple(slice(None, None, step) for step in steps)], layout


@settings(max_examples=150, deadline=None)
@given(arrays(), st.sampled_from(["fast", "dense", "max"]), st.data())
def test_any_array_comes_back_bit_for_bit(
    case: tuple[np.ndarray[Any, Any], str], level: psi.Level, data: st.DataObject
) -> None:
    array, layout = case
    file = psi.encode(array, level, layout=layout)
    assert same(psi.decode(file, layout=layout), array)
    told = psi.info(file)
    assert psi.decode(file).shape == told.shape
    # A region, in the layout of the header, into memory that lies in any order.
    whole = psi.decode(file)
    sides = whole.shape[: 3 if told.volume else 2]
    region = []
    for side in sides:
        start = data.draw(st.integers(0, side - 1))
        region.append(slice(start, data.draw(st.integers(start + 1, side))))
    part = whole[tuple(region)]
    assert same(psi.decode(file, region=tuple(region)), part)
    out = np.zeros(part.shape[::-1], part.dtype).T
    assert psi.decode(file, region=tuple(region), out=out) is out
    assert same(out, part)
    backwards = np.zeros(part.shape, part.dtype)[::-1]
    psi.decode(file, region=tuple(region), out=backwards)
    assert same(backwards, part)


def test_layouts_say_what_the_axes_are() -> None:
    picture = texture((5, 7, 3))
    file = psi.encode(picture.transpose(2, 0, 1), layout="CHW")
    assert psi.info(file).shape == (5, 7, 3)
    assert same(psi.decode(file), picture)
    assert same(psi.decode(file, layout="WCH"), picture.transpose(1, 2, 0))
    volume = psi.encode(picture, layout="DHW")
    assert psi.info(volume).layout == "DHW"
    assert same(psi.decode(volume, region=np.s_[1:3, :, 2:3]), picture[1:3, :, 2:3])
    single = psi.encode(picture[..., :1])
    assert psi.info(single).shape == (5, 7)
    assert psi.decode(single, layout="HWC").shape == (5, 7, 1)
    for wrong in ("HC", "HWX", "HHW", ""):
        with pytest.raises(ValueError, match="layout"):
            psi.encode(picture, layout=wrong)
    with pytest.raises(ValueError, match="3 channels do not fit"):
        psi.decode(file, layout="HW")
    with pytest.raises(ValueError, match="7 slices|5 slices"):
        psi.decode(volume, layout="HWC")
    with pytest.raises(ValueError, match="has not the axes"):
        psi.encode(picture, layout="HW")


def test_types_that_psi_lacks_are_refused_with_what_to_do() -> None:
    for dtype in ("float64", "int64", "complex64", "datetime64[s]"):
        with pytest.raises(ValueError, match="PSI has no"):
            psi.encode(np.zeros((2, 2), dtype))
    with pytest.raises(ValueError, match="nothing to encode"):
        psi.encode(np.zeros((2, 0), np.uint8))
    with pytest.raises(ValueError, match="two or three axes"):
        psi.encode(np.zeros(4, np.uint8))
    with pytest.raises(ValueError, match="level"):
        psi.encode(np.zeros((2, 2), np.uint8), "best")  # type: ignore[arg-type]
    truth = texture((9, 9)) > 3
    assert same(psi.decode(psi.encode(truth)), truth.view(np.uint8))
    big = texture((9, 9), ">u2")
    assert np.array_equal(psi.decode(psi.encode(big)), big)


def test_out_and_dtype_convert_without_scaling() -> None:
    picture = texture((40, 50, 3))
    file = psi.encode(picture)
    assert same(psi.decode(file, dtype="float32"), picture.astype("float32"))
    wide = np.zeros(picture.shape, np.float32)
    assert psi.decode(file, out=wide) is wide
    assert same(wide, picture.astype("float32"))
    with pytest.raises(ValueError, match="out has the shape"):
        psi.decode(file, out=np.zeros((40, 50), np.uint8))
    frozen = np.zeros(picture.shape, np.uint8)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="written"):
        psi.decode(file, out=frozen)
    with pytest.raises(ValueError, match="out is uint8 and dtype float32"):
        psi.decode(file, out=np.zeros(picture.shape, np.uint8), dtype="float32")


@pytest.mark.parametrize(
    "region",
    [np.s_[0:0, :], np.s_[3:2, :], np.s_[0:41, :], np.s_[::2, :], np.s_[:, :, :], (4, 5), np.s_[:, 50:51]],
)
def test_a_region_outside_of_the_image_is_refused(region: Any) -> None:
    with pytest.raises(ValueError, match="region"):
        psi.decode(psi.encode(texture((40, 50, 3))), region=region)


def test_a_region_is_told_in_numpys_words() -> None:
    picture = texture((40, 50, 3))
    file = psi.encode(picture)
    assert same(psi.decode(file, region=np.s_[-10:, 5:-5]), picture[-10:, 5:-5])
    assert same(psi.decode(file, region=(slice(3, 4),)), picture[3:4])


def test_torch_goes_in_and_comes_out() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(3 * 20 * 30, dtype=torch.float32).reshape(3, 20, 30).requires_grad_()
    file = psi.encode(tensor, layout="CHW")
    back = psi.decode(file, layout="CHW", arrays="torch")
    assert torch.equal(back, tensor.detach())
    out = torch.empty(3, 20, 30)
    assert psi.decode(file, layout="CHW", out=out) is out
    assert torch.equal(out, back)
    flipped = psi.encode(tensor.detach().permute(1, 2, 0).flip(0))
    assert np.array_equal(psi.decode(flipped), tensor.detach().permute(1, 2, 0).flip(0).numpy())
    with pytest.raises(ValueError, match=r"view\(torch.int16\)"):
        psi.encode(torch.zeros(2, 2, dtype=torch.bfloat16))


def test_torch_is_not_imported_for_numpy() -> None:
    import subprocess
    import sys

    code = (
        "import sys, numpy as np; from penstock import psi; psi.decode(psi.encode(np.zeros((4, 4), np.uint8)));"
        "sys.exit('torch' in sys.modules or 'PIL' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_batch_is_stacked_where_all_are_alike_and_listed_where_not() -> None:
    pictures = [texture((60, 70, 3), seed=seed) for seed in range(5)]
    files = [psi.encode(picture) for picture in pictures]
    assert same(psi.decode_batch(files), np.stack(pictures))
    chw = psi.decode_batch(files, layout="CHW", dtype="float32", threads=3)
    assert same(chw, np.stack(pictures).transpose(0, 3, 1, 2).astype("float32"))
    regions = [np.s_[i : i + 10, :] for i in range(5)]
    cut = psi.decode_batch(files, regions=regions)
    assert same(cut, np.stack([picture[i : i + 10] for i, picture in enumerate(pictures)]))
    mixed = psi.decode_batch([*files, psi.encode(texture((5, 6)))])
    assert [array.shape for array in mixed] == [(60, 70, 3)] * 5 + [(5, 6)]
    assert psi.decode_batch([]) == []
    with pytest.raises(ValueError, match="4 regions for 5 files"):
        psi.decode_batch(files, regions=regions[:4])
    with pytest.raises(ValueError, match="device"):
        psi.decode_batch(files, device="tpu")


def test_metadata_come_back_and_unknown_chunks_are_kept() -> None:
    given = {
        "icc": b"profile",
        "exif": b"II*\0",
        "json": {"patient": [1, "ä"]},
        "Mine": b"",
        "palette": bytes(8),
    }
    file = psi.encode(np.zeros((2, 2), np.uint8), metadata=given)
    assert psi.metadata(file) == given
    assert psi.metadata(psi.encode(np.zeros((2, 2), np.uint8))) == {}
    with pytest.raises(ValueError, match="names no metadata"):
        psi.encode(np.zeros((2, 2), np.uint8), metadata={"comment": b""})
    with pytest.raises(TypeError, match="bytes"):
        psi.encode(np.zeros((2, 2), np.uint8), metadata={"icc": "text"})


class TestBadFiles:
    def test_each_kind_of_damage_is_the_error_of_that_kind(self) -> None:
        file = psi.encode(texture((200, 300, 3)))
        with pytest.raises(TruncatedError, match="ends after 0 of"):
            psi.decode(b"")
        with pytest.raises(TruncatedError, match="ends after"):
            psi.decode(file[:-1])
        with pytest.raises(DecodeError, match="does not start with"):
            psi.decode(b"\x89PNG" + file[4:])
        broken = bytearray(file)
        broken[-100] ^= 1
        with pytest.raises(ChecksumError, match="tile"):
            psi.decode(broken)
        broken = bytearray(file)
        broken[9] ^= 1
        with pytest.raises((ChecksumError, DecodeError)):
            psi.info(broken)

    def test_the_bad_file_of_a_batch_is_named(self) -> None:
        file = psi.encode(texture((200, 300, 3)))
        broken = bytearray(file)
        broken[-100] ^= 1
        with pytest.raises(ChecksumError, match="file 2 of 4"):
            psi.decode_batch([file, file, broken, broken], threads=4)
        with pytest.raises(TruncatedError, match="file 1 of 2"):
            psi.decode_batch([file, file[:20]])

    def test_a_region_does_not_touch_the_tiles_outside(self) -> None:
        picture = texture((300, 300))
        broken = bytearray(psi.encode(picture))
        broken[-100] ^= 1  # in the last tile
        assert same(psi.decode(broken, region=np.s_[:128, :128]), picture[:128, :128])
        with pytest.raises(ChecksumError):
            psi.decode(broken, region=np.s_[:, 290:])

    def test_a_header_that_promises_too_much_allocates_nothing(self) -> None:
        file = psi.encode(np.zeros((4096, 4096), np.uint8))
        with pytest.raises(DecodeError, match="max_bytes"):
            psi.decode(file, max_bytes=1 << 20)
        assert psi.decode(file, region=np.s_[:10, :10], max_bytes=1 << 20).shape == (10, 10)

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def test_no_mutation_gives_anything_but_an_error_or_the_image(self, data: st.DataObject) -> None:
        picture = texture((40, 150, 2), "uint16")
        file = bytearray(psi.encode(picture, data.draw(st.sampled_from(["fast", "dense"]))))
        for _ in range(data.draw(st.integers(1, 4))):
            file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
        try:
            found = psi.decode(file, max_bytes=1 << 26)
        except (DecodeError, TruncatedError, ChecksumError):
            return
        assert same(found, picture)
