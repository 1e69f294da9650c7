"""Functions of one's own behind the native operations: mixup on a batch, and a statistic of each sample.

python examples/custom_transform.py photos/
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

import penstock


def with_sharpness(sample: dict[str, Any]) -> dict[str, Any]:
    """Once a sample, in threads: NumPy arrays in and out."""
    grey = sample["image"].astype(np.float32).mean(axis=2)
    sharpness = np.abs(np.diff(grey, axis=0)).mean() + np.abs(np.diff(grey, axis=1)).mean()
    return {**sample, "sharpness": np.float32(sharpness)}


def mixup(fields: dict[str, Any]) -> dict[str, Any]:
    """Once a batch, ahead of the training step: tensors in and out."""
    images = fields["image"].permute(0, 3, 1, 2).float() / 255
    # From what is in the batch, so that a resumed run mixes the same way.
    generator = torch.Generator().manual_seed(int(fields["label"].sum()))
    other = torch.randperm(len(images), generator=generator)
    share = float(torch.rand((), generator=generator)) * 0.4
    return {
        **fields,
        "image": (1 - share) * images + share * images[other],
        "other": fields["label"][other],
        "share": torch.full((len(images),), share),
    }


def main() -> None:
    """Print what comes out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", help="what penstock.open takes, with labels")
    options = parser.parse_args()
    transform = [penstock.RandomResizedCrop(48), penstock.Flip(), penstock.PerSample(with_sharpness), mixup]
    with penstock.Loader(penstock.open(options.photos), 8, seed=7, transform=transform) as loader:
        for batch in loader:
            print(
                f"{batch}: sharpness {batch['sharpness'].mean():.2f}, mixed by {float(batch['share'][0]):.2f}"
            )


if __name__ == "__main__":
    main()
