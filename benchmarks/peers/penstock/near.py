"""The drop-in and torch's DataLoader on the same local Dataset, and what a trace of either costs.

``near.py PHOTOS OBJECTS --pairs N``: both loaders live in one process, and epochs of one and the other take turns, each time
the other way round. What is compared is the median over the pairs of (torch's seconds / ours), so that whatever slows the
machine for a while slows both.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from _peer import photo_paths
from PIL import Image

import penstock
from penstock.torch import DataLoader
from penstock.trace import Recording

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 64


class Rows(torch.utils.data.Dataset):
    """Light: a row of a mapped file."""

    def __init__(self, objects: Path, count: int) -> None:
        self.data = np.fromfile(objects / "00000.bin", np.uint8)[:98_304].reshape(-1, 3072)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.data[index % len(self.data)])


class Files(torch.utils.data.Dataset):
    """Light: a file of 110 KB, read whole."""

    def __init__(self, objects: Path) -> None:
        self.paths = sorted(str(path) for path in objects.glob("*.bin"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.fromfile(self.paths[index], np.uint8))


class Photos(torch.utils.data.Dataset):
    """Heavy: a photo, decoded and resized by Pillow."""

    def __init__(self, photos: Path) -> None:
        self.paths = photo_paths(photos)[0]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as picture:
            picture.draft("RGB", (448, 448))
            pixels = np.array(picture.convert("RGB").resize((224, 224), Image.Resampling.BILINEAR))
        return torch.from_numpy(pixels).permute(2, 0, 1)


def seconds(loader: Any) -> float:
    start = time.perf_counter()
    for batch in loader:
        del batch
    return time.perf_counter() - start


def compared(dataset: Any, workers: int, pairs: int) -> dict[str, float]:
    """Rates of both, and the median of the ratios."""
    more: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0, "shuffle": True}
    loaders = {
        "torch": torch.utils.data.DataLoader(dataset, BATCH, **more),
        "drop-in": DataLoader(dataset, BATCH, **more),
    }
    took: dict[str, list[float]] = {name: [] for name in loaders}
    for turn in range(pairs + 1):
        for name in list(loaders)[:: 1 if turn % 2 else -1]:
            spent = seconds(loaders[name])
            if turn:  # the first starts workers and fills caches
                took[name].append(spent)
    ratios = [theirs / mine for theirs, mine in zip(took["torch"], took["drop-in"], strict=True)]
    found = {name: len(dataset) / median(spent) for name, spent in took.items()}
    print(f"  {type(dataset).__name__}, {workers} workers: {median(ratios):.3f}", file=sys.stderr, flush=True)
    return {**found, "ratio": median(ratios)}


def traced(kind: Callable[..., Any], dataset: Any, workers: int, pairs: int) -> float:
    """What share of an epoch a recording of all its steps costs."""
    more: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    recording = Recording()
    plain = kind(dataset, BATCH, **more)
    collate = recording.collate(torch.utils.data.default_collate)
    timed = kind(recording.dataset(dataset), BATCH, collate_fn=collate, **more)
    shares = []
    for turn in range(pairs + 1):
        spent = {}
        for name in ("plain", "timed") if turn % 2 else ("timed", "plain"):
            spent[name] = seconds(plain if name == "plain" else recording.steps(timed))
        if turn:
            shares.append(spent["timed"] / spent["plain"] - 1)
    assert len(recording.spans()) > len(dataset)
    return median(shares)


def traced_loader(photos: Path, pairs: int) -> float:
    """What the trace that is always on costs the Loader: against one whose ring holds a single span."""
    data = penstock.open(str(photos))
    transform = [penstock.RandomResizedCrop(224)]
    shares = []
    with (
        penstock.Loader(data, BATCH, transform=transform, trace=1) as plain,
        penstock.Loader(data, BATCH, transform=transform) as timed,
    ):
        for turn in range(pairs + 1):
            spent = {}
            for name, loader in (("plain", plain), ("timed", timed))[:: 1 if turn % 2 else -1]:
                spent[name] = seconds(loader)
            if turn:
                shares.append(spent["timed"] / spent["plain"] - 1)
    return median(shares)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("photos", type=Path)
    parser.add_argument("objects", type=Path)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--only", default="", help="a part of the names of the cases that are wanted")
    wanted = parser.parse_args()
    rows, files, photos = Rows(wanted.objects, 60_000), Files(wanted.objects), Photos(wanted.photos)
    cases = {
        f"{name}, {workers} workers": (dataset, workers)
        for name, dataset in (("rows in memory", rows), ("files of 110 KB", files), ("photos", photos))
        for workers in (0, 2)
    }
    chosen = {name: case for name, case in cases.items() if wanted.only in name}
    found = {name: compared(*case, wanted.pairs) for name, case in chosen.items()}
    traces = {}
    if not wanted.only or wanted.only == "trace":
        theirs = torch.utils.data.DataLoader
        traces = {
            "torch's, photos": traced(theirs, photos, 0, wanted.pairs),
            "torch's, photos, 2 workers": traced(theirs, photos, 2, wanted.pairs),
            "torch's, files of 110 KB": traced(theirs, files, 0, wanted.pairs),
            "the drop-in, photos": traced(DataLoader, photos, 0, wanted.pairs),
            "the Loader, photos": traced_loader(wanted.photos, wanted.pairs),
        }
    print(json.dumps({"cases": found, "trace": traces}), flush=True)


if __name__ == "__main__":
    main()
