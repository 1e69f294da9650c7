"""The same samples in the forms that some opponents need: ``convert.py OBJECTS FORM DEST COUNT SIZE``.

``tars``: shards of 64 samples for WebDataset. ``litdata``: chunks of 64 MB, LitData's usual. ``mds``: shards of 64 MB,
MosaicML's usual (67,108,864 bytes).
"""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

import numpy as np

SHARD = 64
"""Samples a tar: 7 MB, so that a wire of 100 MB/s is shared by several at once."""


def read(folder: Path, number: int) -> bytes:
    return (folder / f"{number:05d}.bin").read_bytes()


def tars(objects: Path, dest: Path, count: int) -> None:
    for first in range(0, count, SHARD):
        with tarfile.open(dest / f"{first // SHARD:05d}.tar", "w") as tar:
            for number in range(first, min(first + SHARD, count)):
                info = tarfile.TarInfo(f"{number:05d}.bin")
                data = read(objects, number)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


class Sample:
    """Can be sent to a worker process."""

    def __init__(self, objects: Path) -> None:
        self.objects = objects

    def __call__(self, number: int) -> np.ndarray:
        return np.frombuffer(read(self.objects, number), np.uint8)


def litdata(objects: Path, dest: Path, count: int) -> None:
    from litdata import optimize

    optimize(
        fn=Sample(objects),
        inputs=list(range(count)),
        output_dir=str(dest),
        chunk_bytes="64MB",
        num_workers=1,
        mode="overwrite",
    )


def mds(objects: Path, dest: Path, count: int, size: int) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(dest), columns={"x": f"ndarray:uint8:{size}"}, exist_ok=True) as out:
        for number in range(count):
            out.write({"x": np.frombuffer(read(objects, number), np.uint8)})


if __name__ == "__main__":
    source, form, target, samples, length = sys.argv[1:6]
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    if form == "tars":
        tars(Path(source), folder, int(samples))
    elif form == "litdata":
        litdata(Path(source), folder, int(samples))
    else:
        mds(Path(source), folder, int(samples), int(length))
    print('{"made": true}')
    sys.stdout.flush()
