"""Training on a GPU from PSI, PNG, JPEG and WebP: the same model and crops, the images a second of each way in."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy as np

    from _results import Results

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Task:
    """``size`` of the model's input; ``resample``: a RandomResizedCrop rather than a crop; pictures of ``height`` × ``width``."""

    name: str
    height: int
    width: int
    size: int
    resample: bool
    batch: int
    pictures: int


LARGE = Task("768 of 1024x2048", 1024, 2048, 768, resample=False, batch=64, pictures=384)
SMALL = Task("224 of 375x500", 375, 500, 224, resample=True, batch=256, pictures=4096)


def write(task: Task, folder: Path, photographs: list[np.ndarray], formats: tuple[str, ...]) -> None:
    """The task's pictures in each format, in folders of two classes."""
    jobs = []
    for form in formats:
        for label in ("a", "b"):
            (folder / form / label).mkdir(parents=True, exist_ok=True)
    for first in range(0, task.pictures, 16):
        jobs.append((task, folder, first, formats))
    with ProcessPoolExecutor(os.cpu_count(), initializer=_give, initargs=(photographs,)) as pool:
        list(pool.map(_write_some, jobs))


_photographs: list[np.ndarray] = []


def _give(photographs: list[np.ndarray]) -> None:
    _photographs.extend(photographs)


def _write_some(job: tuple[Task, Path, int, tuple[str, ...]]) -> None:
    from PIL import Image

    from _psi_pictures import mosaics
    from penstock import psi

    task, folder, first, formats = job
    for number, array in enumerate(mosaics(_photographs, 16, task.width, task.height, seed=first + 2), first):
        picture = Image.fromarray(array)
        for form in formats:
            path = folder / form / "ab"[number % 2] / f"{number:05}.{form}"
            buffer = io.BytesIO()
            if form == "psi":
                buffer.write(psi.encode(array, threads=1))
            elif form == "png":
                picture.save(buffer, "png")
            elif form == "jpg":
                picture.save(buffer, "jpeg", quality=90)
            else:
                picture.save(buffer, "webp", lossless=True, method=0)
            path.write_bytes(buffer.getvalue())


class Files:
    """The pictures as a torch dataset: Pillow and torchvision's transforms, as most people have it."""

    def __init__(self, folder: Path, task: Task) -> None:
        from torchvision.transforms import v2

        self.paths = sorted(folder.glob("*/*"))
        crop = v2.RandomResizedCrop(task.size, antialias=True) if task.resample else v2.RandomCrop(task.size)
        self.transform = v2.Compose([crop, v2.RandomHorizontalFlip(), v2.PILToTensor()])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        path = self.paths[index]
        with Image.open(path) as picture:
            return self.transform(picture.convert("RGB")), int(path.parent.name == "b")


def from_torch(folder: Path, task: Task, cores: int) -> Iterator[tuple[Any, Any]]:
    """torch's DataLoader with a worker a core; bytes are normalised on the GPU."""
    import torch

    loader = torch.utils.data.DataLoader(
        Files(folder, task), task.batch, shuffle=True, num_workers=cores, pin_memory=True, drop_last=True,
        prefetch_factor=4, persistent_workers=True,
    )  # fmt: skip
    mean = torch.tensor(MEAN, device="cuda").view(1, 3, 1, 1) * 255
    std = torch.tensor(STD, device="cuda").view(1, 3, 1, 1) * 255
    while True:
        for images, labels in loader:
            moved = images.cuda(non_blocking=True)
            yield ((moved - mean) / std), labels.cuda(non_blocking=True)


def from_penstock(folder: Path, task: Task, cores: int) -> Iterator[tuple[Any, Any]]:
    """The Loader: PSI is decoded on the GPU, other formats by its workers."""
    import penstock

    crop: Any = penstock.RandomResizedCrop(task.size) if task.resample else penstock.RandomCrop(task.size)
    with penstock.Loader(
        penstock.open(folder), task.batch, drop_last=True, device="cuda", threads=cores,
        transform=[crop, penstock.Flip(), penstock.Normalize(MEAN, STD)],
    ) as loader:  # fmt: skip
        while True:
            for batch in loader:
                yield batch["image"], batch["label"]


def resident(task: Task) -> Iterator[tuple[Any, Any]]:
    """Made-up pictures that lie on the GPU: what the model can do with nothing to load."""
    import torch

    images = torch.randn(task.batch, 3, task.size, task.size, device="cuda")
    labels = torch.randint(0, 2, (task.batch,), device="cuda")
    while True:
        yield images, labels


STALL = 0.5
"""Seconds of one wait for a batch after which every thread's stack is printed."""
GROUP = 4
"""Steps between two looks at the clock, with everything on the device over."""


