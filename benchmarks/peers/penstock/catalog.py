"""How long a set takes from its address to the first batch in a new process, and what it holds in memory then.

Imports are not counted, and what the first import leaves in memory is not either.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time

import psutil
import pyarrow as pa
import torch  # noqa: F401 -- a trainer has imported it before

import penstock


def resident() -> int:
    gc.collect()
    pa.default_memory_pool().release_unused()
    return int(psutil.Process().memory_info().rss)


def main(uri: str) -> None:
    before = resident()
    begun = time.perf_counter()
    data = penstock.open(uri)
    with penstock.Loader(data, 64, epochs=1, shuffle=True, seed=1) as loader:
        batch = next(iter(loader))
        seconds = time.perf_counter() - begun
        assert batch.size == 64
        del batch
        after = resident()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    line = {"first_batch_s": seconds, "bytes": after - before, "peak_bytes": peak - before, "rows": len(data)}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
