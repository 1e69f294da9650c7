"""The servers that tests of far storage rely on do what they say, and leave nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from servers import (
    Server,
    ServerFailed,
    ServerMissing,
    free_ports,
    nginx,
    seaweed,
    slowwire,
)
from servers.process import POLL, group_lives

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def skip_when_missing() -> Iterator[None]:
    try:
        yield
    except ServerMissing as missing:
        pytest.skip(str(missing))


def get(url: str, **headers: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20.0) as answer:
        body: bytes = answer.read()
    return body


def refusal(url: str) -> int:
    """The status that the server refuses with; the answer holds the connection until it is closed."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(url)
    refused.value.close()
    return refused.value.code


def wait_until_gone(group: int, patience: float = 20.0) -> None:
    deadline = time.monotonic() + patience
    while group_lives(group):
        assert time.monotonic() < deadline, f"a process of group {group} still lives"
        time.sleep(POLL)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "bucket" / "sub").mkdir(parents=True)
    for number in range(1, 41):
        (root / "bucket" / "sub" / f"{number}").write_bytes(bytes([number]) * 20_000)
    return root


def test_nginx_behind_a_wire_gives_ranges_and_listings(files: Path, tmp_path: Path) -> None:
    with (
        skip_when_missing(),
        nginx(files, folder=tmp_path, buckets=("bucket",)) as server,
        slowwire(server.port, folder=tmp_path, rtt_ms=5) as wire,
    ):
        assert get(f"{wire.endpoint}/bucket/sub/7", Range="bytes=5-9") == bytes([7]) * 5
        listing = get(f"{wire.endpoint}/bucket?list-type=2&prefix=").decode()
        assert listing.count("<Key>") == 40
        started = time.perf_counter()
        get(f"{wire.endpoint}/bucket/sub/1")
        # One round trip for the handshake and one for the request.
        assert time.perf_counter() - started >= 0.0099
        stats = wire.stats()
        assert stats["requests"] == 3
        assert stats["bytes_down"] > 20_000


def test_the_wire_can_be_changed_while_it_runs(files: Path, tmp_path: Path) -> None:
    with (
        skip_when_missing(),
        nginx(files, folder=tmp_path) as server,
        slowwire(server.port, folder=tmp_path) as wire,
    ):
        url = f"{wire.endpoint}/bucket/sub/1"
        assert len(get(url)) == 20_000
        wire.set(busy="1:1:503")
        assert refusal(url) == 503
        wire.set(busy="0", truncate=1)
        with pytest.raises(Exception, match="IncompleteRead"):
            get(url)
        wire.set(truncate=0)
        assert len(get(url)) == 20_000
        assert wire.stats()["truncate"] == 1
        wire.clear()
        assert wire.stats()["requests"] == 0


def test_a_server_can_be_killed_and_started_again(files: Path, tmp_path: Path) -> None:
    with skip_when_missing(), nginx(files, folder=tmp_path) as server:
        url = f"{server.endpoint}/bucket/sub/1"
        first = server.server.pid
        server.server.kill()
        with pytest.raises(OSError, match="refused"):
            get(url)
        assert not group_lives(first)
        server.server.start()
        assert len(get(url)) == 20_000


def test_seaweed_takes_and_gives_objects(tmp_path: Path) -> None:
    with skip_when_missing(), seaweed(folder=tmp_path) as s3:
        assert refusal(f"{s3.endpoint}/private/key") == 403


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('the reason')"]
    server = Server("doomed", command, log=tmp_path / "log", ready=lambda: False)
    with pytest.raises(ServerFailed, match=r"(?s)doomed ended with 1.*the reason"):
        server.start()
    idle = [sys.executable, "-c", "import signal; signal.pause()"]
    server = Server("idle", idle, log=tmp_path / "log2", ready=lambda: False, patience=0.5)
    with pytest.raises(ServerFailed, match="does not serve after"):
        server.start()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_test_leaves_no_server(tmp_path: Path, how: signal.Signals) -> None:
    (port,) = free_ports(1)
    script = f"""
        import sys, time
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from servers import Server
        from servers.process import answers
        command = [sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1"]
        log = Path({str(tmp_path / "log")!r})
        with Server("http", command, log=log, ready=lambda: answers({port})) as server:
            print(server.pid, flush=True)
            time.sleep(600)
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    with owner.stdout:
        guard = int(owner.stdout.readline())
        owner.send_signal(how)
        owner.wait(20.0)
    wait_until_gone(guard)
    with pytest.raises(OSError, match="refused"):
        get(f"http://127.0.0.1:{port}/")
