"""Images with masks: one crop, one flip for both. Makes a small set of discs, trains a network to find them, draws a batch.

python examples/masks.py discs/ --picture discs.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

import penstock


def make_discs(folder: Path, count: int) -> None:
    """`0001.png` and `0001.mask.png`: one sample of two fields."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, columns = np.mgrid[:64, :64]
    for number in range(count):
        rng = np.random.default_rng(number)
        y, x, radius = rng.integers(12, 52), rng.integers(12, 52), rng.integers(6, 14)
        mask = (rows - y) ** 2 + (columns - x) ** 2 < radius**2
        picture = rng.integers(0, 120, (64, 64, 3)) + np.where(mask[..., None], rng.integers(60, 130, 3), 0)
        Image.fromarray(picture.astype(np.uint8)).save(folder / f"{number:04}.png")
        Image.fromarray(mask.astype(np.uint8)).save(folder / f"{number:04}.mask.png")


def draw(batch: penstock.Batch, path: Path) -> None:
    """Images above, masks below."""
    images = (batch["image"] * 0.25 + 0.5).clamp(0, 1).permute(0, 2, 3, 1).numpy()
    masks = np.repeat((batch["mask"] == 1).numpy()[..., None], 3, axis=3)
    rows = [np.concatenate(list(part[:8]), axis=1) for part in (images, masks.astype(np.float32))]
    Image.fromarray((np.concatenate(rows) * 255).astype(np.uint8)).save(path)


def main() -> None:
    """Train on crops; pixels that padding made are marked 255 and not learnt from."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the discs are, or will be")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    if not options.folder.exists():
        make_discs(options.folder, options.count)
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 2, 1),
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    transform = [
        penstock.RandomCrop(48, padding=4, mask_fill=255),
        penstock.Flip(),
        penstock.ColorJitter(brightness=0.2),
        penstock.Normalize(mean=0.5, std=0.25),
    ]
    with penstock.Loader(penstock.open(options.folder), 20, seed=7, transform=transform) as loader:
        for epoch in range(options.epochs):
            right = known = 0
            for batch in loader:
                scores, mask = model(batch["image"]), batch["mask"].long()
                loss = functional.cross_entropy(scores, mask, ignore_index=255)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                right += int((scores.argmax(1) == mask).sum())
                known += int((mask != 255).sum())
            print(f"epoch {epoch + 1}: {right / known:.1%} of pixels named rightly")
    if options.picture:
        draw(batch, options.picture)
        print(f"wrote {options.picture}")


if __name__ == "__main__":
    main()
