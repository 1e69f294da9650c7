"""The demonstration: pictures, shards, a small network, figures."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import penstock
from penstock.demo.pictures import class_names, make_folder
from penstock.pack import PackOptions, pack
from penstock.progress import format_bytes, format_seconds

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.dataset import Dataset
    from penstock.loader import Loader

__all__ = ["Outcome", "demonstrate"]

_NEEDED = {"torch": "torch", "PIL": "pillow", "matplotlib": "matplotlib"}


@dataclass(frozen=True, slots=True)
class _Size:
    """How much of everything."""

    pictures: int
    epochs: int
    batch: int = 64
    crop: int = 96
    classes: int = 10


_FULL = _Size(pictures=2400, epochs=8)
_QUICK = _Size(pictures=320, epochs=2, batch=32, crop=64)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the training measured."""

    images: int
    seconds: float
    waited_seconds: float
    accuracy: float
    """Share of the validation pictures that were named rightly, after the last epoch."""

    @property
    def images_per_second(self) -> float:
        """Training images over the time of the training loop, steps included."""
        return self.images / max(self.seconds, 1e-9)

    @property
    def waited_share(self) -> float:
        """Share of the training loop that the trainer spent waiting for a batch."""
        return self.waited_seconds / max(self.seconds, 1e-9)


def demonstrate(*, quick: bool, out: Path, console: Console | None = None) -> Outcome:
    """Run the demonstration in the folder `out` and return what it measured."""
    _check_installed()
    console = console or Console()
    size = _QUICK if quick else _FULL
    begun = time.perf_counter()
    shards = _prepare(size, out, console)
    data = penstock.open(str(shards))
    train, val = data.split(train=0.85, val=0.15, by="label", seed=7)
    console.print(f"[bold]split[/]    {len(train):,} pictures to train on, {len(val):,} to judge by")
    outcome = _train(size, train, val, out / "demo.png", console)
    chance = 1 / size.classes
    console.print(
        f"\n[bold green]{outcome.images_per_second:,.0f} images/s[/] into the training step; the trainer waited "
        f"[bold]{outcome.waited_share:.1%}[/] of the time; {outcome.accuracy:.0%} of unseen pictures named rightly "
        f"(chance: {chance:.0%})"
    )
    console.print(
        f"[dim]picture:[/] {out / 'demo.png'}   [dim]all of it took[/] {format_seconds(time.perf_counter() - begun)}"
    )
    return outcome


def _check_installed() -> None:
    missing = [install for module, install in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise ModuleNotFoundError(
            f"the demonstration needs {' and '.join(missing)}: pip install {' '.join(missing)}"
        )


def _prepare(size: _Size, out: Path, console: Console) -> Path:
    """Make the pictures and pack them, as far as that was not done before; give the folder of shards."""
    pictures = out / f"pictures-{size.pictures}"
    with _bar(console) as bar:
        task = bar.add_task("[bold]make[/]    ", total=size.pictures, note="labelled pictures, from a seed")
        make_folder(
            pictures, size.pictures, classes=size.classes, progress=lambda done: bar.advance(task, done)
        )
    shards = out / f"shards-{size.pictures}"
    with console.status("packing into tar shards"):
        packed = pack(str(pictures), shards, PackOptions(shard_size=32 << 20))
    speed = "were there already" if packed.was_complete else f"packed in {format_seconds(packed.seconds)}"
    console.print(
        f"[bold]pack[/]     {packed.samples:,} pictures, {format_bytes(packed.bytes)} in {packed.shards} shards with a "
        f"catalog, {speed}"
    )
    return shards


def _train(size: _Size, train: Dataset, val: Dataset, picture: Path, console: Console) -> Outcome:
    import torch
    from torch.nn import functional

    from penstock.demo.figure import draw

    torch.manual_seed(7)
    network = _network(size.classes)
    optimiser = torch.optim.AdamW(network.parameters(), lr=4e-3, weight_decay=0.02)
    transform = [
        penstock.RandomResizedCrop(size.crop, scale=(0.5, 1.0)),
        penstock.Flip(),
        penstock.Normalize(),
    ]
    shown: Any = None
    with penstock.Loader(
        train, size.batch, epochs=size.epochs, seed=7, drop_last=True, transform=transform, dtype="float32"
    ) as loader:
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 8e-3, total_steps=len(loader))
        images, start = 0, time.perf_counter()
        with _bar(console) as bar:
            task = bar.add_task("[bold]train[/]   ", total=len(loader), note="")
            for step, batch in enumerate(loader):
                loss = functional.cross_entropy(network(batch["image"]), batch["label"])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
                images += batch.size
                shown = shown if shown is not None else batch
                waited = loader.stats()["wait_seconds"]
                seconds = time.perf_counter() - start
                note = f"epoch {batch.epoch + 1}/{size.epochs}  loss {loss.item():.2f}  {images / seconds:,.0f} images/s"
                bar.update(task, completed=step + 1, note=f"{note}  waited {waited / seconds:.0%}")
            del batch
        outcome = Outcome(
            images=images,
            seconds=time.perf_counter() - start,
            waited_seconds=loader.stats()["wait_seconds"],
            accuracy=_accuracy(network, val, size),
        )
        names = sorted(class_names(size.classes))
        draw(picture, shown, [names[int(label)] for label in shown["label"]], loader.trace.spans(), outcome)
        _keep_trace(loader, picture)
    return outcome


def _keep_trace(loader: Loader, picture: Path) -> None:
    loader.trace.save(picture.with_name("trace.json"))


def _accuracy(network: Any, val: Dataset, size: _Size) -> float:
    import torch

    network.eval()
    right = 0
    transform = [penstock.Resize(size.crop), penstock.CenterCrop(size.crop), penstock.Normalize()]
    with (
        penstock.Loader(val, size.batch, shuffle=False, transform=transform, dtype="float32") as loader,
        torch.no_grad(),
    ):
        for batch in loader:
            right += int((network(batch["image"]).argmax(1) == batch["label"]).sum())
    return right / max(len(val), 1)


def _network(classes: int) -> Any:
    """Four convolutions with strides and a mean: small enough for two cores, large enough to learn this."""
    from torch import nn

    layers: list[nn.Module] = []
    before = 3
    for channels in (24, 48, 96, 128):
        layers += [
            nn.Conv2d(before, channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        ]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(compact=True),
        console=console,
    )
