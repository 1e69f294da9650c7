"""The data that the suites read, made once in ``benchmarks/data`` and kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from penstock.demo.pictures import make_folder
from penstock.pack import pack

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).resolve().parent / "data"
PHOTO_QUALITY = 95
"""Gives photos of 500 × 375 about 100 KB, as cameras' defaults do."""


def photos(count: int) -> Path:
    """A folder of class folders of photo-like JPEG pictures of 500 × 375, 85 to 110 KB on average."""
    return _whole(
        FOLDER / f"photos-{count}",
        lambda folder: make_folder(folder, count, quality=PHOTO_QUALITY),
    )


def rows(count: int) -> Path:
    """Samples of 32 × 32 × 3 bytes with a label: ``rows.npy`` and ``labels.npy``, and both in ``rows.npz``."""

    def make(folder: Path) -> None:
        draw = np.random.default_rng(1)
        images = draw.integers(0, 256, (count, 32, 32, 3), np.uint8)
        labels = draw.integers(0, 10, count)
        np.save(folder / "rows.npy", images)
        np.save(folder / "labels.npy", labels)
        np.savez(folder / "rows.npz", image=images, label=labels)

    return _whole(FOLDER / f"rows-{count}", make)


def arrays(count: int) -> Path:
    """Arrays of 3 × 128 × 128 float32: one ``arrays.npy``, and a file each in ``files/``."""

    def make(folder: Path) -> None:
        draw = np.random.default_rng(2)
        (folder / "files").mkdir()
        whole = np.lib.format.open_memmap(folder / "arrays.npy", "w+", np.float32, (count, 3, 128, 128))
        for number in range(count):
            whole[number] = draw.random((3, 128, 128), np.float32)
            np.save(folder / "files" / f"{number:06d}.npy", whole[number])
        whole.flush()

    return _whole(FOLDER / f"arrays-{count}", make)


def catalog(count: int) -> Path:
    """A packed set of `count` samples of 64 bytes with a label: a catalog with a row each."""

    def make(folder: Path) -> None:
        source = folder / "source.npz"
        np.savez(source, value=np.zeros((count, 16), np.float32), label=np.arange(count) % 1000)
        pack(str(source), folder / "packed")
        source.unlink()

    return _whole(FOLDER / f"catalog-{count}", make) / "packed"


def objects(count: int, size: int) -> Path:
    """A folder of `count` objects of `size` random bytes: ``00000.bin`` and on."""

    def make(folder: Path) -> None:
        draw = np.random.default_rng(3)
        for number in range(count):
            (folder / f"{number:05d}.bin").write_bytes(draw.bytes(size))

    return _whole(FOLDER / f"objects-{count}-{size}", make)


def _whole(folder: Path, make: Callable[[Path], object]) -> Path:
    """The folder, made under another name first, so that one that is there is complete."""
    if not folder.exists():
        unfinished = folder.with_name(folder.name + ".part")
        unfinished.mkdir(parents=True, exist_ok=True)
        print(f"making {folder} …", flush=True)
        make(unfinished)
        unfinished.rename(folder)
    return folder
