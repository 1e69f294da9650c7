"""A server that is killed in the middle of an epoch: once it comes back, once it does not."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from _process import MeasureFailed
from peers._environment import PEERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from _far import Stage

AT_BATCH = 8
AWAY = 2.0
"""Seconds that the server is gone."""
DEADLINE = 10.0
"""Seconds that the Loader may wait for a batch."""


def epoch(where: Stage, at_batch: Callable[[], None], *, timeout: float) -> dict[str, Any]:
    """Run a checked epoch, and call `at_batch` in its middle."""
    command = [sys.executable, str(PEERS / "penstock" / "checked.py"), str(where.described())]
    with subprocess.Popen(
        [*command, "--timeout", str(timeout)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if line.strip() == f"batch {AT_BATCH}":
                    at_batch()
                    break
            out, err = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            raise MeasureFailed("the epoch did not end within 120 s of the server's death") from None
        finally:
            process.kill()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if not lines:
        raise MeasureFailed(f"ended with {process.returncode}: {err[-400:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def server_dies(where: Stage, say: Callable[[str], object]) -> dict[str, Any]:
    """What became of both epochs."""

    def away() -> None:
        where.server.kill()
        time.sleep(AWAY)
        where.server.start()

    back = epoch(where, away, timeout=60)
    say(f"  server back after {AWAY:.0f} s: {back}")
    gone = epoch(where, where.server.kill, timeout=DEADLINE)
    say(f"  server gone: {gone}")
    where.server.start()
    # The text names the store, and it came no later than the deadline and what is left of the window take.
    named = where.buckets["packed"] in gone["error"] and gone["seconds_after_last_batch"] < DEADLINE + 5
    return {
        "goes_on": float(back["exact"]),
        "named": float(named),
        "seconds": gone["seconds_after_last_batch"],
        "error": gone["error"],
    }
