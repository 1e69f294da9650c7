"""Train with a checkpoint that holds the weights and the loader's state; kill it whenever you like and start it again.

python examples/resume.py photos/ run/ --epochs 10
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import penstock


def save(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, loader: penstock.Loader) -> None:
    """Replaces the last checkpoint as a whole: a kill at any moment leaves the old one or the new one."""
    state = {
        "model": model.state_dict(),
        "optimiser": optimiser.state_dict(),
        "loader": json.dumps(loader.state_dict()),
    }
    new = path.with_suffix(".new")
    torch.save(state, new)
    new.replace(path)


def main() -> None:
    """Go on where the checkpoint stands, or begin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", help="what penstock.open takes, with labels")
    parser.add_argument("run", type=Path, help="the folder of the checkpoint")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--every", type=int, default=1, help="steps between checkpoints")
    options = parser.parse_args()

    torch.manual_seed(1)
    data = penstock.open(options.photos)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, len(data.classes)))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    options.run.mkdir(parents=True, exist_ok=True)
    checkpoint = options.run / "checkpoint.pt"
    transform = [penstock.RandomResizedCrop(16), penstock.Flip(), penstock.Normalize()]

    with penstock.Loader(data, 8, epochs=options.epochs, seed=7, transform=transform) as loader:
        if checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            optimiser.load_state_dict(saved["optimiser"])
            loader.load_state_dict(json.loads(saved["loader"]))
            state = loader.state_dict()
            print(f"goes on at epoch {state['epoch']}, step {state['step']}", flush=True)
            if state["epoch"] >= options.epochs:
                print("it was done already")
                return
        for number, batch in enumerate(loader, start=1):
            loss = functional.cross_entropy(model(batch["image"]), batch["label"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if number % options.every == 0 or number == len(loader):
                save(checkpoint, model, optimiser, loader)
                print(f"epoch {batch.epoch} step {batch.step} loss {loss.item():.6f} saved", flush=True)
        save(checkpoint, model, optimiser, loader)
    print(f"done: weights sum to {sum(float(p.double().sum()) for p in model.parameters()):.12f}")


if __name__ == "__main__":
    main()
