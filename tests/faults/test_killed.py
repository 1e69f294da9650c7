"""A training that is killed with SIGKILL, again and again, ends with the weights of one that was left in peace."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

SCRIPT = Path(__file__).parent / "train.py"
EPOCHS = 3


def train(source: Path, folder: Path, *, kill_after: int | None) -> bool:
    """Trains until it is done, or until so many lines of it were read and it is killed; whether it got to its end."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(source), str(folder), str(EPOCHS)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        for number, line in enumerate(process.stdout):
            if line.startswith("done"):
                break
            if number == kill_after:
                process.kill()
                break
        code = process.wait(60)
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()
    assert code in (0, -signal.SIGKILL)
    return code == 0


def result(folder: Path) -> tuple[dict[str, torch.Tensor], list[tuple[int, int, list[int]]]]:
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    return saved["model"], json.loads(saved["trained"])


def test_killed_and_killed_again_it_trains_the_same_model(picture_folder: Path, tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    assert train(picture_folder, tmp_path / "whole", kill_after=None)
    kills = [
        4,
        0,
        7,
        1,
    ]  # lines after the start: within an epoch, at once, over an epoch's end, after one step
    for lines in kills:
        assert not train(picture_folder, tmp_path / "killed", kill_after=lines)
    assert train(picture_folder, tmp_path / "killed", kill_after=None)

    model, trained = result(tmp_path / "killed")
    expected, undisturbed = result(tmp_path / "whole")
    assert trained == undisturbed
    for epoch in range(EPOCHS):
        ids = [id for at, _, ids in trained if at == epoch for id in ids]
        assert sorted(ids) == list(range(60)), "each sample once, in every epoch"
    for name, value in expected.items():
        assert np.array_equal(model[name].numpy(), value.numpy()), f"{name} differs"
