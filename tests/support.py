"""What several tests need: small real data, and eyes for leaks."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import numpy as np
from PIL import Image


def picture(number: int, size: tuple[int, int] = (48, 40)) -> Image.Image:
    """A smooth picture that differs for each number."""
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def our_threads() -> list[str]:
    """Names of this process's threads that penstock started, native ones included."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except OSError:  # ended meanwhile
            continue
    names += [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")]
    return [name for name in names if name.startswith("penstock")]
