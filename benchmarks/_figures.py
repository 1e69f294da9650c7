"""Puts the figures of ``benchmarks/results/*.json`` into the docs: all of them into docs/figures.md, the claims into README.md.

``python benchmarks/_figures.py`` (``make figures``); every benchmark does it when it has written its results. README.md has
a place for them between two comments. Nothing is rounded in a claim's favour, and what does not hold is written so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- figures: made by `make figures` -->", "<!-- end of figures -->"
_SHOWN = 8
"""Claims of a suite in the README; those that do not hold are always there."""
_COLUMNS = ("case", "system", "metric", "value", "unit", "note")
_HEADS = ("case", "system", "metric", "value", "unit", "settings")
_SIGNS = {">=": "≥", "<=": "≤", "==": "="}
_TITLES = {
    "local": "Local disk",
    "network": "Far storage",
    "psi": "PSI, the image format",
    "psi_gpu": "PSI decoded on a GPU",
    "psi_soak": "PSI, long tests",
}


def refresh(root: Path = ROOT) -> list[Path]:
    """Write both pages; gives those that changed."""
    reports = read(root / "benchmarks" / "results")
    changed = []
    readme = root / "README.md"
    if not readme.exists():
        return []  # the part of the tree that a GPU machine gets
    for path, text in (
        (readme, with_claims(readme.read_text(encoding="utf-8"), reports)),
        (root / "docs" / "figures.md", page(reports)),
    ):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def read(folder: Path) -> list[dict[str, Any]]:
    """The reports, local first, then by name."""
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return sorted(reports, key=lambda report: (report["suite"] != "local", report["suite"]))


def with_claims(text: str, reports: list[dict[str, Any]]) -> str:
    """The text with the claims between its two comments."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"the page has no place for figures: {BEGIN} … {END}")
    parts = [_claims(report, shown=_SHOWN) for report in reports]
    return "\n\n".join([before + BEGIN, *parts, END + after])


def page(reports: list[dict[str, Any]]) -> str:
    """All figures: the claims of each suite, then every row."""
    intro = (
        "Made by `make figures` from `benchmarks/results/*.json`, which `make bench` writes. Each suite compares within one\n"
        "run, on one machine and the same data, each system at its best settings (in the last column)."
    )
    parts = ["# Figures", intro]
    for report in reports:
        rows = [_row(*(row.get(name, "") for name in _COLUMNS)) for row in report["rows"]]
        table = [_row(*_HEADS), "|---|---|---|---:|---|---|", *rows]
        parts += [_claims(report, shown=None), "\n".join(table)]
    return "\n\n".join(parts) + "\n"


def _claims(report: dict[str, Any], shown: int | None) -> str:
    claims, where = report["claims"], report["machine"]
    title = _TITLES.get(report["suite"], report["suite"])
    place = f"{where['cpu']}, {where['cores']} cores, {where['memory_gib']:g} GiB"
    if where.get("gpu"):
        place = f"{where['gpu']}; {place}"
    holds = f"{sum(claim['holds'] for claim in claims)} of {len(claims)} claims hold"
    chosen = [each for at, each in enumerate(claims) if shown is None or at < shown or not each["holds"]]
    lines = [
        f"{'##' if shown is None else '###'} {title}",
        "",
        f"`make bench SUITE={report['suite']}` on {report['date'][:10]}: {place}. {holds}.",
        "",
        _row("what", "measured", "asked for", ""),
        "|---|---:|---:|---|",
    ]
    for claim in chosen:
        asked = f"{_SIGNS[claim['op']]} {_number(claim['target'])}"
        lines.append(
            _row(claim["name"], claim["value"], asked, "holds" if claim["holds"] else "**does not hold**")
        )
    if len(chosen) < len(claims):
        lines += ["", f"{len(claims) - len(chosen)} more that hold: [figures](docs/figures.md)."]
    return "\n".join(lines)


def _row(*cells: Any) -> str:
    """A row of a table; numbers are rounded, and a bar inside a cell does not end it."""
    shown = (cell.replace("|", "\\|") if isinstance(cell, str) else _number(cell) for cell in cells)
    return f"| {' | '.join(shown)} |"


def _number(value: float | None) -> str:
    """Three digits; whole numbers from 100 on."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


if __name__ == "__main__":
    for path in refresh():
        print(f"wrote {path.relative_to(ROOT)}")
