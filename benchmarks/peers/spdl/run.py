"""SPDL with its own decoder and threads: photos.

Each task decodes, crops, resizes and normalises one whole batch, which keeps the Python part of a sample
smallest; several tasks run at once in SPDL's thread pool. The crop is drawn from the size that the header
gives, as torchvision draws it, and FFmpeg's filter cuts and scales. SPDL's decoder is FFmpeg, and the libraries come from
PyAV's wheel: ``prepare`` gives them the names that SPDL looks for.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from typing import TYPE_CHECKING

import numpy as np
from _peer import BATCH, MEAN, STD, Case, Setting, main, photo_paths

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = Path(__file__).resolve().parent / "env" / "ffmpeg"


def prepare() -> None:
    """Start this program again with a library path on which SPDL finds FFmpeg."""
    if os.environ.get("LD_LIBRARY_PATH", "").startswith(str(NAMES)):
        return
    site = next(Path(folder) for folder in sys.path if folder.endswith("site-packages"))
    NAMES.mkdir(parents=True, exist_ok=True)
    for library in (site / "av.libs").glob("lib*.so.*"):
        plain = re.sub(r"-[0-9a-f]{8}\.so\.(\d+).*", r".so.\1", library.name)
        if not (NAMES / plain).exists():
            (NAMES / plain).symlink_to(library)
    os.environ["LD_LIBRARY_PATH"] = f"{NAMES}:{site / 'av.libs'}"
    os.execv(sys.executable, [sys.executable, *sys.argv])


def crop(rng: np.random.Generator, width: int, height: int) -> tuple[int, int, int, int]:
    """Draw a box as torchvision's RandomResizedCrop does."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            return w, h, int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1))
    side = min(width, height)
    return side, side, (width - side) // 2, (height - side) // 2


def stream(data: Path, setting: Setting) -> Iterator[int]:
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    paths, _labels = photo_paths(data)
    mean = np.array(MEAN, np.float32).reshape(1, 3, 1, 1) * 255
    scale = 1 / (np.array(STD, np.float32).reshape(1, 3, 1, 1) * 255)

    def batches() -> Iterator[tuple[int, list[str]]]:
        rng, step = np.random.default_rng(1), 0
        while True:
            order = rng.permutation(len(paths))
            for start in range(0, len(order) - BATCH + 1, BATCH):
                yield step, [paths[i] for i in order[start : start + BATCH]]
                step += 1

    def load(task: tuple[int, list[str]]) -> np.ndarray:
        step, names = task
        rng, frames = np.random.default_rng(step), []
        for name in names:
            packets = spdl.io.demux_image(name)
            w, h, x, y = crop(rng, packets.width, packets.height)
            flip = "hflip," if rng.random() < 0.5 else ""
            steps = f"crop={w}:{h}:{x}:{y},scale=224:224:flags={setting['scaler']},{flip}format=rgb24"
            frames.append(spdl.io.decode_packets(packets, filter_desc=steps))
        pixels = spdl.io.to_numpy(spdl.io.convert_frames(frames))
        ready = np.empty((len(names), 3, 224, 224), np.float32)
        np.subtract(pixels.transpose(0, 3, 1, 2), mean, out=ready)
        np.multiply(ready, scale, out=ready)
        return ready

    threads = setting["threads"]
    pipeline = (
        PipelineBuilder()
        .add_source(batches())
        .pipe(load, concurrency=threads)
        .add_sink(setting["buffer"])
        .build(num_threads=threads)
    )
    with pipeline.auto_stop():
        for ready in pipeline:
            assert ready.shape[1:] == (3, 224, 224)
            yield len(ready)


def settings() -> list[Setting]:
    return [
        {"threads": threads, "buffer": buffer, "scaler": "bilinear"}
        for threads, buffer in ((2, 2), (1, 2), (3, 2), (4, 2), (2, 4))
    ]


if __name__ == "__main__":
    prepare()
    main({"photos": {"spdl": Case(settings, stream)}})
