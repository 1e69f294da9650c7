"""A bad wire, a bad disk behind it, a server that dies: every sample once, or an error that says what and where."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.servers import nginx, slowwire
from tests.support import our_threads
from tests.window.conftest import SAMPLES, Far, over_a_wire, skip_when_missing

import penstock
from penstock import Loader
from penstock.dataset import Dataset, StoreSpec
from penstock.errors import ChecksumError, ClosedError, DeadlineError, MissingError, StoreError
from penstock.pack import PackOptions, pack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def loader_threads() -> list[str]:
    """Threads of Loaders; other tests' drop-in loaders may keep an event loop."""
    return [name for name in our_threads() if not name.startswith("penstock-loop")]


@pytest.fixture(scope="session")
def packed_root(far_root: Path) -> Path:
    """The arrays packed, with checksums."""
    root = far_root.parent / "packed-root"
    pack(str(far_root / "bucket"), root / "bucket", PackOptions(shard_size=400_000))
    return root


def packed_over(root: Path, endpoint: str) -> Dataset:
    local = penstock.open(root / "bucket")
    return Dataset(local.catalog, StoreSpec(endpoint + "/bucket"))


@pytest.fixture
def packed(packed_root: Path, tmp_path: Path) -> Iterator[Far]:
    with over_a_wire(packed_root, tmp_path, rtt_ms=2, seed=11) as far:
        yield far


def whole(loader: Loader) -> list[int]:
    ids = []
    for batch in loader:
        (values,) = (np.asarray(value) for name, value in batch.items() if name == "array")
        np.testing.assert_array_equal(values[:, 0], values[:, -1])
        ids += values[:, 0].tolist()
    return ids


FAULTS: dict[str, dict[str, float | str]] = {
    "resets": {"reset": 0.1},
    "truncated bodies": {"truncate": 0.1},
    "503 in bursts": {"busy": "0.02:5:503"},
    "429": {"busy": "0.02:2:429"},
    "stalls": {"stall": "0.02:2000"},
    "other bytes": {"corrupt": 0.05},
    "all at once": {
        "reset": 0.02,
        "truncate": 0.02,
        "busy": "0.01:3:503",
        "corrupt": 0.02,
        "tail": "0.02:20",
    },
}


@pytest.mark.parametrize("order", ["strict", "arrival"])
@pytest.mark.parametrize("fault", FAULTS)
def test_through_a_bad_wire_each_sample_comes_once_and_right(packed: Far, fault: str, order: str) -> None:
    packed.wire.set(**FAULTS[fault])
    with Loader(packed.data, 16, order=order, arrays="numpy", timeout=60, epochs=2) as loader:
        assert sorted(whole(loader)) == sorted([*range(SAMPLES)] * 2)
        stats = loader.stats()
    packed.wire.set(reset=0, truncate=0, busy=0, stall=0, corrupt=0, tail=0)
    repaired = stats["fetch_retries"] + stats["fetch_hedges_won"] + stats["retries"]
    assert repaired > 0, "the wire did nothing bad"


def test_damage_that_stays_is_an_error_that_names_the_sample(packed: Far) -> None:
    packed.wire.set(corrupt=1)
    with (
        Loader(packed.data, 16, arrays="numpy", timeout=30) as loader,
        pytest.raises(ChecksumError, match=r"sample \d+ .*bucket.*crc32c") as caught,
    ):
        whole(loader)
    assert caught.value.id is not None
    assert caught.value.store is not None


def test_neighbours_in_a_shard_are_read_together(packed: Far) -> None:
    with Loader(packed.data, 50, shuffle=False, arrays="numpy") as loader:
        assert whole(loader) == list(range(SAMPLES))
        stats = loader.stats()
    assert stats["fetch_requests"] == SAMPLES
    assert packed.wire.stats()["requests"] < SAMPLES / 4


def test_a_missing_object_is_named_and_skipped_on_request(far_root: Path, tmp_path: Path) -> None:
    with over_a_wire(far_root, tmp_path, rtt_ms=1) as far:
        local = penstock.open(far_root / "bucket")
        elsewhere = Dataset(local.catalog, StoreSpec(far.wire.endpoint + "/buckett"))
        with Loader(elsewhere, 16, timeout=20) as loader, pytest.raises(MissingError, match=r"\.npy"):
            next(iter(loader))
        with Loader(elsewhere, 16, timeout=20, on_error="skip", error_budget=SAMPLES) as loader:
            assert sum(len(batch.skipped) for batch in loader) == SAMPLES


