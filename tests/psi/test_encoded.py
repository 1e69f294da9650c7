"""Pictures that a device decodes: the engine hands files and geometry on, and what they say is what the CPU does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.psi.test_loader import both
from tests.support import picture

import penstock
from penstock import _native, psi
from penstock.errors import ChecksumError, DecodeError
from penstock.psi.encoded import RECORD, Encoded
from penstock.transform import compile_program

if TYPE_CHECKING:
    from pathlib import Path

EXACT: dict[str, list[Any]] = {
    "as stored": [],
    "center crop": [penstock.CenterCrop(60), penstock.Flip(axis="vertical"), penstock.Normalize()],
    "wide center crop": [penstock.Flip(), penstock.CenterCrop((300, 280)), penstock.ToDType("float16")],
    "random crop": [penstock.RandomCrop((50, 40), padding=(3, 20, 9, 1), fill=9.4), penstock.Flip()],
    "random crop, flipped first": [penstock.Flip(1.0), penstock.RandomCrop((60, 70), padding=30, fill=200)],
    "all padding": [penstock.RandomCrop(20, padding=400, fill=7), penstock.Flip()],
    "nearest": [penstock.Resize((77, 33), interpolation="nearest"), penstock.Flip()],
    "bfloat16": [penstock.Pad(5, fill=128), penstock.Normalize(0.5, 0.2), penstock.ToDType("bfloat16")],
    "integers": [penstock.CenterCrop(30), penstock.ToDType("int16", scale=False)],
    "scaled integers": [penstock.CenterCrop(30), penstock.ToDType("uint16")],
}
RESIZED: dict[str, list[Any]] = {
    "random resized crop": [penstock.RandomResizedCrop(48), penstock.Flip()],
    "resize and cut": [penstock.Resize(80), penstock.CenterCrop(64)],
    "bicubic": [penstock.Resize((90, 140), interpolation="bicubic"), penstock.RandomCrop(80, padding=4)],
    "larger": [penstock.RandomResizedCrop(400, scale=(0.01, 0.2), interpolation="bicubic"), penstock.Flip()],
    "turned": [penstock.Orient(), penstock.Resize(70), penstock.Flip(), penstock.CenterCrop(90)],
    "ragged": [penstock.Resize(50), penstock.Flip(axis="vertical")],
}


def run(folder: Path, decode: str, **options: Any) -> list[penstock.Batch]:
    with penstock.Loader(penstock.open(folder), 2, seed=5, decode=decode, **options) as loader:  # type: ignore[arg-type]
        return [batch for _ in range(3) for batch in loader]


def average_difference(left: list[penstock.Batch], right: list[penstock.Batch]) -> float:
    pairs = [
        (a.double() - b.double()).abs().reshape(-1)
        for one, other in zip(left, right, strict=True)
        for a, b in zip(one["image"], other["image"], strict=True)
    ]
    return float(torch.cat(pairs).mean())


def differences(left: list[penstock.Batch], right: list[penstock.Batch], field: str = "image") -> list[float]:
    found = []
    assert len(left) == len(right) > 0
    for one, other in zip(left, right, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert type(one[field]) is type(other[field])
        for a, b in zip(one[field], other[field], strict=True):
            assert a.shape == b.shape
            assert a.dtype == b.dtype
            found.append(float((a.double() - b.double()).abs().max()))
    return found


@pytest.mark.parametrize("mode", ["rgb", "grey", "unchanged"])
@pytest.mark.parametrize("channels", ["RGB", "L", "LA", "RGBA", "I;16"])
@pytest.mark.parametrize("transform", EXACT.values(), ids=EXACT)
def test_crops_flips_and_values_are_those_of_the_cpu(
    tmp_path: Path, transform: list[Any], channels: str, mode: Any
) -> None:
    if mode != "rgb" and penstock.Normalize() in transform:
        transform = [penstock.Normalize(0.4, 0.3) if op == penstock.Normalize() else op for op in transform]
    _, folder = both(tmp_path, channels)
    found = differences(
        run(folder, "cpu", transform=transform, mode=mode),
        run(folder, "device", transform=transform, mode=mode),
    )
    assert max(found) == 0


@pytest.mark.parametrize("channels", ["RGB", "L", "RGBA", "I;16"])
@pytest.mark.parametrize("transform", RESIZED.values(), ids=RESIZED)
def test_resized_pictures_differ_by_their_rounding_alone(
    tmp_path: Path, transform: list[Any], channels: str
) -> None:
    _, folder = both(tmp_path, channels)
    for mode in ("rgb", "unchanged"):
        batches = [run(folder, decode, transform=transform, mode=mode) for decode in ("cpu", "device")]
        found, average = differences(*batches), average_difference(*batches)
        # Colours under little alpha are divided by it: there it shows.
        divided = channels == "RGBA" and mode == "unchanged"
        assert max(found) <= (60 if divided else 1)
        assert average <= (0.5 if divided else 0.1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int16", "uint32"])
def test_every_sample_type_goes_on(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(1)
    for number in range(4):
        array = rng.integers(0, 200, (90, 70, 5)).astype(dtype)
        (tmp_path / f"{number}.psi").write_bytes(psi.encode(array))
    transform = [penstock.RandomCrop(64), penstock.Flip()]
    options: dict[str, Any] = {"transform": transform, "mode": "unchanged", "layout": "NHWC"}
    assert max(differences(run(tmp_path, "cpu", **options), run(tmp_path, "device", **options))) == 0


class TestTheFeed:
    def encoded(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[Encoded]:
        """What a device is handed."""
        seen: list[Encoded] = []
        decode = Encoded.to

        def look(self: Encoded, device: str, *, non_blocking: bool = True) -> Any:
            seen.append(self)
            return decode(self, device, non_blocking=non_blocking)

        monkeypatch.setattr(Encoded, "to", look)
        run(folder, "device", **options)
        return seen

    def test_files_lie_side_by_side_in_one_slab(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, folder = both(tmp_path)
        from penstock.pack import pack

        pack(str(folder), tmp_path / "packed")
        for place in (folder, tmp_path / "packed"):
            for encoded in self.encoded(place, monkeypatch, transform=[penstock.CenterCrop(60)]):
                assert (encoded.offsets % 64 == 0).all()
                for slot, id in enumerate(encoded.ids):
                    assert bytes(encoded.file(slot)) == (folder / f"{id}.psi").read_bytes()
                assert len(encoded.data) < encoded.lengths.sum() + 256 * len(encoded)

    def test_plain_crops_decode_no_more_than_they_give(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, folder = both(tmp_path)
        transform = [penstock.Flip(), penstock.RandomCrop((40, 50))]
        for encoded in self.encoded(folder, monkeypatch, transform=transform):
            for record in encoded.records:
                size = (50, 40)
                assert (record["w"], record["h"]) == (record["window_w"], record["window_h"]) == size
                assert (record["out_w"], record["out_h"], record["interpolation"]) == (*size, 0)
                assert record["version"] == 1
            assert encoded.shape == (len(encoded), 40, 50, 3)

    def test_a_random_resized_crop_decodes_its_box_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, folder = both(tmp_path)
        records = [
            record
            for encoded in self.encoded(folder, monkeypatch, transform=[penstock.RandomResizedCrop(32)])
            for record in encoded.records
        ]
        assert len({tuple(record[name] for name in "xywh") for record in records}) == len(records)
        assert all(record["w"] * record["h"] < record["width"] * record["height"] for record in records)

    def test_the_record_is_what_the_engine_writes(self) -> None:
        assert RECORD.itemsize == 128


def test_what_a_device_does_not_know_is_made_plain_first(tmp_path: Path) -> None:
    image = picture(3, (70, 50)).quantize(9)
    colours = np.asarray(image.getpalette("RGBA"), np.uint8).tobytes()
    (tmp_path / "0.psi").write_bytes(psi.encode(np.asarray(image), metadata={"palette": colours}))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = {"exif": exif.tobytes().removeprefix(b"Exif\0\0")}
    (tmp_path / "1.psi").write_bytes(psi.encode(np.asarray(picture(4, (70, 50))), metadata=turned))
    (tmp_path / "2.psi").write_bytes(
        (_ := __import__("io").BytesIO(), picture(5).save(_, "png"))[0].getvalue()
    )
    options: dict[str, Any] = {"transform": [penstock.Orient(), penstock.CenterCrop(40)], "mode": "rgb"}
    assert max(differences(run(tmp_path, "cpu", **options), run(tmp_path, "device", **options))) == 0


def test_masks_and_labels_stay_beside_the_pictures(tmp_path: Path) -> None:
    _, folder = both(tmp_path, masks=True)
    transform = [penstock.RandomResizedCrop(32), penstock.Flip()]
    cpu, device = run(folder, "cpu", transform=transform), run(folder, "device", transform=transform)
    assert max(differences(cpu, device)) <= 1
    assert max(differences(cpu, device, "mask")) == 0


class TestBadSamples:
    def test_a_changed_tile_is_found_before_the_device_sees_it(self, tmp_path: Path) -> None:
        _, folder = both(tmp_path)
        path = folder / "2.psi"
        data = bytearray(path.read_bytes())
        data[-9] ^= 8
        path.write_bytes(bytes(data))
        with pytest.raises((DecodeError, ChecksumError), match=r"sample 2 \(2.psi.*field 'image'.*tile"):
            run(folder, "device")
        batches = run(folder, "device", on_error="skip", transform=[penstock.CenterCrop(30)])
        assert {id for batch in batches for id in batch.skipped} == {2}
        assert all(len(batch["image"]) == batch.size for batch in batches)

    def test_a_batch_of_bad_samples_alone_is_empty(self, tmp_path: Path) -> None:
        for number in range(2):
            (tmp_path / f"{number}.psi").write_bytes(b"no picture")
        with penstock.Loader(
            penstock.open(tmp_path), 2, decode="device", on_error="skip", error_budget=5
        ) as loader:
            (batch,) = loader
        assert (batch.size, len(batch["image"])) == (0, 0)

    def test_the_device_can_name_a_sample(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        _, folder = both(tmp_path)
        seen: list[Encoded] = []
        monkeypatch.setattr(
            Encoded, "to", lambda self, device, non_blocking=True: seen.append(self) or torch.zeros(2)
        )
        with penstock.Loader(penstock.open(folder), 5, shuffle=False, decode="device") as loader:
            next(iter(loader))
        error = seen[0].error(3, "decode", "the coding tables end early")
        assert isinstance(error, DecodeError)
        assert f"sample 3 (3.psi in {folder}" in str(error) or "sample 3 (3.psi in file://" in str(error)
        assert str(error).endswith("field 'image': the coding tables end early")


@pytest.mark.parametrize(
    ("transform", "why"),
    [
        ([penstock.ColorJitter(0.3)], "ColorJitter"),
        ([penstock.Grayscale(0.5)], "Grayscale"),
        ([penstock.Resize(50), penstock.RandomResizedCrop(30)], "resized twice"),
        ([penstock.Pad(5), penstock.Resize(30)], "padded before it is resized"),
        ([penstock.CenterCrop(50), penstock.Resize(30)], "padded before it is resized"),
        ([penstock.Pad(5), penstock.CenterCrop(50)], "padded twice"),
    ],
)
def test_what_a_device_cannot_follow_stays_on_the_cpu(tmp_path: Path, transform: list[Any], why: str) -> None:
    assert why in str(_native.psi_obstacle(compile_program(transform)))
    _, folder = both(tmp_path)
    with pytest.raises(ValueError, match=why):
        run(folder, "device", transform=transform)


def test_a_crop_of_what_is_surely_large_enough_is_no_padding() -> None:
    for transform in (
        [penstock.Resize((60, 70)), penstock.CenterCrop(50), penstock.Pad(4)],
        [penstock.RandomResizedCrop(60), penstock.CenterCrop(60), penstock.RandomCrop(60, padding=4)],
        [penstock.RandomCrop(60), penstock.CenterCrop(60), penstock.Resize(30)],
    ):
        assert _native.psi_obstacle(compile_program(transform)) is None


def test_where_to_decode_is_checked(tmp_path: Path) -> None:
    png, folder = both(tmp_path)
    with pytest.raises(ValueError, match="decode is 'gpu'"):
        run(folder, "gpu")
    with pytest.raises(ValueError, match="no picture of the data set is PSI"):
        run(png, "device")
    with pytest.raises(ValueError, match="callable"):
        run(folder, "device", transform=[lambda batch: batch])
