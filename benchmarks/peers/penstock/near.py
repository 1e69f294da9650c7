"""The drop-in and torch's DataLoader on the same local Dataset, and what a trace of either costs.

``near.py PHOTOS OBJECTS --budget SECONDS``: both loaders live in one process and take turns, each time the other way round.
What is compared is the median over the pairs of (torch's seconds / ours), so that whatever slows the machine for a while slows
both; how sure it is is said with it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
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


def busy() -> float:
    """CPU seconds of this process and of all workers that are there, since they began."""
    spent = time.process_time()
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


@dataclass
class Pairs:
    """What each of two systems took, turn by turn."""

    first: list[float]
    second: list[float]
    cpu: tuple[float, float]

    @property
    def ratio(self) -> tuple[float, float, float, float]:
        """The median of first / second, how sure it is, and the quartiles."""
        ratios = [one / other for one, other in zip(self.first, self.second, strict=True)]
        low, middle, high = quantiles(ratios, n=4)
        # Of a median over n pairs, from the quartiles, as if they were normal.
        return middle, 1.25 * (high - low) / 1.35 / len(ratios) ** 0.5, low, high


def in_turns(first: Callable[[], Any], second: Callable[[], Any], batches: int, budget: float) -> Pairs:
    """Have two loaders take turns for ``budget`` seconds: epoch by epoch, or batch by batch of epochs of ``batches``.

    Batch by batch, two each to a pair, what slows the machine for a moment slows both, and a difference of a few thousandths
    shows. Workers run ahead: with them it is epoch by epoch, and ``batches`` is 0.
    """
    took: tuple[list[float], list[float]] = ([], [])
    cost = [0.0, 0.0]
    for maker in (first, second):  # starts workers and fills caches
        seconds(maker())
    turn, end = 0, time.perf_counter() + budget
    while time.perf_counter() < end or turn < 5:
        turn += 1
        if not batches:
            for which in (0, 1) if turn % 2 else (1, 0):
                before = busy()
                took[which].append(seconds((first, second)[which]()))
                cost[which] += busy() - before
            continue
        running = iter(first()), iter(second())
        for _ in range(batches // 2):
            spent = [0.0, 0.0]
            for which in (0, 1, 1, 0):  # who comes second finds other memory: both come second once
                before, start = time.process_time(), time.perf_counter()
                batch = next(running[which])
                spent[which] += time.perf_counter() - start
                cost[which] += time.process_time() - before
                del batch
            took[0].append(spent[0])
            took[1].append(spent[1])
    return Pairs(*took, (cost[0], cost[1]))


def compared(dataset: Any, workers: int, budget: float) -> dict[str, float]:
    """Rates and CPU of both, and the median of the ratios of their times with its quartiles."""
    more: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0, "shuffle": True}
    theirs, mine = (kind(dataset, BATCH, **more) for kind in (torch.utils.data.DataLoader, DataLoader))
    pairs = in_turns(lambda: theirs, lambda: mine, 0 if workers else len(dataset) // BATCH, budget)
    each = len(dataset) if workers else 2 * BATCH
    ratio, error, low, high = pairs.ratio
    count = len(pairs.first)
    found = {
        "torch": each / median(pairs.first),
        "drop-in": each / median(pairs.second),
        "cpu torch": 1e6 * pairs.cpu[0] / each / count,
        "cpu drop-in": 1e6 * pairs.cpu[1] / each / count,
    }
    print(
        f"  {type(dataset).__name__}, {workers} workers: {ratio:.4f} ± {error:.4f} over {count} pairs, quartiles "
        f"{low:.3f} {high:.3f}; CPU µs a sample {found['cpu torch']:.1f} torch, {found['cpu drop-in']:.1f} drop-in",
        file=sys.stderr,
        flush=True,
    )
    return {**found, "ratio": ratio, "error": error, "pairs": count, "low": low, "high": high}


def overhead(plain: Callable[[], Any], timed: Callable[[], Any], batches: int, budget: float) -> float:
    """What share of the time ``timed`` takes longer than ``plain``."""
    pairs = in_turns(timed, plain, batches, budget)
    ratio, error, low, high = pairs.ratio
    print(
        f"  trace: {100 * (ratio - 1):.2f}% ± {100 * error:.2f}, quartiles {100 * (low - 1):.2f} {100 * (high - 1):.2f}",
        file=sys.stderr,
        flush=True,
    )
    return ratio - 1


def traced(kind: Callable[..., Any], dataset: Any, workers: int, budget: float) -> float:
    """What share of an epoch a recording of all its steps costs."""
    more: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    recording = Recording()
    plain = kind(dataset, BATCH, **more)
    collate = recording.collate(torch.utils.data.default_collate)
    timed = kind(recording.dataset(dataset), BATCH, collate_fn=collate, **more)
    batches = 0 if workers else len(dataset) // BATCH
    share = overhead(lambda: plain, lambda: recording.steps(timed), batches, budget)
    assert len(recording.spans()) > len(dataset)
    return share


def traced_loader(photos: Path, budget: float) -> float:
    """What the trace that is always on costs the Loader: against one whose ring holds a single span."""
    data = penstock.open(str(photos))
    transform = [penstock.RandomResizedCrop(224)]
    with (
        penstock.Loader(data, BATCH, transform=transform, trace=1) as plain,
        penstock.Loader(data, BATCH, transform=transform) as timed,
    ):
        return overhead(lambda: plain, lambda: timed, 0, budget)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("photos", type=Path)
    parser.add_argument("objects", type=Path)
    parser.add_argument("--budget", type=float, default=15.0, help="seconds a case")
    parser.add_argument("--only", default="", help="a part of the names of the cases that are wanted")
    wanted = parser.parse_args()
    rows, files, photos = Rows(wanted.objects, 60_000), Files(wanted.objects), Photos(wanted.photos)
    cases = {
        f"{name}, {workers} workers": (dataset, workers)
        for name, dataset in (("rows in memory", rows), ("files of 110 KB", files), ("photos", photos))
        for workers in (0, 2)
    }
    chosen = {name: case for name, case in cases.items() if wanted.only in name}
    found = {name: compared(*case, wanted.budget) for name, case in chosen.items()}
    traces = {}
    if not wanted.only or wanted.only == "trace":
        theirs = torch.utils.data.DataLoader
        traces = {
            "torch's, photos": traced(theirs, photos, 0, wanted.budget),
            "torch's, photos, 2 workers": traced(theirs, photos, 2, wanted.budget),
            "torch's, files of 110 KB": traced(theirs, files, 0, wanted.budget),
            "the drop-in, photos": traced(DataLoader, photos, 0, wanted.budget),
            "the Loader, photos": traced_loader(wanted.photos, wanted.budget),
        }
    print(json.dumps({"cases": found, "trace": traces}), flush=True)


if __name__ == "__main__":
    main()
