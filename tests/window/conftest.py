"""A folder of arrays behind nginx and a slow wire."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.servers import ServerMissing, Wire, nginx, slowwire

import penstock
from penstock.dataset import Dataset, StoreSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAMPLES = 400


@pytest.fixture(scope="session")
def far_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 arrays of 2,000 numbers in ``bucket``; array n is full of n."""
    root = tmp_path_factory.mktemp("far")
    (root / "bucket").mkdir()
    for number in range(SAMPLES):
        np.save(root / "bucket" / f"{number:03}.npy", np.full(2_000, number, np.int32))
    return root


class Far:
    """The arrays over a wire: ``data`` reads them there."""

    def __init__(self, root: Path, wire: Wire) -> None:
        self.wire = wire
        local = penstock.open(root / "bucket")
        self.data = Dataset(local.catalog, StoreSpec(wire.endpoint + "/bucket"))


@contextmanager
def skip_when_missing() -> Iterator[None]:
    """Skips the test, saying what to install, where a server is not there."""
    try:
        yield
    except ServerMissing as missing:
        pytest.skip(str(missing))


@contextmanager
def over_a_wire(root: Path, folder: Path, **settings: float | str) -> Iterator[Far]:
    """nginx behind a wire of these settings."""
    with (
        skip_when_missing(),
        nginx(root, folder=folder) as server,
        slowwire(server.port, folder=folder, **settings) as wire,
    ):
        yield Far(root, wire)


@pytest.fixture
def far(far_root: Path, tmp_path: Path) -> Iterator[Far]:
    """A wire of 5 ms on which every tenth request takes 100 ms, so that samples arrive out of order."""
    with over_a_wire(far_root, tmp_path, rtt_ms=5, tail="0.1:20", seed=3) as far:
        yield far
