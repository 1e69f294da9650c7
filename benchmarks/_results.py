"""The one way a benchmark writes its figures: rows of measurements, claims that compare them, one JSON file.

``Results("local").row(...).claim(...).write()`` leaves ``benchmarks/results/local.json`` in the format that
the design fixes, and prints the same as a table. A suite of several sections calls ``save()`` after each, so that a
run that is cut off leaves what it measured; with ``merge=True`` the figures of an earlier run stay but for those
that are measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import operator
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import _figures

FOLDER = Path(__file__).resolve().parent / "results"
_HOLDS = {">=": operator.ge, "<=": operator.le, "==": operator.eq}


def quick() -> bool:
    """Whether a short run is wanted: ``--quick`` on the command line or ``QUICK=1`` in the environment."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--quick", action="store_true")
    wanted, _ = parser.parse_known_args()
    return bool(wanted.quick) or os.environ.get("QUICK", "") not in ("", "0")


def machine() -> dict[str, Any]:
    """Describe where the figures were taken: they mean nothing without it."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.partition(":")[2].strip()
            for line in cpuinfo.read_text().splitlines()
            if "model name" in line
        ]
        model = names[0] if names else ""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": model or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


class Results:
    """The figures of one suite.

    ``row`` and ``claim`` give the object back, so that calls chain; ``write`` ends the chain.
    """

    def __init__(self, suite: str, *, folder: Path = FOLDER, merge: bool = False) -> None:
        self.suite = suite
        self.folder = folder
        self.rows: list[dict[str, Any]] = []
        self.claims: list[dict[str, Any]] = []
        if merge and self.path.exists():
            before = json.loads(self.path.read_text())
            self.rows, self.claims = before["rows"], before["claims"]

    @property
    def path(self) -> Path:
        """Where the figures are written."""
        return self.folder / f"{self.suite}.json"

    def row(
        self, case: str, system: str, metric: str, value: float, unit: str, *, note: str | None = None
    ) -> Results:
        """Add one measurement: of ``system`` in ``case``. ``note``: its settings, or why there is no figure."""
        row = {"case": case, "system": system, "metric": metric, "value": _number(value), "unit": unit}
        if note is not None:
            row["note"] = note
        _put(self.rows, row, ("case", "system", "metric"))
        return self

    def claim(self, name: str, value: float, op: str, target: float) -> Results:
        """Add one claim: ``value op target``, with ``op`` of ``>=``, ``<=``, ``==``; whether it holds is worked out."""
        if op not in _HOLDS:
            raise ValueError(f"a claim compares with one of {sorted(_HOLDS)}, not {op!r}")
        holds = math.isfinite(value) and bool(_HOLDS[op](value, target))
        claim = {"name": name, "value": _number(value), "op": op, "target": _number(target), "holds": holds}
        _put(self.claims, claim, ("name",))
        return self

    def forget(self, case: str) -> Results:
        """Leave out what an earlier run measured in the cases whose names begin so, and claimed of them."""
        self.rows = [row for row in self.rows if not row["case"].startswith(case)]
        self.claims = [claim for claim in self.claims if not claim["name"].startswith(case)]
        return self

    def write(self) -> Path:
        """Write the file, print the table, and say where the file lies."""
        path = self.save()
        self._show()
        print(f"\n{path}")
        if self.folder == FOLDER:
            _figures.refresh()
        return path

    def save(self) -> Path:
        """Write the file, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path
        report = {
            "suite": self.suite,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "rows": self.rows,
            "claims": self.claims,
        }
        unfinished = path.with_suffix(".json.part")
        unfinished.write_text(json.dumps(report, indent=1) + "\n")
        unfinished.replace(path)
        return path

    def _show(self) -> None:
        for row in self.rows:
            value = row["value"] if row["value"] is not None else "nan"
            print(
                f"{row['case']:<28} {row['system']:<32} {row['metric']:<24} {value:>14} {row['unit']}"
                + (f"   ({row['note']})" if "note" in row else "")
            )
        print()
        for claim in self.claims:
            mark = "holds " if claim["holds"] else "FAILS "
            print(f"{mark} {claim['name']}: {claim['value']} {claim['op']} {claim['target']}")


def _put(items: list[dict[str, Any]], item: dict[str, Any], keys: tuple[str, ...]) -> None:
    """Replace the item of the same keys, or add it."""
    for at, known in enumerate(items):
        if all(known[key] == item[key] for key in keys):
            items[at] = item
            return
    items.append(item)


def _number(value: float) -> float | None:
    """Six significant digits are more than any timing has; what is not a number is null in JSON."""
    value = float(value)
    return float(f"{value:.6g}") if math.isfinite(value) else None
