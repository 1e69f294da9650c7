"""The cache on disk: fewer reads, never other bytes, never more than its cap, whatever is killed or damaged."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.window.conftest import SAMPLES, Far, over_a_wire

import penstock
from penstock import Cache, Loader


@pytest.fixture
def far(far_root: Path, tmp_path: Path) -> Any:
    with over_a_wire(far_root, tmp_path, rtt_ms=1) as far:
        yield far


def check(batches: Any) -> list[int]:
    ids = []
    for batch in batches:
        (values,) = batch.values()
        np.testing.assert_array_equal(np.asarray(values)[:, -1], batch.ids)
        ids += batch.ids.tolist()
    return ids


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.segment"))


def test_the_second_epoch_and_the_next_run_read_nothing_from_the_store(far: Far, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", "64MiB")
    with Loader(far.data, 32, cache=cache, arrays="numpy") as loader:
        for _ in range(2):
            assert sorted(check(loader)) == list(range(SAMPLES))
        stats = loader.stats()
    assert far.wire.stats()["requests"] <= 1.02 * SAMPLES
    assert (stats["cache_stored"], stats["cache_hits"]) == (SAMPLES, SAMPLES)
    far.wire.clear()
    with Loader(far.data, 32, cache=cache, order="arrival", arrays="numpy") as loader:
        assert sorted(check(loader)) == list(range(SAMPLES))
    assert far.wire.stats()["requests"] == 0


def test_a_cache_smaller_than_the_data_keeps_what_fits_and_hits_as_much(far: Far, tmp_path: Path) -> None:
    cap = 1 << 20  # of 3.2 MB
    with Loader(far.data, 32, cache=Cache(tmp_path / "cache", cap), arrays="numpy") as loader:
        for _ in range(3):
            assert sorted(check(loader)) == list(range(SAMPLES))
        stats = loader.stats()
    assert on_disk(tmp_path / "cache") <= cap
    # No cache of this size can save more: each epoch reads each sample once.
    assert stats["cache_hits"] == 2 * stats["cache_stored"]
    assert stats["cache_stored"] >= 0.95 * cap / (8_128 + 40)


def test_damaged_entries_are_fetched_again_and_never_handed_out(far: Far, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", "64MiB")
    with Loader(far.data, 32, cache=cache, arrays="numpy") as loader:
        check(loader)
    segment = min((tmp_path / "cache").rglob("*.segment"))
    with segment.open("r+b") as file:
        for number in range(10):
            file.seek((8_128 + 40) * number * 7 + 4_000)
            file.write(b"\xff\xfe\xfd")
    far.wire.clear()
    with Loader(far.data, 32, cache=cache, arrays="numpy") as loader:
        assert sorted(check(loader)) == list(range(SAMPLES))
        assert loader.stats()["cache_damaged"] == 10
    assert far.wire.stats()["requests"] >= 10


RUN = """
import sys
from pathlib import Path
import penstock
from penstock.dataset import Dataset, StoreSpec

root, endpoint, cache, batches = sys.argv[1:]
data = Dataset(penstock.open(root).catalog, StoreSpec(endpoint + "/bucket"))
with penstock.Loader(data, 20, seed=int(batches), arrays="numpy", cache=penstock.Cache(cache, "3MiB")) as loader:
    for batch in loader:
        (values,) = batch.values()
        assert (values[:, -1] == batch.ids).all()
        print(batch.step, flush=True)
"""


def run(far_root: Path, far: Far, cache: Path, seed: int) -> subprocess.Popen[str]:
    arguments = [str(far_root / "bucket"), far.wire.endpoint, str(cache), str(seed)]
    command = [sys.executable, "-c", textwrap.dedent(RUN), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)


def test_two_processes_share_a_cache_and_one_is_killed(far: Far, far_root: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with run(far_root, far, cache, 1) as one, run(far_root, far, cache, 2) as two:
        assert one.stdout is not None
        assert len(list(itertools.islice(one.stdout, 4))) == 4
        one.send_signal(signal.SIGKILL)
        two.communicate(timeout=60)
    assert two.returncode == 0
    assert on_disk(cache) <= 3 << 20
    far.wire.clear()
    # Whoever comes next finds whole samples only, and goes on filling.
    with Loader(far.data, 20, cache=Cache(cache, "3MiB"), arrays="numpy") as loader:
        for _ in range(2):
            assert sorted(check(loader)) == list(range(SAMPLES))
        stats = loader.stats()
    assert stats["cache_damaged"] == 0
    assert stats["cache_hits"] > SAMPLES
    assert on_disk(cache) <= 3 << 20


def test_a_disk_that_cannot_be_written_ends_the_caching_and_nothing_else(far: Far, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with Loader(far.data, 32, cache=Cache(cache, "64MiB"), arrays="numpy") as loader:
        # A folder in the way of the lock: no segment can be made.
        (cache / "lock").mkdir(parents=True)
        assert sorted(check(loader)) == list(range(SAMPLES))
        assert loader.stats()["cache_failed"] >= 1


def test_the_usual_place_and_a_size_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_CACHE", raising=False)
    cache = Cache.of("2GiB")
    assert (Path(cache.path), cache.bytes) == (tmp_path / "penstock" / "samples", 2 << 30)
    with pytest.raises(ValueError, match="lots"):
        penstock.Cache("x", "lots").bytes  # noqa: B018 - it is the property that checks
