"""penstock's Loader, measured by the same meter as its opponents."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _peer import BATCH, SMALL_BATCH, Case, Setting, main

import penstock

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCHS = 10_000


def _batches(
    data: Path | str, setting: Setting, batch: int, shape: tuple[int, ...], **more: Any
) -> Iterator[int]:
    with penstock.Loader(
        penstock.open(str(data)), batch, epochs=EPOCHS, drop_last=True, **setting, **more
    ) as loader:
        field = loader.dataset.fields[0].name
        for step in loader:
            assert tuple(step[field].shape[1:]) == shape
            yield step.size
            del step  # so that its memory is free for the next one, as a trainer's is that goes on


def photos(data: Path, setting: Setting) -> Iterator[int]:
    transform = [penstock.RandomResizedCrop(224), penstock.Flip(), penstock.Normalize()]
    return _batches(data, setting, BATCH, (3, 224, 224), transform=transform, dtype="float32")


def small(data: Path, setting: Setting) -> Iterator[int]:
    rest = {name: value for name, value in setting.items() if name != "batch"}
    return _batches(data / "rows.npy", rest, setting.get("batch", SMALL_BATCH), (32, 32, 3))


def arrays(data: Path, setting: Setting) -> Iterator[int]:
    return _batches(data / "arrays.npy", setting, BATCH, (3, 128, 128))


def array_files(data: Path, setting: Setting) -> Iterator[int]:
    return _batches(data / "files", setting, BATCH, (3, 128, 128))


def settings() -> list[Setting]:
    return [{}]  # what a user gets who sets nothing


if __name__ == "__main__":
    main(
        {
            "photos": {"penstock": Case(settings, photos)},
            "small": {"penstock": Case(settings, small)},
            "arrays": {"penstock": Case(settings, arrays), "penstock-files": Case(settings, array_files)},
        }
    )
