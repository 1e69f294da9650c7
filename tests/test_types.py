"""The types are there for who installs the package: a user's script is checked, and strictly."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import penstock

ROOT = Path(__file__).parent.parent


def test_a_users_script_is_checked_by_mypy_strict(tmp_path: Path) -> None:
    assert Path(penstock.__file__).with_name("py.typed").exists()
    (block,) = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "user.py").write_text(block + "\nreveal_type(train)\nreveal_type(batch.ids)\ntrain.nothing\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", "user.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert 'Revealed type is "penstock.dataset.Dataset"' in done.stdout, done.stdout
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, done.stdout
    assert '"Dataset" has no attribute "nothing"' in errors[0]
