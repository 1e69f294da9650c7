"""Small real data that several tests read."""

from __future__ import annotations

import io
import signal
import tarfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image
from tests.support import encoded, picture

if TYPE_CHECKING:
    from pathlib import Path

# Whoever starts the tests in the background has Ctrl-C ignored, and every process that they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def picture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 JPEGs in three class folders, of several sizes."""
    root = tmp_path_factory.mktemp("pictures")
    for number in range(60):
        folder = root / ("ant", "bee", "cat")[number % 3]
        folder.mkdir(exist_ok=True)
        image = picture(number, (40 + number % 7, 36 + number % 5))
        (folder / f"{number:03}.jpg").write_bytes(encoded(image, "JPEG", quality=90))
    return root


@pytest.fixture(scope="session")
def array_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 arrays of one shape; array n is full of n."""
    root = tmp_path_factory.mktemp("arrays")
    for number in range(100):
        np.save(root / f"{number:03}.npy", np.full((4, 5), number, np.float32))
    return root


@pytest.fixture(scope="session")
def tar_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two WebDataset shards of ten samples: image, mask, class and text each."""
    root = tmp_path_factory.mktemp("tars")
    for shard in range(2):
        with tarfile.open(root / f"shard-{shard}.tar", "w") as tar:
            for number in range(shard * 10, shard * 10 + 10):
                image = picture(number)
                mask = Image.fromarray((np.asarray(image)[..., 0] > 127).astype(np.uint8) * 7)
                members = {
                    "jpg": encoded(image, "JPEG", quality=90),
                    "mask.png": encoded(mask, "PNG"),
                    "cls": str(number % 4).encode(),
                    "txt": ("word " * (number + 1)).encode(),
                }
                for extension, data in members.items():
                    info = tarfile.TarInfo(f"{number:04}.{extension}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return root
