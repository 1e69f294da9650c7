"""What a fresh machine is told when something is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"


def with_only(folder: Path, *commands: str) -> dict[str, str]:
    """An environment in which nothing but these commands is found."""
    folder.mkdir()
    for command in commands:
        found = shutil.which(command)
        assert found is not None, command
        (folder / command).symlink_to(found)
    return {"PATH": str(folder), "HOME": str(folder)}


@pytest.mark.parametrize(
    ("present", "missing"),
    [
        (("git",), ["a C compiler (Debian: gcc)"]),
        (("gcc",), ["git"]),
        ((), ["a C compiler (Debian: gcc)", "git"]),
        (("gcc", "git"), []),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    tmp_path: Path, present: tuple[str, ...], missing: list[str]
) -> None:
    done = subprocess.run(
        ["/bin/sh", SCRIPTS / "check-prerequisites.sh", sys.executable],
        env=with_only(tmp_path / "bin", *present),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == (1 if missing else 0)
    assert done.stderr == (f"Please install: {', '.join(missing)}\n" if missing else "")


def test_a_python_that_is_not_there_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", SCRIPTS / "check-prerequisites.sh", "python9"],
        env=with_only(tmp_path / "bin", "gcc", "git"),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Please install: Python 3.11 or newer")
    assert len(done.stderr.splitlines()) == 1


def test_without_rust_and_without_a_way_to_fetch_it_one_line_says_what_to_do(tmp_path: Path) -> None:
    scripts = tmp_path / "clone" / "scripts"
    scripts.mkdir(parents=True)
    shutil.copy(SCRIPTS / "ensure-rust.sh", scripts)
    done = subprocess.run(
        ["/bin/sh", scripts / "ensure-rust.sh"],
        env=with_only(tmp_path / "bin", "dirname", "rm", "sed"),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "install it from https://rustup.rs" in done.stderr.splitlines()[-1]


def test_a_new_enough_rust_is_used_as_it_is() -> None:
    done = subprocess.run(
        ["/bin/sh", SCRIPTS / "ensure-rust.sh"],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        pytest.skip("there is no Rust here")
    assert (Path(done.stdout.strip()) / "cargo").exists()