def test_a_server_that_is_killed_and_comes_back_is_waited_for(far_root: Path, tmp_path: Path) -> None:
    with (
        skip_when_missing(),
        nginx(far_root, folder=tmp_path) as server,
        slowwire(server.port, folder=tmp_path, rtt_ms=5, rate_mb=2) as wire,
    ):
        data = Dataset(penstock.open(far_root / "bucket").catalog, StoreSpec(wire.endpoint + "/bucket"))
        with Loader(data, 16, arrays="numpy", timeout=60, order="arrival") as loader:
            batches = iter(loader)
            ids = next(batches).ids.tolist()
            server.server.kill()
            threading.Timer(1.0, server.server.start).start()
            for batch in batches:
                ids += batch.ids.tolist()
            assert loader.stats()["fetch_retries"] > 0
    assert sorted(ids) == list(range(SAMPLES))


def test_a_server_that_stays_away_is_an_error_within_the_deadline(far_root: Path, tmp_path: Path) -> None:
    with skip_when_missing(), nginx(far_root, folder=tmp_path) as server:
        port = server.port
        data = Dataset(
            penstock.open(far_root / "bucket").catalog, StoreSpec(f"http://127.0.0.1:{port}/bucket")
        )
        with Loader(data, 16, arrays="numpy", timeout=3, window="1MiB") as loader:
            batches = iter(loader)
            next(batches)
            server.server.kill()
            begun = time.monotonic()
            with pytest.raises((StoreError, DeadlineError), match=f"127.0.0.1:{port}/bucket"):
                list(batches)
            assert time.monotonic() - begun < 10
    assert not loader_threads()


def test_a_silent_server_is_named_with_what_it_owes(far_root: Path, tmp_path: Path) -> None:
    with over_a_wire(far_root, tmp_path, rtt_ms=1, stall="1:60000") as far:
        with Loader(far.data, 16, timeout=1.5) as loader:
            with pytest.raises((DeadlineError, StoreError), match=r"127\.0\.0\.1.*\.npy|\.npy.*127\.0\.0\.1"):
                next(iter(loader))
            begun = time.monotonic()
        assert time.monotonic() - begun < 2, "the close waited for the silent server"
    assert not loader_threads()


def test_leaving_early_and_closing_end_everything_in_flight(far_root: Path, tmp_path: Path) -> None:
    with over_a_wire(far_root, tmp_path, rtt_ms=300) as far:
        loader = Loader(far.data, 16, arrays="numpy")
        batches = iter(loader)
        next(batches)
        begun = time.monotonic()
        loader.close()
        assert time.monotonic() - begun < 1
        with pytest.raises((ClosedError, StopIteration)):
            next(batches)
    assert not loader_threads()


def test_each_loop_left_early_is_followed_by_a_whole_epoch(far_root: Path, tmp_path: Path) -> None:
    with (
        over_a_wire(far_root, tmp_path, rtt_ms=5, tail="0.1:20") as far,
        Loader(far.data, 16, arrays="numpy", order="arrival") as loader,
    ):
        for _ in range(3):
            for number, _batch in enumerate(loader):
                if number == 3:
                    break
            ids: list[int] = []
            for batch in loader:
                np.testing.assert_array_equal(next(iter(batch.values()))[:, 5], batch.ids)
                ids += batch.ids.tolist()
            assert sorted(ids) == list(range(SAMPLES))


def test_a_forked_child_says_so_and_ends_at_once(far_root: Path, tmp_path: Path) -> None:
    with over_a_wire(far_root, tmp_path, rtt_ms=5) as far, Loader(far.data, 16, arrays="numpy") as loader:
        next(iter(loader))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                next(iter(loader))
            except ClosedError:
                loader.close()
                del loader
                code = 0
            finally:
                os._exit(code)
        begun = time.monotonic()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert time.monotonic() - begun < 3


def test_the_window_bounds_what_is_held(far_root: Path, tmp_path: Path) -> None:
    with over_a_wire(far_root, tmp_path, rtt_ms=1) as far:
        window = 8 << 20
        with Loader(far.data, 16, arrays="numpy", window=window) as loader:
            batches = iter(loader)
            next(batches)
            pipeline: Any = loader._feed._pipeline
            assert pipeline.open_steps * 16 * 8_000 <= window
            # The first batch, whose shape nobody knew, has room of its own.
            assert pipeline.mapped_bytes <= window + (4 << 20)
