"""The examples run, and do what they say."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from PIL import Image

EXAMPLES = Path(__file__).parent.parent / "examples"


def command(name: str, *arguments: object) -> list[str]:
    return [sys.executable, str(EXAMPLES / name), *map(str, arguments)]


def run(name: str, *arguments: object) -> str:
    done = subprocess.run(command(name, *arguments), capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    tested = set(re.findall(r'"(\w+\.py)"', Path(__file__).read_text(encoding="utf-8")))
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested


def test_train_cnn(picture_folder: Path) -> None:
    told = run("train_cnn.py", picture_folder, "--epochs", 2, "--size", 32)
    assert len(re.findall(r"epoch \d: loss \d+\.\d+, \d+ of 12 unseen", told)) == 2


def test_custom_transform(picture_folder: Path) -> None:
    told = run("custom_transform.py", picture_folder).splitlines()
    assert len(told) == 8
    assert all("sharpness" in line and "other" in line for line in told)


def test_masks(tmp_path: Path) -> None:
    told = run("masks.py", tmp_path / "discs", "--count", 60, "--picture", tmp_path / "discs.png")
    rates = [float(rate) for rate in re.findall(r"([\d.]+)% of pixels", told)]
    assert len(rates) == 3
    assert rates[-1] > 80
    with Image.open(tmp_path / "discs.png") as drawn:
        assert drawn.size == (8 * 48, 2 * 48)


def test_resume_after_a_kill(picture_folder: Path, tmp_path: Path) -> None:
    whole = run("resume.py", picture_folder, tmp_path / "whole", "--epochs", 2).splitlines()
    process = subprocess.Popen(
        command("resume.py", picture_folder, tmp_path / "killed", "--epochs", 2),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        for _ in range(5):
            process.stdout.readline()
    finally:
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
        process.stdout.close()
    rest = run("resume.py", picture_folder, tmp_path / "killed", "--epochs", 2).splitlines()
    assert rest[0].startswith("goes on at epoch 0, step")
    assert rest[1:] == whole[-len(rest) + 1 :], "the same losses, and the same weights at the end"
    assert "done already" in run("resume.py", picture_folder, tmp_path / "killed", "--epochs", 2)


def test_several_ranks_train_the_same_model(picture_folder: Path) -> None:
    def weights(count: int) -> set[str]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        told = subprocess.run(
            [
                sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), "--master-addr", "127.0.0.1",
                "--master-port", str(port), str(EXAMPLES / "several_ranks.py"), str(picture_folder),
            ],
            capture_output=True, text=True, timeout=110, check=False,
        )  # fmt: skip
        assert told.returncode == 0, told.stderr
        lines = re.findall(r"rank \d of \d: weights ([\d.]+)", told.stdout)
        assert len(lines) == count
        return {f"{float(line):.4f}" for line in lines}

    alone = weights(1)
    assert weights(3) == alone, "the global batches are the same, and so is what is learnt"


def test_object_store(picture_folder: Path, tmp_path: Path) -> None:
    # Any address that pack takes: tests/far has the same against real servers.
    told = run("object_store.py", picture_folder, tmp_path / "packed").splitlines()
    assert told[0].startswith("60 samples in 1 shards")
    assert len(told) == 1 + 4
    assert [int(re.findall(r"(\d+), 64, 64, 3", line)[0]) for line in told[1:]] == [16, 16, 16, 12]
