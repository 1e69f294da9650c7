"""What the device's side of a Loader decides and computes, as far as that needs no GPU."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from penstock import psi  # noqa: E402
from penstock.psi.encoded import RECORD, SAMPLE_TYPES, Encoded, Finish  # noqa: E402
from penstock.psi.gpu import loading  # noqa: E402
from penstock.psi.gpu.loading import Way, ways_of  # noqa: E402
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
        assert float((made[:, :inputs].double() - wanted).abs().max()) < 1e-4
        levels = torch.randint(0, 256, (inputs,)).double()
        # What rounding of the weights adds up to.
        assert float(((made[:, :inputs].double() - wanted) @ levels).abs().max()) < 0.02


@pytest.mark.parametrize("kind", [2, 3])
def test_a_window_of_the_resized_picture_is_those_rows_of_the_filter(kind):
    placed = torch.tensor([[300.0], [100.0], [20.0], [0.0]])
    made = loading._filters(placed, 304, 50, kind)[0, :, :300].double()
    assert float((made - weights(300, 100, kind)[20:70]).abs().max()) < 1e-4


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


def ways(finish: Finish, **changes) -> list[str]:
    """The way of each of two pictures; a pair of values says that they differ."""
    coded = encoded(
        finish, **{name: value for name, value in changes.items() if not isinstance(value, tuple)}
    )
    for name, pair in changes.items():
        if isinstance(pair, tuple):
            coded.records[name] = pair
    return [Way(way % len(Way)).name.lower() for way in ways_of(coded).tolist()]


def test_what_the_kernels_store_by_themselves():
    normalised = finish(dtype="float16", scale=True, mean=(0.5,), std=(0.5,))
    stored, followed = ["stored"] * 2, ["followed"] * 2
    assert ways(finish()) == stored
    assert ways(normalised) == stored
    assert ways(finish(mode="unchanged"), sample_type=SAMPLE_TYPES.index("uint16")) == stored
    assert ways(normalised, out_w=40) == followed, "there is something to fill"
    assert ways(finish(dtype="int32")) == followed
    assert ways(finish(), sample_type=SAMPLE_TYPES.index("uint16")) == followed, "rgb is 8 bits deep"


def test_what_is_resampled_by_products():
    wanted = finish(dtype="float32", scale=True)
    assert ways(wanted, interpolation=2, resized_w=64) == ["resampled"] * 2
    assert ways(wanted) == ["stored"] * 2
    assert ways(wanted, interpolation=1) == ["followed"] * 2, "nearest is no filter"
    assert ways(finish(mode="unchanged"), interpolation=2, channels=4) == ["followed"] * 2, (
        "alpha comes first"
    )
    assert ways(wanted, interpolation=2, out_w=50) == ["followed"] * 2, "there is something to fill"


def test_one_picture_does_not_slow_the_others_of_its_batch_down():
    wanted = finish(dtype="float32", scale=True)
    both = ways_of(encoded(wanted, interpolation=2, resized_w=64))
    assert ways(wanted, interpolation=(2, 0)) == ["resampled"] * 2, "one has the wanted size already"
    assert ways(wanted, interpolation=2, channels=(3, 4)) == ["resampled", "followed"]
    assert ways(wanted, interpolation=2, channels=(3, 1)) == ["resampled"] * 2, "grey becomes rgb at the end"
    coded = encoded(wanted, interpolation=2, resized_w=64)
    coded.records["channels"] = (3, 1)
    assert len(set(ways_of(coded).tolist())) == 2, "in launches of their own"
    assert len(set(both.tolist())) == 1


def through_products(coded: Encoded, device: str) -> torch.Tensor:
    """``_resampled`` with boxes that the CPU decodes."""
    records = coded.records
    channels = int(records["channels"][0])
    size = (len(coded), channels, int(records["h"].max()), -(-int(records["w"].max()) // 8) * 8)
    boxes = torch.zeros(size)
    for slot, record in enumerate(records):
        x, y, w, h = (int(record[name]) for name in "xywh")
        box = psi.decode(coded.file(slot).data, region=np.s_[y : y + h, x : x + w], layout="CHW")
        boxes[slot, :, :h, :w] = torch.from_numpy(box).float()
    return loading._products(coded, boxes)


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_batches_of_mixed_pictures_are_those_of_the_cpu(tmp_path, monkeypatch, dtype):
    import penstock

    random = np.random.default_rng(3)
    shapes = [(60, 80, 3), (48, 64, 3), (70, 50, 1), (90, 75, 3), (66, 52, 4), (32, 40, 3), (3, 1, 3)]
    for number, shape in enumerate(shapes):
        smooth = random.integers(0, 256, (shape[0] // 4 + 1, shape[1] // 4 + 1, shape[2]), np.uint8)
        array = smooth.repeat(4, 0).repeat(4, 1)[: shape[0], : shape[1]]
        (tmp_path / f"{number}.psi").write_bytes(psi.encode(array[..., 0] if shape[2] == 1 else array))
    transform = [penstock.Resize((32, 40)), penstock.Flip()]
    if dtype:
        transform.append(penstock.ToDType(dtype))
    seen = []

    def look(coded: Encoded, device: str, *, non_blocking: bool = True) -> torch.Tensor:
        seen.extend(Way(way % len(Way)) for way in ways_of(coded).tolist())
        return loading.decode_encoded(coded, "cpu")

    def run(decode):
        with penstock.Loader(
            penstock.open(tmp_path), 7, seed=5, decode=decode, transform=transform
        ) as loader:
            return [(batch.ids.tolist(), batch["image"]) for _ in range(2) for batch in loader]

    cpu = run("cpu")
    monkeypatch.setattr(Encoded, "to", look)
    monkeypatch.setitem(loading._WAYS, Way.RESAMPLED, through_products)
    for way in (Way.STORED, Way.FOLLOWED):
        monkeypatch.setitem(loading._WAYS, way, loading._on_host)
    device = run("device")
    assert {Way.RESAMPLED, Way.FOLLOWED} <= set(seen)
    for (ids, here), (same_ids, there) in zip(cpu, device, strict=True):
        assert ids == same_ids
        assert here.shape == there.shape
        assert here.dtype == there.dtype
        assert float((here.double() - there.double()).abs().max()) <= 1


def test_files_without_a_kernel_are_decoded_on_the_host(tmp_path):
    import penstock

    random = np.random.default_rng(3)
    for number in range(4):
        array = random.integers(0, 256, (1, 1 + 2 * number, 70), np.uint8)
        (tmp_path / f"{number}.psi").write_bytes(psi.encode(array))
    seen = []

    def look(coded: Encoded, device: str, *, non_blocking: bool = True) -> torch.Tensor:
        seen.extend(Way(way % len(Way)) for way in ways_of(coded).tolist())
        return loading.decode_encoded(coded, "cpu")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoded, "to", look)
        patch.setitem(loading._WAYS, Way.FOLLOWED, loading._on_host)
        data = penstock.open(tmp_path)
        with penstock.Loader(data, 4, shuffle=False, mode="unchanged", decode="device") as loader:
            (batch,) = loader
    with penstock.Loader(data, 4, shuffle=False, mode="unchanged") as loader:
        (wanted,) = loader
    assert Way.HOST in seen
    for here, there in zip(batch["image"], wanted["image"], strict=True):
        assert torch.equal(here, there)


def test_a_box_that_is_mirrored_upside_down_starts_at_its_last_row():
    coded = encoded(finish(), flip_y=1, flip_x=1)
    rows = loading._requests(coded, np.array([0, 10_000]), (96, 3, 1), mirrored=True)
    assert rows[:, 9].tolist() == [1, 1]
    assert rows[:, 10].tolist() == [23 * 96, 10_000 + 23 * 96]
    assert rows[:, 12].tolist() == [-96, -96]
