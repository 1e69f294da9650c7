"""penstock far from its data: the Loader, the drop-in, and torch's DataLoader on the drop-in's very Dataset."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "far"))

import torch
from _meter import Place, System, main, more
from objects import Objects
from opened import opened

import penstock
from penstock.torch import DataLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Setting = dict[str, Any]


def loader(place: Place, setting: Setting) -> Iterator[int]:
    """Epochs of the Loader over the plain objects; nothing is tuned."""
    epochs = setting.get("epochs", 1000)
    source = place["packed"] + "/data" if setting.get("packed") else place["objects"]
    options = {name: setting[name] for name in ("order", "window") if name in setting}
    data = opened(place, source)

    def batches() -> Iterator[int]:
        reset_peak()
        before = memory("VmRSS")
        with penstock.Loader(data, place["batch"], epochs=epochs, drop_last=epochs > 1, **options) as steps:
            for batch in steps:
                assert batch["bin"].shape[1:] == (place["size"],)
                yield batch.size
                del batch
                more["growth_bytes"] = memory("VmHWM") - before
                more["slab_bytes"] = max(more.get("slab_bytes", 0), steps.stats()["memory_bytes"])

    return batches()


def memory(name: str) -> int:
    """Bytes that ``/proc/self/status`` says under `name`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"the kernel says nothing of {name}")


def reset_peak() -> None:
    """Forget the most memory that was used so far."""
    Path("/proc/self/clear_refs").write_text("5")


def _dataset(place: Place) -> Objects:
    return Objects(place["endpoint"], place["objects"], place["count"], place["size"])


def epochs_of(kind: Callable[..., Any]) -> Callable[[Place, Setting], Iterator[int]]:
    """Epochs of a DataLoader of that kind, in random order."""

    def stream(place: Place, setting: Setting) -> Iterator[int]:
        setting = {name: value for name, value in setting.items() if name != "rounds"}
        once, dataset = setting.pop("once", False), _dataset(place)
        if setting.get("in_order", True):
            setting["shuffle"] = True
        else:  # so many workers as an epoch has batches: no epoch's end shall keep them waiting
            setting["sampler"] = torch.utils.data.RandomSampler(dataset, num_samples=1000 * len(dataset))
        batches = kind(dataset, place["batch"], persistent_workers=True, **setting)
        for _ in range(1) if once else itertools.count():
            for batch in batches:
                assert batch.shape[1:] == (place["size"],)
                yield len(batch)
                del batch

    return stream


if __name__ == "__main__":
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0))))
    four = {"num_workers": 4}
    main(
        {
            "penstock": System(loader, [{"order": "strict"}]),
            "penstock-arrival": System(loader, [{"order": "arrival"}]),
            "drop-in": System(epochs_of(DataLoader), [four]),
            "torch": System(epochs_of(torch.utils.data.DataLoader), [{**four, "rounds": 4}]),
            "torch-unordered": System(
                epochs_of(torch.utils.data.DataLoader),
                [
                    {"num_workers": n, "rounds": n, "in_order": False, "prefetch_factor": p}
                    for n, p in ((64, 1), (96, 1), (32, 2))
                ],
            ),
        }
    )
