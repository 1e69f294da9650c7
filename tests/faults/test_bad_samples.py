"""Samples that are not what they say: an error that names them, or left out and counted; never memory, never a hang."""

from __future__ import annotations

import io
import resource
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image
from tests.faults.bad_files import ARRAYS, PICTURES
from tests.support import encoded, picture

import penstock
from penstock.errors import DataError, DecodeError, MissingError, TruncatedError

if TYPE_CHECKING:
    from pathlib import Path

SMALL = [penstock.Resize((16, 16))]


def folder_with(root: Path, name: str, data: bytes, *, good: int = 9) -> penstock.Dataset:
    """Good PNGs 0 … ``good``-1 and a bad file that sorts last."""
    for number in range(good):
        (root / f"{number:02}.png").write_bytes(encoded(picture(number), "PNG"))
    (root / name).write_bytes(data)
    return penstock.open(root)


@pytest.mark.parametrize("kind", PICTURES)
def test_a_bad_picture_is_named_and_the_rest_goes_on(kind: str, tmp_path: Path) -> None:
    extension, data = PICTURES[kind]
    name = f"zz.{extension}"
    dataset = folder_with(tmp_path, name, data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with penstock.Loader(dataset, 5, transform=SMALL, timeout=30) as loader, pytest.raises(DataError) as told:
        list(loader)
    error = told.value
    assert isinstance(error, DecodeError | TruncatedError)
    assert (error.id, error.key, error.field) == (9, name, "image")
    assert tmp_path.name in str(error.store)
    assert len(error.reason) > 10, error.reason
    with pytest.raises(DataError, match="zz"):
        dataset[9]
    with penstock.Loader(dataset, 5, transform=SMALL, timeout=30, on_error="skip") as loader:
        batches = list(loader)
        assert loader.stats()["skipped"] == 1
    assert sorted(int(id) for batch in batches for id in batch.ids) == list(range(9))
    assert [id for batch in batches for id in batch.skipped] == [9]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200 << 10, f"refusing it took {grown >> 10} MiB"


@pytest.mark.parametrize("kind", ARRAYS)
def test_a_bad_array_is_named_and_the_rest_goes_on(kind: str, tmp_path: Path) -> None:
    for number in range(9):
        np.save(tmp_path / f"{number:02}.npy", np.full(3, number, np.float32))
    (tmp_path / "zz.npy").write_bytes(ARRAYS[kind])
    dataset = penstock.open(tmp_path)
    with penstock.Loader(dataset, 5, timeout=30) as loader, pytest.raises(DataError, match="zz.npy"):
        list(loader)
    with penstock.Loader(dataset, 5, timeout=30, on_error="skip", error_budget=1) as loader:
        assert sorted(int(id) for batch in loader for id in batch.ids) == list(range(9))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_picture_under_another_pictures_extension_is_read_as_what_it_is(tmp_path: Path, kind: str) -> None:
    """ImageNet has PNGs that are called JPEG."""
    for extension in ("jpg", "png", "webp"):
        (tmp_path / f"one.{extension}").write_bytes(encoded(picture(3), kind))
        data = penstock.open(tmp_path)
        pixels = np.asarray(Image.open(io.BytesIO(encoded(picture(3), kind))))
        assert np.abs(data[0]["image"].astype(int) - pixels).max() <= 2
        with penstock.Loader(data, 1, layout="NHWC", arrays="numpy") as loader:
            assert (next(iter(loader))["image"][0] == data[0]["image"]).all()
        (tmp_path / f"one.{extension}").unlink()


def test_a_jpeg_without_its_end_is_told_apart_from_a_whole_one(tmp_path: Path) -> None:
    data = encoded(picture(2, (64, 64)), "JPEG", quality=95)
    dataset = folder_with(tmp_path, "zz.jpg", data[: len(data) * 2 // 3])
    with penstock.Loader(dataset, 5, transform=SMALL) as loader, pytest.raises(DataError, match="zz.jpg"):
        list(loader)


def test_a_sample_over_the_limits_of_the_user_is_refused(tmp_path: Path) -> None:
    dataset = folder_with(tmp_path, "zz.png", encoded(picture(1, (200, 100)), "PNG"))
    with (
        penstock.Loader(dataset, 5, transform=SMALL, max_pixels=10_000) as loader,
        pytest.raises(DecodeError, match="pixels"),
    ):
        list(loader)
    with penstock.Loader(dataset, 5, max_bytes=1000) as loader, pytest.raises(DecodeError, match="1000"):
        list(loader)


def test_a_file_that_goes_away_after_opening_is_missing(tmp_path: Path) -> None:
    dataset = folder_with(tmp_path, "zz.png", encoded(picture(1), "PNG"))
    (tmp_path / "zz.png").unlink()
    with (
        penstock.Loader(dataset, 5, transform=SMALL) as loader,
        pytest.raises(MissingError, match="zz.png") as told,
    ):
        list(loader)
    assert isinstance(told.value, FileNotFoundError)


def test_retry_reads_again_and_then_says_so(tmp_path: Path) -> None:
    dataset = folder_with(tmp_path, "zz.png", b"bad")
    with penstock.Loader(dataset, 5, transform=SMALL, on_error="retry", attempts=4, shuffle=False) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(DataError, match="zz.png"):
            next(batches)
        assert loader.stats()["retries"] == 3


def test_more_bad_samples_than_the_budget_end_the_epoch(tmp_path: Path) -> None:
    for number in range(20):
        data = b"bad" if number % 4 == 0 else encoded(picture(number), "PNG")
        (tmp_path / f"{number:02}.png").write_bytes(data)
    dataset = penstock.open(tmp_path)
    options = {"transform": SMALL, "on_error": "skip", "seed": 3}
    for budget in (5, 0.25):
        with penstock.Loader(dataset, 4, error_budget=budget, epochs=2, **options) as loader:
            assert sum(batch.size for batch in loader) == 30, "each epoch has a budget of its own"
            assert loader.stats()["skipped"] == 10
    for budget in (4, 0.2):
        with (
            penstock.Loader(dataset, 4, error_budget=budget, **options) as loader,
            pytest.raises(DataError) as told,
        ):
            list(loader)
        assert "error_budget allows 4" in "".join(told.value.__notes__)


def test_a_batch_that_is_all_bad_is_empty_and_keeps_its_place(tmp_path: Path) -> None:
    for number in range(12):
        data = b"bad" if 4 <= number < 8 else encoded(picture(number), "PNG")
        (tmp_path / f"{number:02}.png").write_bytes(data)
    dataset = penstock.open(tmp_path)
    with penstock.Loader(
        dataset, 4, transform=SMALL, shuffle=False, on_error="skip", error_budget=4
    ) as loader:
        sizes = [(batch.step, batch.size, tuple(batch["image"].shape)) for batch in loader]
    assert sizes == [(0, 4, (4, 16, 16, 3)), (1, 0, (0, 16, 16, 3)), (2, 4, (4, 16, 16, 3))]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_skipping_keeps_the_ranks_in_step_and_their_budgets_equal(tmp_path: Path, world: int) -> None:
    for number in range(40):
        data = b"bad" if number % 5 == 0 else encoded(picture(number), "PNG")
        (tmp_path / f"{number:02}.png").write_bytes(data)
    dataset = penstock.open(tmp_path)
    seen: list[int] = []
    skipped: list[int] = []
    steps = set()
    for rank in range(world):
        with penstock.Loader(
            dataset, 6, transform=SMALL, on_error="skip", error_budget=8, rank=rank, world=world
        ) as loader:
            batches = list(loader)
        steps.add(tuple(batch.step for batch in batches))
        for batch in batches:
            seen += batch.ids[: batch.size - batch.padding].tolist()
            skipped += batch.skipped
    assert len(steps) == 1, "all ranks have the same steps"
    assert sorted(seen) == [n for n in range(40) if n % 5]
    assert sorted(set(skipped)) == [n for n in range(40) if n % 5 == 0]
