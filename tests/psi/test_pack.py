"""`penstock pack --format psi`: every sample comes back bit for bit, under the name and kind that it should have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from tests.support import encoded, picture

import penstock
from penstock.errors import DecodeError
from penstock.formats import Format
from penstock.pack import OnError, PackFormat, PackOptions, pack, verify
from penstock.psi import packing

if TYPE_CHECKING:
    from pathlib import Path

PSI = PackOptions(format=PackFormat.PSI)


def formats(data: penstock.Dataset, field: str) -> set[Format]:
    return {Format(code) for code in data.catalog.addresses(field, np.arange(len(data))).format.tolist()}


def batches(data: penstock.Dataset, **options: Any) -> list[dict[str, Any]]:
    with penstock.Loader(data, 4, seed=2, arrays="numpy", **options) as loader:
        return [dict(batch) for batch in loader]


def assert_same(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> None:
    assert len(left) == len(right) > 0
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            for a, b in zip(one[name], other[name], strict=True):
                assert np.array_equal(a, b)


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    """Pictures of every kind with palette masks, in classes."""
    root = tmp_path / "scenes"
    for number in range(12):
        folder = root / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        image = picture(number, (60 + number, 50))
        mask = Image.fromarray(np.asarray(image.convert("L")) // 64).convert("P")
        mask.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255])
        mask.save(folder / f"{number}.mask.png")
        if number % 4 == 3:
            image = image.quantize(20)
        elif number % 4 == 2:
            image.putalpha(image.convert("L"))
        exif = Image.Exif()
        exif[0x0112] = 6 if number == 4 else 1
        image.save(folder / f"{number}.png", exif=exif)
    return root


@pytest.mark.parametrize("mode", ["rgb", "unchanged"])
def test_a_packed_set_gives_the_batches_of_its_source(scenes: Path, tmp_path: Path, mode: Any) -> None:
    done = pack(str(scenes), tmp_path / "packed", PSI)
    assert (done.samples, done.skipped) == (12, ())
    assert verify(str(tmp_path / "packed")).bad == ()
    source, packed = penstock.open(scenes), penstock.open(tmp_path / "packed")
    assert formats(packed, "image") == formats(packed, "mask") == {Format.PSI}
    assert packed.classes == source.classes
    transform = [penstock.Orient(), penstock.RandomCrop(32, padding=4), penstock.Flip()]
    for options in ({}, {"transform": transform}):
        assert_same(batches(source, mode=mode, **options), batches(packed, mode=mode, **options))


def test_the_shards_alone_say_the_same(scenes: Path, tmp_path: Path) -> None:
    pack(str(scenes), tmp_path / "packed", PSI)
    (tar,) = (tmp_path / "packed").glob("*.tar")
    bare = penstock.open(tar)
    assert {field.name: field.kind for field in bare.fields} == {"image": "image", "mask": "mask"}
    assert_same(batches(bare), batches(penstock.open(tmp_path / "packed").select("image", "mask")))


def test_jpeg_and_lossy_webp_stay_as_they_are_unless_asked(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.jpg").write_bytes(encoded(picture(number), "JPEG"))
    (source / "3.webp").write_bytes(encoded(picture(3), "WEBP", lossless=False))
    (source / "4.webp").write_bytes(encoded(picture(4), "WEBP", lossless=True))
    pack(str(source), tmp_path / "kept", PSI)
    assert formats(penstock.open(tmp_path / "kept"), "image") == {Format.JPEG, Format.WEBP, Format.PSI}
    pack(str(source), tmp_path / "all", PackOptions(format=PackFormat.PSI, lossy=True, level="fast"))
    packed = penstock.open(tmp_path / "all")
    assert formats(packed, "image") == {Format.PSI}
    assert_same(batches(penstock.open(source)), batches(packed))


def test_arrays_become_psi_where_it_holds_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, make in {
        "slices": lambda: rng.integers(-1000, 3000, (7, 40, 30)).astype(np.int16),
        "fields": lambda: rng.normal(size=(20, 30)).astype(np.float32),
        "wide": lambda: rng.normal(size=(20, 30)),
        "thin": lambda: rng.integers(0, 9, (20, 30, 1)).astype(np.uint8),
        "vectors": lambda: rng.normal(size=9).astype(np.float32),
    }.items():
        source = tmp_path / name
        source.mkdir()
        for number in range(4):
            np.save(source / f"{number}.npy", make())
        pack(str(source), tmp_path / f"{name}-packed", PSI)
        packed = penstock.open(tmp_path / f"{name}-packed")
        wanted = {Format.PSI} if name in ("slices", "fields") else {Format.NPY}
        assert formats(packed, "array") == wanted, name
        assert_same(batches(penstock.open(source)), batches(packed))


class TestOtherFormats:
    def test_tiff_of_every_depth(self, tmp_path: Path) -> None:
        tifffile = pytest.importorskip("tifffile")
        source = tmp_path / "src"
        source.mkdir()
        rng = np.random.default_rng(3)
        arrays = [
            rng.integers(0, 256, (30, 40, 3)).astype(np.uint8),
            rng.integers(0, 4096, (30, 40)).astype(np.uint16),
            rng.integers(0, 65536, (30, 40, 3)).astype(np.uint16),
            rng.normal(size=(30, 40)).astype(np.float32),
        ]
        for number, array in enumerate(arrays):
            tifffile.imwrite(
                source / f"{number}.tif", array, photometric="rgb" if array.ndim == 3 else "minisblack"
            )
            tifffile.imwrite(
                source / f"{number}.mask.tif", (np.arange(1200) % 7).reshape(30, 40).astype(np.uint8)
            )
        pack(str(source), tmp_path / "packed", PSI)
        packed = penstock.open(tmp_path / "packed")
        assert {field.name: field.kind for field in packed.fields} == {"image": "image", "mask": "mask"}
        with penstock.Loader(
            packed, 1, shuffle=False, mode="unchanged", arrays="numpy", layout="NHWC"
        ) as loader:
            found = [batch["image"][0] for batch in loader]
        for array, got in zip(arrays, found, strict=True):
            assert np.array_equal(got.reshape(array.shape), array)

    def test_pages_are_slices_of_a_volume(self, tmp_path: Path) -> None:
        source = tmp_path / "src"
        source.mkdir()
        rng = np.random.default_rng(3)
        volumes = [rng.integers(0, 256, (6, 30, 40)).astype(np.uint8) for _ in range(2)]
        for number, volume in enumerate(volumes):
            pages = [Image.fromarray(page) for page in volume]
            pages[0].save(source / f"{number}.tiff", save_all=True, append_images=pages[1:])
        pack(str(source), tmp_path / "packed", PSI)
        packed = penstock.open(tmp_path / "packed")
        assert [(field.name, field.kind) for field in packed.fields] == [("volume", "array")]
        for volume, sample in zip(volumes, packed, strict=True):
            assert np.array_equal(sample["volume"], volume)

    def test_bmp(self, tmp_path: Path) -> None:
        source = tmp_path / "src"
        source.mkdir()
        for number in range(2):
            picture(number).save(source / f"{number}.bmp")
        pack(str(source), tmp_path / "packed", PSI)
        for number, sample in enumerate(penstock.open(tmp_path / "packed")):
            assert np.array_equal(sample["image"], np.asarray(picture(number)))

    def test_dicom_pixels_and_no_patient(self, tmp_path: Path) -> None:
        pydicom = pytest.importorskip("pydicom")
        source = tmp_path / "src"
        source.mkdir()
        rng = np.random.default_rng(1)
        slices = [rng.integers(-1024, 3000, (33, 44)).astype(np.int16) for _ in range(3)]
        for number, pixels in enumerate(slices):
            file = pydicom.Dataset()
            file.file_meta = pydicom.dataset.FileMetaDataset()
            file.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
            file.file_meta.MediaStorageSOPClassUID = pydicom.uid.CTImageStorage
            file.file_meta.MediaStorageSOPInstanceUID = f"1.2.{number}"
            file.SOPClassUID, file.SOPInstanceUID = pydicom.uid.CTImageStorage, f"1.2.{number}"
            file.PatientName = "Somebody^Known"
            file.Modality = "CT"
            file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
            file.Rows, file.Columns = pixels.shape
            file.BitsAllocated = file.BitsStored = 16
            file.HighBit, file.PixelRepresentation = 15, 1
            file.RescaleSlope, file.RescaleIntercept = 1, -1024
            file.PixelSpacing = [0.5, 0.5]
            file.PixelData = pixels.tobytes()
            file.save_as(source / f"{number}.dcm", enforce_file_format=True)
        pack(str(source), tmp_path / "packed", PSI)
        packed = penstock.open(tmp_path / "packed")
        with penstock.Loader(packed, 3, shuffle=False, mode="unchanged", arrays="numpy") as loader:
            assert np.array_equal(next(iter(loader))["image"][..., 0], np.stack(slices))
        (tar,) = (tmp_path / "packed").glob("*.tar")
        assert b"Somebody" not in tar.read_bytes()
        assert b'"RescaleIntercept":-1024.0' in tar.read_bytes()


def test_profiles_and_exif_go_along(tmp_path: Path) -> None:
    from penstock.psi.pictures import read

    exif = Image.Exif()
    exif[0x0112] = 3
    for kind, options in (("PNG", {}), ("JPEG", {}), ("WEBP", {"lossless": True})):
        data = encoded(picture(0), kind, exif=exif, icc_profile=b"a profile" * 20_000, **options)
        about = read(data, kind.lower()).metadata
        assert about["icc"] == b"a profile" * 20_000
        assert about["exif"] == exif.tobytes().removeprefix(b"Exif\0\0")


class TestBadPictures:
    def folder(self, tmp_path: Path) -> Path:
        source = tmp_path / "src"
        source.mkdir()
        for number in range(5):
            picture(number).save(source / f"{number}.png")
        (source / "2.png").write_bytes((source / "2.png").read_bytes()[:-30])
        return source

    def test_a_bad_picture_names_its_sample(self, tmp_path: Path) -> None:
        with pytest.raises(DecodeError, match=r"sample 2 \(2.png"):
            pack(str(self.folder(tmp_path)), tmp_path / "packed", PSI)

    def test_or_is_left_out_and_counted(self, tmp_path: Path) -> None:
        options = PackOptions(format=PackFormat.PSI, on_error=OnError.SKIP)
        done = pack(str(self.folder(tmp_path)), tmp_path / "packed", options)
        assert (done.samples, len(done.skipped)) == (4, 1)
        assert "2.png" in done.skipped[0]

    def test_what_does_not_come_back_is_not_packed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = tmp_path / "src"
        source.mkdir()
        picture(0).save(source / "0.png")
        monkeypatch.setattr(packing, "decode", lambda file, **_: np.zeros((40, 48, 3), np.uint8))
        with pytest.raises(DecodeError, match="bug in penstock"):
            pack(str(source), tmp_path / "packed", PSI)

    def test_an_unknown_level_is_told_before_anything_is_read(self, tmp_path: Path) -> None:
        source = tmp_path / "src"
        source.mkdir()
        picture(0).save(source / "0.png")
        with pytest.raises(ValueError, match="level is 'best'"):
            pack(str(source), tmp_path / "packed", PackOptions(format=PackFormat.PSI, level="best"))


def test_an_interrupted_pack_goes_on_to_the_same_bytes(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = PackOptions(format=PackFormat.PSI, shard_size=8 << 10, threads=1)
    pack(str(scenes), tmp_path / "whole", options)
    calls = 0
    encode = packing.encoded_picture

    def dies(*arguments: Any, **keywords: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 15:
            raise KeyboardInterrupt
        return encode(*arguments, **keywords)

    monkeypatch.setattr(packing, "encoded_picture", dies)
    with pytest.raises(KeyboardInterrupt):
        pack(str(scenes), tmp_path / "cut", options)
    monkeypatch.undo()
    done = pack(str(scenes), tmp_path / "cut", options)
    assert 0 < done.new_shards < done.shards
    for shard in (tmp_path / "whole").glob("*.tar"):
        assert (tmp_path / "cut" / shard.name).read_bytes() == shard.read_bytes()


def test_packed_masks_are_smaller_than_as_png(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    rows, columns = np.mgrid[:512, :512]
    labels = ((rows - 180) ** 2 + (columns - 240) ** 2 < 12_000).astype(np.uint8) * 7
    labels[400:, 40:90] = 3
    Image.fromarray(labels).save(source / "0.mask.png", optimize=True)
    pack(str(source), tmp_path / "packed", PSI)
    at = penstock.open(tmp_path / "packed").catalog.addresses("mask", np.arange(1))
    assert at.format[0] == Format.PSI
    assert at.length[0] <= (source / "0.mask.png").stat().st_size
