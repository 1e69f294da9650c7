"""An environment of its own for each peer, made by pip from its ``requirements.txt`` when that is new.

``python_of("dali")`` makes ``benchmarks/peers/dali/env`` when it is not there or when its requirements changed,
and gives its interpreter. What cannot be installed raises ``EnvironmentMissing`` with pip's last words; the failure
is remembered for this process, so that a suite asks for it once.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

PEERS = Path(__file__).resolve().parent
PATIENCE = 1200
"""Seconds for one environment: torch with CUDA libraries is gigabytes."""


class EnvironmentMissing(RuntimeError):
    """The peer cannot be installed here; the text says why."""


@functools.cache
def python_of(peer: str) -> str:
    """The interpreter of a peer's environment; ours for penstock itself."""
    if peer == "penstock":
        return sys.executable
    found = _made(peer, PEERS / peer / "requirements.txt")
    if isinstance(found, EnvironmentMissing):
        raise found
    return found


def program_of(peer: str, program: str, requirements: Path) -> Path:
    """A program that comes with a package of `requirements`, in an environment called `peer`."""
    found = _made(peer, requirements)
    if isinstance(found, EnvironmentMissing):
        raise found
    return Path(found).with_name(program)


@functools.cache
def _made(peer: str, requirements: Path) -> str | EnvironmentMissing:
    home = PEERS / peer / "env"
    python = home / "bin" / "python"
    wanted = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    mark = home / "made"
    if mark.exists() and mark.read_text() == wanted and python.exists():
        return str(python)
    print(f"making the environment of {peer} …", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        for command in (
            [sys.executable, "-m", "venv", str(home)],
            [*install, "-r", str(requirements)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
            if done.returncode:
                last = " ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
                return EnvironmentMissing(f"{peer} cannot be installed: {last}")
    except subprocess.TimeoutExpired:
        return EnvironmentMissing(f"{peer} was not installed within {PATIENCE} s")
    mark.write_text(wanted)
    return str(python)
