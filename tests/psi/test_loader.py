"""PSI fields of a data set: the Loader gives exactly what it gives for the same pictures as PNG."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from tests.support import picture

import penstock
from penstock import psi
from penstock.errors import ChecksumError, DecodeError, TruncatedError

if TYPE_CHECKING:
    from pathlib import Path

SIZES = [(300, 200), (140, 260), (64, 64), (129, 131), (257, 100)]
CROPS: dict[str, list[Any]] = {
    "as stored": [],
    "random resized crop": [penstock.RandomResizedCrop(48), penstock.Flip(), penstock.Normalize()],
    "center crop": [penstock.CenterCrop(60), penstock.Flip(axis="vertical")],
    "random crop": [penstock.RandomCrop((50, 40), padding=4, fill=9, mask_fill=255), penstock.Flip()],
    "resize and cut": [penstock.Resize(80), penstock.CenterCrop(64), penstock.ToDType("float32")],
    "turned": [penstock.Orient(), penstock.Resize((40, 50), interpolation="bicubic")],
}


def photo(number: int, size: tuple[int, int], mode: str) -> Image.Image:
    image = picture(number, size)
    if mode == "I;16":
        grey = np.asarray(image.convert("L")).astype(np.uint16)
        return Image.fromarray(grey * 257 + np.arange(size[0], dtype=np.uint16) % 7)
    if mode in ("LA", "RGBA"):
        image.putalpha(image.convert("L").rotate(180))
    return image.convert(mode)


def both(tmp_path: Path, mode: str = "RGB", *, masks: bool = False) -> tuple[Path, Path]:
    """The same pictures in two folders: as PNG and as PSI."""
    folders = tmp_path / "png", tmp_path / "psi"
    for folder in folders:
        folder.mkdir()
    for number, size in enumerate(SIZES):
        image = photo(number, size, mode)
        exif = Image.Exif()
        exif[0x0112] = 1 + number % 8
        image.save(folders[0] / f"{number}.png", exif=exif)
        file = psi.encode(np.asarray(image), metadata={"exif": exif.tobytes().removeprefix(b"Exif\0\0")})
        (folders[1] / f"{number}.psi").write_bytes(file)
        if masks:
            labels = np.asarray(image.convert("L")) // 32 * 16
            Image.fromarray(labels).save(folders[0] / f"{number}.mask.png")
            (folders[1] / f"{number}.mask.psi").write_bytes(psi.encode(labels))
    return folders


def batches(folder: Path, **options: Any) -> list[dict[str, Any]]:
    with penstock.Loader(penstock.open(folder), 2, seed=11, arrays="numpy", **options) as loader:
        return [dict(batch) for _ in range(2) for batch in loader]


def assert_same(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert type(one[name]) is type(other[name])
            for a, b in zip(one[name], other[name], strict=True):
                assert a.dtype == b.dtype
                assert np.array_equal(a, b)


@pytest.mark.parametrize("transform", CROPS.values(), ids=CROPS)
@pytest.mark.parametrize("channels", ["RGB", "L", "LA", "RGBA", "I;16"])
@pytest.mark.parametrize("mode", ["rgb", "grey", "unchanged"])
def test_pixels_are_those_of_the_png(tmp_path: Path, transform: list[Any], channels: str, mode: Any) -> None:
    if any(isinstance(op, penstock.Normalize) for op in transform) and mode != "rgb":
        transform = [*transform[:-1], penstock.Normalize(0.5, 0.25)]
    png, packed = both(tmp_path, channels)
    assert_same(batches(png, transform=transform, mode=mode), batches(packed, transform=transform, mode=mode))


@pytest.mark.parametrize("transform", CROPS.values(), ids=CROPS)
def test_masks_go_with_their_pictures(tmp_path: Path, transform: list[Any]) -> None:
    png, packed = both(tmp_path, masks=True)
    found = batches(packed, transform=transform)
    assert set(found[0]) == {"image", "mask"}
    assert_same(batches(png, transform=transform), found)


def test_a_palette_is_colours_for_pictures_and_numbers_for_masks(tmp_path: Path) -> None:
    for number in range(4):
        image = picture(number, (70, 50)).quantize(12)
        colours = np.asarray(image.getpalette("RGBA"), np.uint8).tobytes()
        if number == 3:
            colours = colours[:3] + b"\x40" + colours[4:]
        (tmp_path / "psi").mkdir(exist_ok=True)
        (tmp_path / "png").mkdir(exist_ok=True)
        file = psi.encode(np.asarray(image), metadata={"palette": colours})
        transparency = bytes(colours[3::4])
        for name in ("", ".mask"):
            (tmp_path / "psi" / f"{number}{name}.psi").write_bytes(file)
            image.save(
                tmp_path / "png" / f"{number}{name}.png",
                **({"transparency": transparency} if number == 3 else {}),
            )
    for mode in ("rgb", "grey", "unchanged"):
        assert_same(batches(tmp_path / "png", mode=mode), batches(tmp_path / "psi", mode=mode))


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "float32"]
)
def test_every_sample_type_comes_as_stored(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 100, (200, 150, 5)).astype(dtype) for _ in range(3)]
    for number, array in enumerate(arrays):
        (tmp_path / f"{number}.psi").write_bytes(psi.encode(array))
    with penstock.Loader(
        penstock.open(tmp_path), 3, shuffle=False, mode="unchanged", arrays="numpy", layout="NHWC"
    ) as loader:
        assert np.array_equal(next(iter(loader))["image"], np.stack(arrays))
    with penstock.Loader(
        penstock.open(tmp_path),
        3,
        shuffle=False,
        mode="unchanged",
        arrays="numpy",
        transform=[penstock.CenterCrop(90)],
    ) as loader:
        assert np.array_equal(next(iter(loader))["image"], np.stack(arrays)[:, 55:145, 30:120])


def test_volumes_are_arrays(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    volumes = [rng.integers(0, 4000, (9, 40, 50)).astype(np.int16) for _ in range(3)]
    for number, volume in enumerate(volumes):
        (tmp_path / f"{number}.volume.psi").write_bytes(psi.encode(volume, layout="DHW"))
    data = penstock.open(tmp_path)
    assert data.fields[0].kind == "array"
    assert np.array_equal(data[1]["volume"], volumes[1])
    cast = [penstock.ToDType("float32", kind="array")]
    for transform, dtype in (([], np.int16), (cast, np.float32)):
        with penstock.Loader(data, 3, shuffle=False, arrays="numpy", transform=transform) as loader:
            batch = next(iter(loader))["volume"]
        assert batch.dtype == dtype
        assert np.array_equal(batch, np.stack(volumes))
    (tmp_path / "3.psi").write_bytes(psi.encode(volumes[0], layout="DHW"))
    with (
        penstock.Loader(penstock.open(tmp_path, fields=["image"]).take([3]), 1) as loader,
        pytest.raises(DecodeError, match=r"sample 3 \(3.psi.*a volume of 9 slices.*x.volume.psi"),
    ):
        next(iter(loader))


def test_floats_as_rgb_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.psi").write_bytes(psi.encode(np.zeros((5, 5), np.float32)))
    with (
        penstock.Loader(penstock.open(tmp_path), 1) as loader,
        pytest.raises(DecodeError, match='mode="unchanged"'),
    ):
        next(iter(loader))


class TestBadFiles:
    @pytest.mark.parametrize(
        ("damage", "error"),
        [
            (lambda file: file[:-40], TruncatedError),
            (lambda file: file[:10], TruncatedError),
            (lambda file: b"", TruncatedError),
            (lambda file: file[:-9] + bytes([file[-9] ^ 4]) + file[-8:], DecodeError),
            (lambda file: file[:60] + bytes([file[60] ^ 4]) + file[61:], DecodeError),
            (lambda file: b"no picture at all", DecodeError),
        ],
    )
    def test_a_bad_file_names_its_sample(self, tmp_path: Path, damage: Any, error: type[Exception]) -> None:
        _, folder = both(tmp_path)
        path = folder / "3.psi"
        path.write_bytes(damage(path.read_bytes()))
        with (
            penstock.Loader(penstock.open(folder), 5, transform=[penstock.Resize((9, 9))]) as loader,
            pytest.raises((error, ChecksumError), match=r"sample 3 \(3.psi.*field 'image'"),
        ):
            next(iter(loader))
        with penstock.Loader(
            penstock.open(folder), 5, transform=[penstock.Resize((9, 9))], on_error="skip"
        ) as loader:
            (batch,) = loader
        assert (batch.skipped, sorted(batch.ids.tolist())) == ((3,), [0, 1, 2, 4])

    def test_only_the_tiles_of_the_crop_are_read(self, tmp_path: Path) -> None:
        pixels = np.asarray(picture(0, (400, 400)))
        file = bytearray(psi.encode(pixels))
        file[-50] ^= 1  # in the last tile, bottom right
        (tmp_path / "a.psi").write_bytes(bytes(file))
        transform = [penstock.CenterCrop(200)]  # 100:300, and the last tile begins at 384
        with penstock.Loader(penstock.open(tmp_path), 1, transform=transform, arrays="numpy") as loader:
            assert np.array_equal(next(iter(loader))["image"][0], pixels[100:300, 100:300])


def test_a_sample_of_the_dataset_is_decoded_as_well(tmp_path: Path) -> None:
    png, packed = both(tmp_path)
    for left, right in zip(penstock.open(png), penstock.open(packed), strict=True):
        assert np.array_equal(left["image"], right["image"])


def test_shards_that_hold_psi_are_used_in_place(tmp_path: Path) -> None:
    import tarfile

    _, folder = both(tmp_path, masks=True)
    with tarfile.open(tmp_path / "shard.tar", "w") as shard:
        for path in sorted(folder.iterdir()):
            data = path.read_bytes()
            member = tarfile.TarInfo(path.name)
            member.size = len(data)
            shard.addfile(member, io.BytesIO(data))
    assert_same(batches(folder), batches(tmp_path / "shard.tar"))
