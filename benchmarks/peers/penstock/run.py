"""penstock's Loader, measured by the same meter as its opponents; and the plain copy that its arrays are held against."""

from __future__ import annotations

import mmap
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch  # noqa: F401 -- a trainer has imported it before its first batch
from _peer import BATCH, SMALL_BATCH, Case, Setting, main

import penstock

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCHS = 10_000
SLABS = 5
"""As many as a pipeline of two threads has under way, and the one that the trainer holds."""


def _batches(
    data: Path, setting: Setting, batch: int, field: str, shape: tuple[int, ...], **more: Any
) -> Iterator[int]:
    with penstock.Loader(
        penstock.open(str(data)), batch, epochs=EPOCHS, drop_last=True, **setting, **more
    ) as loader:
        for number, step in enumerate(loader):
            if number == FIRST:
                warm.append((loader, *_python_us(loader)))
            assert tuple(step[field].shape[1:]) == shape
            yield step.size
            del step  # so that its memory is free for the next one, as a trainer's is that goes on


FIRST = 4
"""Batches that load modules and fill caches, and say nothing of the others."""
warm: list[tuple[penstock.Loader, float, float]] = []


def _python_us(loader: penstock.Loader) -> tuple[float, float]:
    """CPU time of Python so far, and batches."""
    stats = loader.stats()
    return stats["python_us_per_batch"] * stats["batches"], stats["batches"]


def python_overhead() -> dict[str, float]:
    """What the Loader says of itself, beside the meter's figures."""
    if not warm:
        return {}
    loader, us_before, batches_before = warm[0]
    us, batches = _python_us(loader)
    return {"python_us_per_batch": (us - us_before) / max(batches - batches_before, 1)}


def photos(data: Path, setting: Setting) -> Iterator[int]:
    transform = [penstock.RandomResizedCrop(224), penstock.Flip(), penstock.Normalize()]
    return _batches(data, setting, BATCH, "image", (3, 224, 224), transform=transform, dtype="float32")


def small(data: Path, setting: Setting) -> Iterator[int]:
    return _batches(data / "rows.npz", setting, SMALL_BATCH, "image", (32, 32, 3))


def arrays(data: Path, setting: Setting) -> Iterator[int]:
    return _batches(data / "arrays.npy", setting, BATCH, "array", (3, 128, 128))


def array_files(data: Path, setting: Setting) -> Iterator[int]:
    return _batches(data / "files", setting, BATCH, "array", (3, 128, 128))


def _copies(path: Path, setting: Setting, batch: int) -> Iterator[int]:
    """Rows in random order into memory like the Loader's slabs, by as many threads, and nothing else.

    The data are in the page cache. Each thread fills whole batches; ``way`` is how a row is copied.
    """
    rows = np.load(path, mmap_mode="r")
    start, size = rows.offset, rows[0].nbytes
    file = os.open(path, os.O_RDONLY)
    slabs = []
    for _ in range(max(SLABS, setting["threads"])):
        memory = np.frombuffer(_slab(batch * size), np.uint8)
        slabs.append(memory[: batch * size].reshape(batch, size))
    flat = rows.reshape(len(rows), -1).view(np.uint8)

    def by_numpy(slab: np.ndarray, chosen: np.ndarray) -> None:
        np.take(flat, chosen, axis=0, out=slab, mode="clip")

    def by_memcpy(slab: np.ndarray, chosen: np.ndarray) -> None:
        for slot, row in zip(slab, chosen, strict=True):
            np.copyto(slot, flat[row])

    def by_preadv(slab: np.ndarray, chosen: np.ndarray) -> None:
        for slot, row in zip(slab, chosen.tolist(), strict=True):
            os.preadv(file, [slot], start + row * size)

    copy = {"take": by_numpy, "memcpy": by_memcpy, "preadv": by_preadv}[setting["way"]]
    draw = np.random.default_rng(1)
    with ThreadPoolExecutor(setting["threads"]) as pool:
        under_way: list[Any] = []
        number = 0
        while True:
            order = draw.permutation(len(rows))
            for first in range(0, len(order) - batch + 1, batch):
                # A slab is filled again when the batch that it held was taken.
                if len(under_way) == len(slabs):
                    under_way.pop(0).result()
                    yield batch
                slab = slabs[number % len(slabs)]
                under_way.append(pool.submit(copy, slab, order[first : first + batch]))
                number += 1


def _slab(size: int) -> mmap.mmap:
    file = os.memfd_create("slab")
    os.ftruncate(file, -(-size // 65536) * 65536)
    memory = mmap.mmap(file, 0)
    memory.madvise(mmap.MADV_HUGEPAGE)
    os.close(file)
    return memory


def copy_small(data: Path, setting: Setting) -> Iterator[int]:
    return _copies(data / "rows.npy", setting, SMALL_BATCH)


def copy_arrays(data: Path, setting: Setting) -> Iterator[int]:
    return _copies(data / "arrays.npy", setting, BATCH)


def settings() -> list[Setting]:
    return [{}]  # what a user gets who sets nothing


def copy_settings() -> list[Setting]:
    return [{"threads": threads, "way": way} for way in ("take", "memcpy", "preadv") for threads in (1, 2, 3)]


if __name__ == "__main__":
    main(
        {
            "photos": {"penstock": Case(settings, photos)},
            "small": {"penstock": Case(settings, small), "copy": Case(copy_settings, copy_small)},
            "arrays": {
                "penstock": Case(settings, arrays),
                "penstock-files": Case(settings, array_files),
                "copy": Case(copy_settings, copy_arrays),
            },
        },
        more=python_overhead,
    )
