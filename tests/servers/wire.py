"""slowwire: a wire with delay, a bandwidth cap and faults between a client and a real server."""

from __future__ import annotations

import json
import os
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .process import Server, ServerMissing, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[2]


def slowwire_binary() -> Path:
    """The built proxy; ServerMissing when it is not built."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    for profile in ("release", "debug"):
        binary = target / profile / "slowwire"
        if binary.exists():
            return binary
    raise ServerMissing("slowwire is not built: cargo build --release -p slowwire")


class Wire:
    """A running proxy at ``port``. Settings have the names of slowwire's flags, with underscores."""

    def __init__(self, server: Server, port: int, control: int) -> None:
        self.server = server
        self.port = port
        self._control = f"http://127.0.0.1:{control}"

    @property
    def endpoint(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://127.0.0.1:{self.port}"

    def set(self, **settings: float | str) -> None:
        """Change settings from now on: ``wire.set(rtt_ms=50, rate_mb=100, tail="0.01:20")``."""
        self._call("POST", "/settings?" + "&".join(f"{name}={value}" for name, value in settings.items()))

    def stats(self) -> dict[str, int]:
        """Counters: requests, answered, bytes_down, in_flight, and each fault by name."""
        return {name: int(value) for name, value in self._call("GET", "/stats").items()}

    def clear(self) -> None:
        """Set the counters to nothing."""
        self._call("POST", "/clear")

    def _call(self, method: str, target: str) -> dict[str, int]:
        request = urllib.request.Request(self._control + target, method=method)
        with urllib.request.urlopen(request, timeout=10.0) as answer:
            result: dict[str, int] = json.load(answer)
        return result


@contextmanager
def slowwire(upstream_port: int, *, folder: Path, **settings: float | str) -> Iterator[Wire]:
    """Put a wire before a server on loopback."""
    binary = slowwire_binary()
    port, control = free_ports(2)
    command = [str(binary), "--upstream", f"127.0.0.1:{upstream_port}"]
    command += ["--listen", f"127.0.0.1:{port}", "--control", f"127.0.0.1:{control}"]
    for name, value in settings.items():
        command += ["--" + name.replace("_", "-"), str(value)]
    wire: Wire

    def ready() -> bool:
        try:
            wire.stats()
        except OSError:
            return False
        return True

    server = Server("slowwire", command, log=folder / f"slowwire-{port}.log", ready=ready, patience=10.0)
    wire = Wire(server, port, control)
    with server:
        yield wire
