"""Damaged tars, archives, arrays, tables and catalogs: whatever is opened, it is an error of penstock's or samples.

Case n of a source is made from the number n alone. ``PENSTOCK_FUZZ_SECONDS`` says how long each source is attacked (2),
``PENSTOCK_FUZZ_FIRST`` with which case it begins (0).
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import resource
import shutil
import time
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from tests.support import encoded, open_files, picture

import penstock
from penstock.errors import PenstockError
from penstock.pack import PackFormat, PackOptions, pack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECONDS = float(os.environ.get("PENSTOCK_FUZZ_SECONDS", "2"))
FIRST = int(os.environ.get("PENSTOCK_FUZZ_FIRST", "0"))
MOST_SECONDS = 10.0
MOST_MEMORY = 512 << 20

pytestmark = pytest.mark.timeout(SECONDS + 100)


def damaged(data: bytes, draw: random.Random) -> bytes:
    """A few bytes changed, cut out, doubled or filled; more often where the structure is: at the head and the tail."""
    content = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        if not content:
            return b""
        size = len(content)
        at = draw.choice(
            (draw.randrange(size), draw.randrange(min(size, 700)), size - 1 - draw.randrange(min(size, 700)))
        )
        length = min(draw.randrange(1, 60), size - at)
        match draw.randrange(8):
            case 0 | 1:
                content[at] ^= 1 << draw.randrange(8)
            case 2:
                content[at : at + length] = bytes([draw.choice((0, 0xFF, 0x30, 0x20))]) * length
            case 3:
                content[at : at + 4] = draw.choice((0, 1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)).to_bytes(
                    4, "little"
                )
            case 4:
                del content[at : at + length]
            case 5:
                content[at:at] = content[at : at + length]
            case 6:
                del content[at:]
            case _:
                if 0x30 <= content[at] <= 0x39:
                    content[at] = draw.choice(b"0123456789-9")
                else:
                    content[at] = draw.randrange(256)
    return bytes(content)


def repair_tar(data: bytes) -> bytes:
    """The checksum of every header made right again, so that damage gets past it."""
    content = bytearray(data)
    for at in range(0, len(content) - 511, 512):
        header = content[at : at + 512]
        if header[257:262] == b"ustar":
            header[148:156] = b" " * 8
            content[at + 148 : at + 156] = b"%06o\0 " % sum(header)
    return bytes(content)


def attack(
    folder: Path, files: dict[str, bytes], change: Callable[[str, bytes, random.Random], bytes]
) -> None:
    """Opens and loads what is in ``files`` with one of them changed, again and again."""
    end = time.monotonic() + SECONDS
    opened = refused = 0
    start = open_files()
    for number in itertools.count(FIRST):
        if time.monotonic() >= end:
            break
        draw = random.Random(number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        victim = draw.choice(sorted(files))
        for name, data in files.items():
            (folder / name).write_bytes(change(name, data, draw) if name == victim else data)
        before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        where = f"case {number} (PENSTOCK_FUZZ_FIRST={number}), {victim} damaged"
        try:
            load(folder)
            opened += 1
        except PenstockError as error:
            assert len(str(error)) > 10, where
            refused += 1
        except BaseException as error:
            error.add_note(where)
            raise
        assert time.monotonic() - begun < MOST_SECONDS, where
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < MOST_MEMORY >> 10, f"{where}: {grown >> 10} MiB"
    assert opened + refused >= 3
    gc.collect()
    assert open_files() <= start + 2, "files stay open"


def load(folder: Path) -> None:
    """An epoch over whatever it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows and files that do not match are told as warnings
        data = penstock.open(folder)
    options = {
        "on_error": "skip",
        "error_budget": 1e9,
        "timeout": MOST_SECONDS,
        "arrays": "numpy",
        "threads": 1,
    }
    with penstock.Loader(data, 8, max_bytes=64 << 20, max_pixels=1 << 22, **options) as loader:
        batches = list(loader)
    seen = [int(id) for batch in batches for id in (*batch.ids, *batch.skipped)]
    assert sorted(seen) == sorted(int(id) for id in data.catalog.ids()), "each sample once, or skipped once"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def test_tar_shards(tar_folder: Path, tmp_path: Path) -> None:
    files = {name: data for name, data in contents(tar_folder).items() if name.endswith(".tar")}

    def change(name: str, data: bytes, draw: random.Random) -> bytes:
        changed = damaged(data, draw)
        return repair_tar(changed) if draw.random() < 0.7 else changed

    attack(tmp_path / "tars", files, change)


def test_npz_archives(tmp_path: Path) -> None:
    files = {}
    for number in range(4):
        path = tmp_path / f"{number}.npz"
        save = np.savez if number % 2 else np.savez_compressed
        save(path, x=np.full((5, 3), number, np.float32), y=np.arange(number + 1))
        files[path.name] = path.read_bytes()
    attack(tmp_path / "archives", files, lambda name, data, draw: damaged(data, draw))


def test_npy_arrays(tmp_path: Path) -> None:
    files = {}
    for number in range(6):
        path = tmp_path / f"{number}.npy"
        np.save(
            path, np.asfortranarray(np.full((4, 3), number, [np.float32, np.int16, np.uint8][number % 3]))
        )
        files[path.name] = path.read_bytes()
    attack(tmp_path / "arrays", files, lambda name, data, draw: damaged(data, draw))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_tables_of_labels(tmp_path: Path, kind: str) -> None:
    frame = pd.DataFrame(
        {"file": [f"{n}.png" for n in range(6)], "label": list("abcabc"), "age": [1.5, 2, 3, 4, 5, 6]}
    )
    path = tmp_path / f"labels.{kind}"
    match kind:
        case "csv":
            frame.to_csv(path, index=False)
        case "jsonl":
            frame.to_json(path, orient="records", lines=True)
        case _:
            frame.to_parquet(path)
    files = {f"{n}.png": encoded(picture(n, (9, 7)), "PNG") for n in range(6)} | {
        path.name: path.read_bytes()
    }

    def change(name: str, data: bytes, draw: random.Random) -> bytes:
        return damaged(data, draw)

    attack(tmp_path / "labelled", files, change)


@pytest.mark.parametrize("format", [PackFormat.KEEP, PackFormat.RAW])
def test_packed_shards(tmp_path: Path, array_folder: Path, format: PackFormat) -> None:
    pack(str(array_folder), tmp_path / "packed", PackOptions(shard_size=4096, format=format))
    attack(tmp_path / "damaged", contents(tmp_path / "packed"), lambda name, data, draw: damaged(data, draw))


def test_states(array_folder: Path) -> None:
    """A saved state that was damaged is refused, or is that of some step."""
    end = time.monotonic() + SECONDS / 2
    with penstock.Loader(penstock.open(array_folder), 16) as loader:
        text = json.dumps(loader.state_dict()).encode()
        for number in itertools.count(FIRST):
            if time.monotonic() >= end:
                break
            try:
                state = json.loads(damaged(text, random.Random(number)))
            except ValueError:
                continue
            try:
                loader.load_state_dict(state)
            except PenstockError:
                continue
            assert loader.state_dict()["epoch"] >= 0
