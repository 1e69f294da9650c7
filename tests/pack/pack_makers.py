"""Small data sets on the disk, made from seeds."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

FIXTURE_BYTES = 4000


def photo_folder(root: Path, *, classes: int = 3, each: int = 20, seed: int = 0) -> Path:
    """Class folders of files that end in .jpg; packing copies them and never decodes."""
    rng = np.random.default_rng(seed)
    for number in range(classes):
        folder = root / f"class-{number}"
        folder.mkdir(parents=True)
        for at in range(each):
            (folder / f"{at:04d}.jpg").write_bytes(rng.bytes(int(rng.integers(1, 2 * FIXTURE_BYTES))))
    return root


def array_folder(root: Path, *, count: int = 30, shape: tuple[int, ...] = (3, 5), seed: int = 0) -> Path:
    """A folder of .npy files of one shape."""
    rng = np.random.default_rng(seed)
    root.mkdir(parents=True)
    for at in range(count):
        np.save(root / f"{at:04d}.npy", rng.standard_normal(shape).astype(np.float32))
    return root


def tree(root: Path) -> dict[str, str]:
    """Every file below ``root`` and a digest of its bytes."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def penstock(*arguments: object) -> list[str]:
    """The command line that runs ``penstock`` in a process of its own."""
    return [sys.executable, "-c", "from penstock.cli import main; main()", *map(str, arguments)]


def run_penstock(*arguments: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run ``penstock`` to its end."""
    return subprocess.run(penstock(*arguments), capture_output=True, text=True, timeout=timeout, check=False)
