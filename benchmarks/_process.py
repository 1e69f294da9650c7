"""Measurements in processes of their own: each has a deadline, and nothing that it started outlives it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class MeasureFailed(RuntimeError):
    """A measurement gave no figures; the text is what it said last."""


def measured(
    command: Sequence[str], *, patience: float, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run a command that prints one JSON object as its last line, and give that.

    Args:
        command: the program and its arguments.
        patience: seconds; after them the command is killed with everything that it started.
        environment: variables beside those of this process.
    """
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        _end(process)
        out, err = process.communicate(timeout=10)
        raise MeasureFailed(f"no figures within {patience:.0f} s; {_last(err)}") from None
    finally:
        _end(process)
    lines = [line for line in out.strip().splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        raise MeasureFailed(f"ended with {process.returncode}; {_last(err)}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _last(text: str, lines: int = 3) -> str:
    """The end of what was said, as one line."""
    return " / ".join(line.strip() for line in text.strip().splitlines()[-lines:])[-400:] or "it said nothing"
