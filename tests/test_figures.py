"""The figures in README and docs are those that the benchmarks wrote."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import _figures  # noqa: E402


def test_the_pages_say_what_the_results_say() -> None:
    reports = _figures.read(ROOT / "benchmarks" / "results")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme == _figures.with_claims(readme, reports), "run `make figures`"
    page = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
    assert page == _figures.page(reports), "run `make figures`"


def test_what_does_not_hold_is_always_shown(tmp_path: Path) -> None:
    claims = [
        {"name": f"claim {n}", "value": n, "op": ">=", "target": 0, "holds": n != 11} for n in range(12)
    ]
    machine = {"cpu": "a", "cores": 2, "memory_gib": 1.0}
    report = {"suite": "local", "date": "2026-01-01T", "machine": machine, "rows": [], "claims": claims}
    text = _figures.with_claims(
        f"before\n{_figures.BEGIN}\nwhat was there\n{_figures.END}\nafter\n", [report]
    )
    assert "| claim 11 | 11 | ≥ 0 | **does not hold** |" in text
    assert "11 of 12 claims hold" in text
    assert "3 more that hold" in text
    assert "what was there" not in text
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert _figures.with_claims(text, [report]) == text


def test_a_page_without_a_place_for_figures_is_an_error() -> None:
    with pytest.raises(ValueError, match="no place"):
        _figures.with_claims("nothing", [])


def test_every_claim_is_worked_out_from_its_figures() -> None:
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        for claim in json.loads(path.read_text(encoding="utf-8"))["claims"]:
            value, target = claim["value"], claim["target"]
            holds = {">=": value >= target, "<=": value <= target, "==": value == target}[claim["op"]]
            assert claim["holds"] == holds, f"{path.name}: {claim['name']}"
