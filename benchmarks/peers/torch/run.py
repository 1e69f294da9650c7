"""torch's DataLoader at its best settings: photos through Pillow or torchvision's decoder, packed rows, arrays.

Pillow crops and resizes the decoded picture itself; torchvision's decoder gives uint8 tensors that stay
channels-last in memory, which is what its antialiased resize is fastest on. Whether a sample is normalised by
itself in the worker or the batch at once in the trainer is a setting, because either can win. The epoch is
made long (permutation after permutation), so that no restart of an epoch counts against torch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from _peer import BATCH, MEAN, SMALL_BATCH, STD, Case, Setting, main, photo_paths
from PIL import Image
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import InterpolationMode, v2

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCHS = 10_000  # as one


class PillowPhotos(Dataset[Any]):
    def __init__(self, data: Path, *, per_sample: bool) -> None:
        self.paths, self.labels = photo_paths(data)
        steps: list[Any] = [
            v2.RandomResizedCrop(224, interpolation=InterpolationMode.BILINEAR, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
        ]
        if per_sample:
            steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        self.transform = v2.Compose(steps)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB")), self.labels[index]


class TorchvisionPhotos(Dataset[Any]):
    def __init__(self, data: Path, *, per_sample: bool) -> None:
        self.paths, self.labels = photo_paths(data)
        steps: list[Any] = [
            v2.RandomResizedCrop(224, interpolation=InterpolationMode.BILINEAR, antialias=True),
            v2.RandomHorizontalFlip(),
        ]
        if per_sample:
            steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        self.transform = v2.Compose(steps)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = decode_jpeg(read_file(self.paths[index]), mode=ImageReadMode.RGB)
        return self.transform(image), self.labels[index]


class Rows(Dataset[Any]):
    """Packed 3 KB samples under one memory map, a tensor a sample: what a torch user writes first."""

    def __init__(self, data: Path) -> None:
        self.rows = np.load(data / "rows.npy", mmap_mode="r")
        self.labels = np.load(data / "labels.npy")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.rows[index].copy()), int(self.labels[index])


class RowBatches(Rows):
    """The same with a whole batch gathered by one index: torch at its most skilful."""

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.rows[indices]), torch.from_numpy(self.labels[indices])


class TensorRows(Dataset[Any]):
    """The same, held in memory as one tensor and gathered by torch itself, without a memory map."""

    def __init__(self, data: Path) -> None:
        self.rows = torch.from_numpy(np.load(data / "rows.npy"))
        self.labels = torch.from_numpy(np.load(data / "labels.npy"))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rows[index], self.labels[index]


class ArrayFiles(Dataset[Any]):
    """One .npy file an array."""

    def __init__(self, data: Path) -> None:
        self.paths = sorted(str(path) for path in (data / "files").glob("*.npy"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.load(self.paths[index]))


class ArrayMap(Dataset[Any]):
    """All arrays in one .npy file under a memory map."""

    def __init__(self, data: Path) -> None:
        self.rows = np.load(data / "arrays.npy", mmap_mode="c")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.rows[index])


class ArrayMapBatches(ArrayMap):
    """The same with a whole batch gathered by one index."""

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.from_numpy(self.rows[indices])


def as_is(batch: Any) -> Any:
    return batch


def _loader(dataset: Dataset[Any], setting: Setting, batch: int, **more: Any) -> DataLoader[Any]:
    workers = setting["workers"]
    order = RandomSampler(dataset, num_samples=EPOCHS * len(dataset))  # type: ignore[arg-type]
    if workers:
        more |= {"prefetch_factor": setting.get("prefetch", 2), "persistent_workers": True}
    if setting.get("whole"):
        return DataLoader(
            dataset,
            sampler=BatchSampler(order, batch, drop_last=True),
            batch_size=None,
            num_workers=workers,
            **more,
        )
    return DataLoader(dataset, batch_size=batch, sampler=order, num_workers=workers, **more)


def _photos(kind: type[PillowPhotos | TorchvisionPhotos]) -> Any:
    def stream(data: Path, setting: Setting) -> Iterator[int]:
        per_sample = setting["normalise"] == "sample"
        mean = torch.tensor(MEAN).view(1, 3, 1, 1) * 255
        scale = 1 / (torch.tensor(STD).view(1, 3, 1, 1) * 255)
        for images, _labels in _loader(kind(data, per_sample=per_sample), setting, BATCH):
            ready = images if per_sample else (images.to(torch.float32) - mean).mul_(scale)
            assert ready.shape[1:] == (3, 224, 224) and ready.dtype == torch.float32
            yield len(ready)

    return stream


def _small(kind: type[Dataset[Any]]) -> Any:
    def stream(data: Path, setting: Setting) -> Iterator[int]:
        more = {"collate_fn": as_is} if kind is RowBatches else {}
        for images, _labels in _loader(kind(data), setting, setting.get("batch", SMALL_BATCH), **more):  # type: ignore[call-arg]
            assert images.shape[1:] == (32, 32, 3)
            yield len(images)

    return stream


def _arrays(kind: type[Dataset[Any]]) -> Any:
    def stream(data: Path, setting: Setting) -> Iterator[int]:
        more = {"collate_fn": as_is} if kind is ArrayMapBatches else {}
        for arrays in _loader(kind(data), setting, BATCH, **more):  # type: ignore[call-arg]
            assert arrays.shape[1:] == (3, 128, 128)
            yield len(arrays)

    return stream


def photo_settings() -> list[Setting]:
    plain = [
        {"workers": w, "prefetch": p, "normalise": "sample"}
        for w, p in ((2, 2), (3, 2), (4, 2), (2, 4), (3, 4))
    ]
    late = [{"workers": w, "prefetch": 2, "normalise": "batch"} for w in (1, 2, 3)]
    return plain + late


def plain_settings() -> list[Setting]:
    return [{"workers": 0}, *({"workers": w, "prefetch": p} for w in (1, 2, 3) for p in (2, 8))]


def whole_settings() -> list[Setting]:
    return [{"whole": True, **setting} for setting in plain_settings()]


if __name__ == "__main__":
    torch.set_num_threads(1)  # workers set this themselves; in the trainer a second thread would fight them
    main(
        {
            "photos": {
                "torch+pillow": Case(photo_settings, _photos(PillowPhotos)),
                "torch+torchvision": Case(photo_settings, _photos(TorchvisionPhotos)),
            },
            "small": {
                "torch": Case(plain_settings, _small(Rows)),
                "torch-getitems": Case(plain_settings, _small(RowBatches)),
                "torch-batched-tensor": Case(whole_settings, _small(TensorRows)),
            },
            "arrays": {
                "torch-files": Case(plain_settings, _arrays(ArrayFiles)),
                "torch-mmap": Case(plain_settings, _arrays(ArrayMap)),
                "torch-mmap-getitems": Case(plain_settings, _arrays(ArrayMapBatches)),
            },
        }
    )
