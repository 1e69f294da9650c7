"""What the device's side of a Loader decides and computes, as far as that needs no GPU."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from penstock.psi.encoded import RECORD, SAMPLE_TYPES, Encoded, Finish  # noqa: E402
from penstock.psi.gpu import loading  # noqa: E402
from penstock.psi.reference import weights  # noqa: E402


@pytest.mark.parametrize("kind", [2, 3])
@pytest.mark.parametrize(("inputs", "outputs"), [(500, 224), (97, 224), (224, 224), (33, 7), (5, 64)])
def test_filters_are_those_of_the_reference(kind, inputs, outputs):
    for mirrored in (0, 1):
        placed = torch.tensor([[float(inputs)], [float(outputs)], [0.0], [float(mirrored)]])
        made = loading._filters(placed, inputs + 8, outputs, kind)[0]
        wanted = weights(inputs, outputs, kind)
        wanted = wanted.flip(0) if mirrored else wanted
        assert made.shape == (outputs, inputs + 8)
        assert (made[:, inputs:] == 0).all()
        assert float((made[:, :inputs].double() - wanted).abs().max()) < 1e-3
        levels = torch.randint(0, 256, (inputs,)).double()
        # What rounding of the weights adds up to.
        assert float(((made[:, :inputs].double() - wanted) @ levels).abs().max()) < 0.5


@pytest.mark.parametrize("kind", [2, 3])
def test_a_window_of_the_resized_picture_is_those_rows_of_the_filter(kind):
    placed = torch.tensor([[300.0], [100.0], [20.0], [0.0]])
    made = loading._filters(placed, 304, 50, kind)[0, :, :300].double()
    assert float((made - weights(300, 100, kind)[20:70]).abs().max()) < 1e-3


def encoded(finish: Finish, **changes: int) -> Encoded:
    records = np.zeros(2, RECORD)
    values = {
        "version": 1, "width": 64, "height": 48, "channels": 3, "sample_type": 0, "x": 1, "y": 2, "w": 32, "h": 24,
        "resized_w": 32, "resized_h": 24, "window_w": 32, "window_h": 24, "out_w": 32, "out_h": 24,
    }  # fmt: skip
    for name, value in {**values, **changes}.items():
        records[name] = value
    none = np.zeros(2, np.int64)
    return Encoded(
        np.zeros(0, np.uint8), none, none, records, finish, none.astype(np.uint64), lambda *_: ValueError()
    )


def finish(**changes) -> Finish:
    values = {"mode": "rgb", "dtype": None, "scale": False, "mean": None, "std": None, "layout": None}
    return Finish(**{**values, **changes})


def test_what_the_kernels_store_by_themselves():
    normalised = finish(dtype="float16", scale=True, mean=(0.5,), std=(0.5,))
    assert loading._is_stored(encoded(finish()))
    assert loading._is_stored(encoded(normalised))
    assert loading._is_stored(encoded(finish(mode="unchanged"), sample_type=SAMPLE_TYPES.index("uint16")))
    assert not loading._is_stored(encoded(normalised, interpolation=2, resized_w=16))
    assert not loading._is_stored(encoded(normalised, channels=1)), "grey has to become rgb first"
    assert not loading._is_stored(encoded(normalised, out_w=40)), "there is something to fill"
    assert not loading._is_stored(encoded(finish(dtype="int32")))
    assert not loading._is_stored(encoded(finish(), sample_type=SAMPLE_TYPES.index("uint16"))), (
        "rgb is 8 bits deep"
    )


def test_what_is_resampled_by_products():
    wanted = finish(dtype="float32", scale=True)
    assert loading._is_resampled(encoded(wanted, interpolation=2, resized_w=64))
    assert not loading._is_resampled(encoded(wanted))
    assert not loading._is_resampled(encoded(wanted, interpolation=1)), "nearest is no filter"
    assert not loading._is_resampled(encoded(finish(mode="unchanged"), interpolation=2, channels=4)), (
        "alpha comes first"
    )
    assert not loading._is_resampled(encoded(wanted, interpolation=2, out_w=50)), "there is something to fill"


def test_a_box_that_is_mirrored_upside_down_starts_at_its_last_row():
    coded = encoded(finish(), flip_y=1, flip_x=1)
    rows = loading._requests(coded, np.array([0, 10_000]), (96, 3, 1), mirrored=True)
    assert rows[:, 9].tolist() == [1, 1]
    assert rows[:, 10].tolist() == [23 * 96, 10_000 + 23 * 96]
    assert rows[:, 12].tolist() == [-96, -96]
