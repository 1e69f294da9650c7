"""Train a small CNN on a folder of class folders.

python examples/train_cnn.py photos/ --epochs 5
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional

import penstock


def network(classes: int) -> nn.Module:
    """Three convolutions with strides, and a mean."""
    layers: list[nn.Module] = []
    before = 3
    for channels in (24, 48, 96):
        layers += [
            nn.Conv2d(before, channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        ]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def main() -> None:
    """Split, train, and say after each epoch how many unseen pictures are named rightly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", help="what penstock.open takes, with labels")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=64, help="pixels of a side")
    options = parser.parse_args()

    data = penstock.open(options.photos)
    train, val = data.split(train=0.8, val=0.2, by="label", seed=7)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = network(len(data.classes)).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3)

    learn = [
        penstock.RandomResizedCrop(options.size, scale=(0.5, 1.0)),
        penstock.Flip(),
        penstock.Normalize(),
    ]
    judge = [penstock.Resize(options.size), penstock.CenterCrop(options.size), penstock.Normalize()]
    with (
        penstock.Loader(train, options.batch_size, seed=7, transform=learn, device=device) as loader,
        penstock.Loader(val, options.batch_size, shuffle=False, transform=judge, device=device) as unseen,
    ):
        for epoch in range(options.epochs):
            model.train()
            total = 0.0
            for batch in loader:
                loss = functional.cross_entropy(model(batch["image"]), batch["label"])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += loss.item() * batch.size
            model.eval()
            with torch.no_grad():
                right = sum(
                    int((model(batch["image"]).argmax(1) == batch["label"]).sum()) for batch in unseen
                )
            print(
                f"epoch {epoch + 1}: loss {total / len(train):.3f}, {right} of {len(val)} unseen pictures named rightly"
            )


if __name__ == "__main__":
    main()
