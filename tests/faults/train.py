"""A training that a test kills: a linear model, a checkpoint a step, and a line for each on standard output.

    python train.py DATA FOLDER EPOCHS [RANK WORLD]

The checkpoint holds the model, the loader's state and every id that was trained on, and replaces the last one as a whole.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

import penstock


def main() -> None:
    source, folder, epochs = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Linear(3 * 12 * 12, 3)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    transform = [
        penstock.RandomResizedCrop(12),
        penstock.Flip(),
        penstock.ColorJitter(0.2),
        penstock.Normalize(),
    ]
    checkpoint = folder / "checkpoint.pt"
    trained: list[tuple[int, int, list[int]]] = []
    with penstock.Loader(penstock.open(source), 8, epochs=epochs, seed=9, transform=transform) as loader:
        if checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            optimiser.load_state_dict(saved["optimiser"])
            loader.load_state_dict(json.loads(saved["loader"]))
            trained = json.loads(saved["trained"])
        print("ready", len(trained), flush=True)
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch["image"].flatten(1)), batch["label"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            trained.append((batch.epoch, batch.step, batch.ids.tolist()))
            state = {
                "model": model.state_dict(),
                "optimiser": optimiser.state_dict(),
                "loader": json.dumps(loader.state_dict()),
                "trained": json.dumps(trained),
            }
            torch.save(state, checkpoint.with_suffix(".new"))
            os.replace(checkpoint.with_suffix(".new"), checkpoint)
            print("step", batch.epoch, batch.step, flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
