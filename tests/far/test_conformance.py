"""The suite that ships passes on every kind of store, also over a wire with faults."""

from __future__ import annotations

import itertools
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.servers import S3, ServerMissing, Static, free_ports, nginx, slowwire

from penstock import _native
from penstock.sources.listing import StoreSpec
from penstock.testing import StoreSuite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NUMBERS = itertools.count(1)
FAULTS = {"reset": 0.02, "truncate": 0.02, "busy": "0.02:3:503", "stall": "0.005:1000", "seed": 7}


@contextmanager
def missing_is_skipped() -> Iterator[None]:
    try:
        yield
    except ServerMissing as missing:
        pytest.skip(str(missing))


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port that takes connections and never answers."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


class TestS3(StoreSuite):
    @pytest.fixture(autouse=True)
    def server(self, s3: S3) -> None:
        self.s3 = s3
        self.endpoint = s3.endpoint

    @contextmanager
    def store(self, objects: dict[str, bytes]) -> Iterator[Any]:
        root = f"s3://tests/conformance-{next(_NUMBERS)}"
        fill = _native.Store.object(root, self.s3.storage)
        for key, data in objects.items():
            fill.put(key, data)
        yield StoreSpec(root, {**self.s3.storage, "endpoint": self.endpoint})

    @contextmanager
    def stalled(self) -> Iterator[Any]:
        with deaf_port() as port:
            yield StoreSpec("s3://tests/x", {**self.s3.storage, "endpoint": f"http://127.0.0.1:{port}"})


class TestS3OverTLS(TestS3):
    @pytest.fixture(autouse=True)
    def server(self, s3: S3, certificates: tuple[Path, Path, Path]) -> None:
        self.s3 = s3
        self.endpoint = s3.tls_endpoint
        self.authority = str(certificates[0])

    @contextmanager
    def store(self, objects: dict[str, bytes]) -> Iterator[Any]:
        with super().store(objects) as spec:
            yield StoreSpec(spec.uri, {**spec.options, "ca_file": self.authority})


class TestS3OverABadWire(TestS3):
    @pytest.fixture(autouse=True)
    def server(self, s3: S3, tmp_path: Path) -> Iterator[None]:
        self.s3 = s3
        with missing_is_skipped(), slowwire(s3.port, folder=tmp_path, rtt_ms=2, **FAULTS) as wire:
            self.endpoint = wire.endpoint
            yield


class TestWeb(StoreSuite):
    """nginx, which lists its folders as JSON."""

    listing = "json"

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    @contextmanager
    def store(self, objects: dict[str, bytes]) -> Iterator[Any]:
        with self.served(objects) as server:
            yield f"{server.endpoint}/data"

    @contextmanager
    def served(self, objects: dict[str, bytes]) -> Iterator[Static]:
        root = self.path / "root"
        for key, data in objects.items():
            path = root / "data" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        with missing_is_skipped(), nginx(root, folder=self.path, listing=self.listing) as server:
            yield server

    @contextmanager
    def stalled(self) -> Iterator[Any]:
        with deaf_port() as port:
            yield f"http://127.0.0.1:{port}/x"


class TestWebPages(TestWeb):
    """The same with pages for people."""

    listing = "html"


class TestWebOverABadWire(TestWeb):
    @contextmanager
    def store(self, objects: dict[str, bytes]) -> Iterator[Any]:
        with (
            self.served(objects) as server,
            slowwire(server.port, folder=self.path, rtt_ms=2, **FAULTS) as wire,
        ):
            yield f"{wire.endpoint}/data"


def test_a_dead_store_is_an_error_soon(s3: S3) -> None:
    (port,) = free_ports(1)
    store = _native.Store.object("s3://tests/x", {**s3.storage, "endpoint": f"http://127.0.0.1:{port}"})
    with pytest.raises(ConnectionError, match=r"s3://tests/x: .*cannot be reached: .*9 attempts"):
        store.read("k", 0, 1, 30.0)


def test_ctrl_c_ends_a_call_that_waits(s3: S3) -> None:
    import os
    import signal
    import time

    with deaf_port() as port:
        store = _native.Store.object("s3://tests/x", {**s3.storage, "endpoint": f"http://127.0.0.1:{port}"})
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            store.read("k", 0, 1, 30.0)
        assert time.monotonic() - begun < 1.3
        timer.join()


def test_a_store_is_opened_anew_in_a_forked_child(s3: S3) -> None:
    import os

    store = _native.Store.object("s3://tests/fork", s3.storage)
    store.put("k", b"data")
    assert store.read("k") == b"data"
    child = os.fork()
    if child == 0:
        os._exit(0 if store.read("k", timeout=10.0) == b"data" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert store.read("k") == b"data"
