"""The code in README and docs runs, and says the truth about what it gives."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import encoded, picture

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")


def blocks(page: Path) -> list[str]:
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_code_on_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    """The Python blocks of a page are one program, run where there is a folder ``photos`` of class folders.

    A block that begins with ``# not run`` is left out: it needs a GPU, a bucket, or another machine.
    """
    for number in range(24):
        path = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(number, (64, 48)), "JPEG"))
    program = "\n".join(block for block in blocks(page) if not block.startswith("# not run"))
    script = tmp_path / f"{page.stem}.py"
    script.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, _ in _LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    for module_name in (
        "penstock",
        "penstock.errors",
        "penstock.stores",
        "penstock.plan",
        "penstock.testing",
        "penstock.pack",
    ):
        module = importlib.import_module(module_name)
        names = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module_name
        ]
        for name in names:
            if callable(getattr(module, name)):
                assert f"\n### {name}\n" in page, f"{module_name}.{name}: run `make reference`"