@dataclass
class Rate:
    """What one run gave."""

    images: float
    """A second."""
    warm_up: float
    """Seconds before the clock started: kernels compiled, workers started, an epoch's end passed."""
    waits: list[float]
    """Seconds that the host waited for each batch."""
    groups: list[float]
    """Seconds of each group of steps, to their end on the device."""

    def told(self) -> str:
        waits, groups = sorted(self.waits), sorted(self.groups)

        def at(values: list[float], share: float) -> str:
            return f"{1e3 * values[min(int(share * len(values)), len(values) - 1)]:.1f}"

        return (
            f"warm-up {self.warm_up:.1f} s; wait for a batch, ms: median {at(waits, 0.5)}, p95 {at(waits, 0.95)}, "
            f"p99 {at(waits, 0.99)}, most {at(waits, 1)}; {GROUP} steps, ms: median {at(groups, 0.5)}, most {at(groups, 1)}"
        )


def images_per_second(task: Task, batches: Iterator[tuple[Any, Any]], seconds: float) -> Rate:
    """ResNet-50 in bfloat16, channels last: measured after a warm-up of more than an epoch, to the end of the last step."""
    import faulthandler

    import torch
    import torchvision

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet50(num_classes=2).cuda().to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    waits: list[float] = []

    def step() -> None:
        start = time.perf_counter()
        faulthandler.dump_traceback_later(STALL)
        images, labels = next(batches)
        faulthandler.cancel_dump_traceback_later()
        waits.append(time.perf_counter() - start)
        images = images.to(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels.long())
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    start = time.perf_counter()
    while len(waits) < 12 or (
        len(waits) < task.pictures // task.batch + GROUP and time.perf_counter() - start < 20
    ):
        step()
    torch.cuda.synchronize()
    warm_up = time.perf_counter() - start
    print("-- warm --", file=sys.stderr, flush=True)
    waits.clear()
    groups: list[float] = []
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        before = time.perf_counter()
        for _ in range(GROUP):
            step()
        torch.cuda.synchronize()
        groups.append(time.perf_counter() - before)
    return Rate(len(waits) * task.batch / (time.perf_counter() - start), warm_up, waits, groups)


def training(
    results: Results, photographs: list[np.ndarray], task: Task, folder: Path, seconds: float
) -> None:
    """Measures one task with all cores and with four."""
    formats: tuple[str, ...] = ("psi", "png") if not task.resample else ("psi", "jpg", "webp")
    shutil.rmtree(folder, ignore_errors=True)
    start = time.perf_counter()
    write(task, folder, photographs, formats)
    print(
        f"{task.name}: {task.pictures} pictures in {', '.join(formats)} after {time.perf_counter() - start:.0f} s",
        flush=True,
    )
    for form in ("psi", "jpg") if task.resample else ("psi",):
        pack = [
            sys.executable,
            "-c",
            "from penstock.cli import main; main()",
            "pack",
            str(folder / form),
            str(folder / f"{form}.packed"),
        ]
        subprocess.run(pack, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    every = sorted(os.sched_getaffinity(0))
    ways: list[tuple[str, Callable[[int], Iterator[tuple[Any, Any]]]]] = [
        ("penstock, PSI", partial(from_penstock, folder / "psi.packed", task)),
        *((f"torch, {form}", partial(from_torch, folder / form, task)) for form in formats[1:]),
    ]
    if task.resample:
        ways.append(("penstock, jpg", partial(from_penstock, folder / "jpg.packed", task)))
    for cores in (len(every), 4):
        case = f"train {task.name}, {cores} cores"
        os.sched_setaffinity(0, set(every[:cores]))
        ceiling = images_per_second(task, resident(task), seconds).images
        results.row(case, "resident", "trained", ceiling, "images/s")
        rates: dict[str, float] = {}
        for name, way in ways:
            batches = way(cores)
            rate = images_per_second(task, batches, seconds)
            rates[name] = rate.images
            batches.close()  # type: ignore[attr-defined]
            results.row(case, name, "trained", rate.images, "images/s")
            results.row(case, name, "longest_wait", max(rate.waits), "s", note=rate.told())
            print(case, name, f"{rate.images:.0f} images/s of {ceiling:.0f}; {rate.told()}", flush=True)
            results.save()
        ours = rates["penstock, PSI"]
        if not task.resample:
            results.claim(f"{case}: PSI / resident", ours / ceiling, ">=", 0.97)
            results.claim(f"{case}: PSI / PNG through torch", ours / rates["torch, png"], ">=", 1.7)
        else:
            results.claim(f"{case}: PSI / JPEG through torch", ours / rates["torch, jpg"], ">=", 1.77)
            results.claim(f"{case}: PSI / WebP through torch", ours / rates["torch, webp"], ">=", 2.87)
            results.row(case, "penstock, PSI", "of_penstock_jpg", ours / rates["penstock, jpg"], "x")
    os.sched_setaffinity(0, set(every))
