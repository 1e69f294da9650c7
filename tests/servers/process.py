"""A server as a process: started with a deadline, ended by process id, killed and restarted at will."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GUARD = Path(__file__).with_name("_guard.py")
POLL = 0.02
"""Seconds between two looks at a server that is starting."""


class ServerMissing(RuntimeError):
    """The program is not installed; the text is the command that installs it."""


class ServerFailed(RuntimeError):
    """The server did not start in time, or ended; the text ends with its last log lines."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in held]
    for listener in held:
        listener.close()
    return ports


def answers(port: int) -> bool:
    """Whether somebody accepts connections at the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def group_lives(leader: int) -> bool:
    """Whether a process of the group is left; one that only waits to be reaped has closed all it had."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):  # it ended meanwhile
            continue
        if int(group) == leader and state not in "ZX":
            return True
    return False


class Server:
    """A process group that serves something.

    Args:
        name: in messages.
        command: the program and its arguments; it must stay in the foreground.
        log: where its output goes.
        ready: says whether it serves; asked until it does.
        patience: seconds until a start counts as failed.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        ready: Callable[[], bool],
        patience: float = 60.0,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.ready = ready
        self.patience = patience
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the group's leader."""
        if self._process is None:
            raise ServerFailed(f"{self.name} does not run")
        return self._process.pid

    def start(self) -> Self:
        """Start it and return when it serves."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-S", str(GUARD), *self.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + self.patience
        while not self.ready():
            try:
                status = self._process.wait(POLL)
            except subprocess.TimeoutExpired:
                status = None
            if status is not None or time.monotonic() > deadline:
                what = (
                    f"ended with {status}"
                    if status is not None
                    else f"does not serve after {self.patience:.0f} s"
                )
                tail = self.tail()
                self.kill()
                raise ServerFailed(f"{self.name} {what}\n{tail}")
        return self

    def tail(self, lines: int = 30) -> str:
        """The last lines of the log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def kill(self) -> None:
        """End it at once, as a crash does (SIGKILL to the group); when this returns nobody listens any more."""
        self._end(0.0)

    def stop(self) -> None:
        """End it in good order, or by force when it does not."""
        self._end(5.0)

    def _end(self, patience: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                # The guard had no time to lead a group of its own.
                process.kill()
            process.wait(10.0)
        # The leader is gone; the others die in their own time, and listen until then.
        deadline = time.monotonic() + 10.0
        while group_lives(process.pid):
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.name}: processes of group {process.pid} outlive SIGKILL")
            time.sleep(POLL)

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
