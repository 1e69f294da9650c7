"""The local path against its peers: photos, small samples, arrays, and a large catalog.

``python benchmarks/local.py [--quick] [--known] [--only photos,small]``. Every system runs in processes of its own, on the
same data in the page cache, on all cores of this machine. First each one's settings are swept once (ours has none);
then the systems run in turn at their best settings, and the medians of the turns are compared. FFCV is not among them:
it cannot be installed from PyPI. ``--known`` leaves the sweep out and takes the settings that sweeps found best on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _data
from _process import MeasureFailed, measured
from _results import Results, quick
from peers._environment import PEERS, EnvironmentMissing, python_of

if TYPE_CHECKING:
    from collections.abc import Callable

ARRAY_BYTES = 3 * 128 * 128 * 4
ROW_BYTES = 32 * 32 * 3
LABEL_BYTES = 8
"""A row of the user's own column in the large catalog."""
CATALOG = 1_000_000
SMALL_CATALOG = 1_000


@dataclass(frozen=True)
class Effort:
    """How long is measured."""

    turns: int
    seconds: float
    warm: float
    sweep_seconds: float


FULL = Effort(turns=3, seconds=5, warm=2, sweep_seconds=1.5)
KNOWN = Effort(turns=3, seconds=3, warm=1.5, sweep_seconds=0)
QUICK = Effort(turns=1, seconds=2, warm=1, sweep_seconds=0)
"""A quick run takes each opponent's first setting but one that a full run found good on two cores."""


@dataclass
class System:
    """One way of doing a task, and what it reached."""

    peer: str
    name: str
    good: dict[str, Any] = field(default_factory=dict)
    """A setting that is good on two cores, for quick runs."""
    setting: dict[str, Any] | None = None
    failure: str = ""
    lines: list[dict[str, Any]] = field(default_factory=list)

    def run(self, case: str, data: Path, *arguments: str, patience: float) -> dict[str, Any]:
        """Measure it in a process of its own."""
        script = PEERS / self.peer / "run.py"
        command = [python_of(self.peer), str(script), case, str(data), "--system", self.name, *arguments]
        return measured(command, patience=patience)

    def figure(self, metric: str) -> float:
        """The median of the turns."""
        return median(line[metric] for line in self.lines) if self.lines else float("nan")


PHOTOS = [
    System("penstock", "penstock"),
    System("torch", "torch+pillow", {"workers": 3, "prefetch": 2, "normalise": "sample"}),
    System("torch", "torch+torchvision", {"workers": 3, "prefetch": 2, "normalise": "sample"}),
    System("dali", "dali", {"threads": 2, "depth": 2, "reader_depth": 2, "fused": True}),
    System("spdl", "spdl", {"threads": 2, "buffer": 2, "scaler": "bilinear"}),
]
SMALL = [
    System("penstock", "penstock"),
    System("penstock", "copy", {"threads": 2, "way": "take"}),
    System("torch", "torch", {"workers": 0}),
    System("torch", "torch-getitems", {"workers": 0}),
    System("torch", "torch-batched-tensor", {"whole": True, "workers": 0}),
]
ARRAYS = [
    System("penstock", "penstock"),
    System("penstock", "penstock-files"),
    System("penstock", "copy", {"threads": 2, "way": "memcpy"}),
    System("torch", "torch-files", {"workers": 2, "prefetch": 2}),
    System("torch", "torch-mmap", {"workers": 2, "prefetch": 2}),
    System("torch", "torch-mmap-getitems", {"workers": 0}),
]


def compare(results: Results, case: str, systems: list[System], data: Path, effort: Effort) -> None:
    """Sweep the settings of each, run them in turn, and write down what each reached."""
    for system in systems:
        try:
            sweep(system, case, data, effort)
        except (MeasureFailed, EnvironmentMissing) as failed:
            system.failure = str(failed)
            print(f"{case}: {system.name} is left out: {failed}", flush=True)
    for turn in range(effort.turns):
        # Every other turn backwards, so that nobody always follows the same one.
        for system in systems[:: 1 if turn % 2 == 0 else -1]:
            if system.failure:
                continue
            arguments = ["--setting", json.dumps(system.setting), "--seconds", str(effort.seconds)]
            try:
                line = system.run(
                    case, data, *arguments, "--warm", str(effort.warm), patience=60 + 2 * effort.seconds
                )
            except MeasureFailed as failed:
                system.failure = str(failed)
                continue
            system.lines.append(line)
            print(
                f"{case}: {system.name} {line['samples_per_s']:,.0f}/s {line['cpu_us_per_sample']:.1f} CPU µs",
                flush=True,
            )
    for system in systems:
        if not system.lines:
            results.row(case, system.name, "samples_per_s", float("nan"), "1/s", note=system.failure)
            continue
        setting = ", ".join(f"{name}={value}" for name, value in (system.setting or {}).items())
        results.row(
            case,
            system.name,
            "samples_per_s",
            system.figure("samples_per_s"),
            "1/s",
            note=setting or "defaults",
        )
        results.row(case, system.name, "cpu_us_per_sample", system.figure("cpu_us_per_sample"), "µs")
        results.row(case, system.name, "peak_rss", system.figure("peak_rss_mib"), "MiB")
        if "python_us_per_batch" in system.lines[0]:
            results.row(case, system.name, "python_per_batch", system.figure("python_us_per_batch"), "µs")


def sweep(system: System, case: str, data: Path, effort: Effort) -> None:
    """Find the system's best setting."""
    if system.peer == "penstock" and system.name != "copy":
        system.setting = {}
        return
    if not effort.sweep_seconds:
        python_of(system.peer)
        system.setting = system.good
        return
    arguments = ["--sweep", "--seconds", str(effort.sweep_seconds), "--warm", "1"]
    best = system.run(case, data, *arguments, patience=600)
    system.setting = best["setting"]
    print(f"{case}: {system.name} is best with {best['setting']}", flush=True)


def least_cpu(results: Results, case: str, systems: list[System]) -> None:
    """Claim 4: ours takes less CPU time a sample than any opponent."""
    ours = systems[0].figure("cpu_us_per_sample")
    others = [system for system in systems if system.peer != "penstock" and system.lines]
    best = min((system.figure("cpu_us_per_sample") for system in others), default=float("nan"))
    results.claim(f"{case}: CPU time a sample of the thriftiest opponent / ours", best / ours, ">=", 1.0)


def overhead(results: Results, case: str, systems: list[System]) -> None:
    """Claim 6: Python's own part of a batch."""
    results.claim(f"{case}: Python µs a batch", systems[0].figure("python_us_per_batch"), "<=", 200.0)


def rate(systems: list[System], *names: str) -> float:
    """The best rate of those of these systems that ran."""
    found = [system.figure("samples_per_s") for system in systems if system.name in names and system.lines]
    return max(found, default=float("nan"))


def photos(results: Results, effort: Effort) -> None:
    """Claim 1: JPEG photos to float32 crops."""
    data = _data.photos(1536 if effort is not QUICK else 512)
    compare(results, "photos", PHOTOS, data, effort)
    ours = rate(PHOTOS, "penstock")
    results.claim(
        "photos: images/s of ours / torch with Pillow", ours / rate(PHOTOS, "torch+pillow"), ">=", 2.6
    )
    best = rate(PHOTOS, "torch+torchvision", "dali", "spdl")
    results.claim("photos: images/s of ours / best of DALI, SPDL, torchvision", ours / best, ">=", 1.8)
    least_cpu(results, "photos", PHOTOS)
    overhead(results, "photos", PHOTOS)


def small(results: Results, effort: Effort) -> None:
    """Claim 2: samples of 3 KB."""
    data = _data.rows(100_000 if effort is not QUICK else 20_000)
    compare(results, "small", SMALL, data, effort)
    ours = rate(SMALL, "penstock")
    results.row("small", "penstock", "copy_bandwidth_share", ours / rate(SMALL, "copy"), "of plain copy")
    results.claim("small: samples/s of ours / torch", ours / rate(SMALL, "torch"), ">=", 15.0)
    # Not asked for, but said: a dataset that gathers a whole batch by one index.
    gathered = rate(SMALL, "torch-getitems", "torch-batched-tensor")
    results.row("small", "penstock", "of_torch_by_batches", ours / gathered, "times its samples/s")
    least_cpu(results, "small", SMALL)
    overhead(results, "small", SMALL)


def arrays(results: Results, effort: Effort) -> None:
    """Claim 3: arrays of 190 KB."""
    data = _data.arrays(4096 if effort is not QUICK else 1024)
    compare(results, "arrays", ARRAYS, data, effort)
    copied = rate(ARRAYS, "copy")
    for system in ("penstock", "penstock-files", "copy"):
        results.row("arrays", system, "bandwidth", rate(ARRAYS, system) * ARRAY_BYTES / 1e9, "GB/s")
    results.claim(
        "arrays: bandwidth of ours / plain parallel copy", rate(ARRAYS, "penstock") / copied, ">=", 0.7
    )
    least_cpu(results, "arrays", ARRAYS)
    overhead(results, "arrays", ARRAYS)


def catalog(results: Results, effort: Effort) -> None:
    """Claim 5: a catalog of a million rows, opened in a new process."""
    probe = PEERS / "penstock" / "catalog.py"
    found: dict[int, list[dict[str, Any]]] = {SMALL_CATALOG: [], CATALOG: []}
    sets = {count: _data.catalog(count) for count in found}
    for _ in range(max(effort.turns, 3)):
        for count, lines in found.items():
            lines.append(measured([sys.executable, str(probe), str(sets[count])], patience=60))
    seconds, memory, settled = (
        {count: median(line[metric] for line in lines) for count, lines in found.items()}
        for metric in ("first_batch_s", "peak_bytes", "bytes")
    )
    per_row = (settled[CATALOG] - settled[SMALL_CATALOG]) / (CATALOG - SMALL_CATALOG) - LABEL_BYTES
    peak = (memory[CATALOG] - memory[SMALL_CATALOG]) / (CATALOG - SMALL_CATALOG) - LABEL_BYTES
    for count in found:
        results.row(f"catalog of {count:,}", "penstock", "first_batch", seconds[count], "s")
    results.row(f"catalog of {CATALOG:,}", "penstock", "memory_per_row", per_row, "bytes")
    results.row(f"catalog of {CATALOG:,}", "penstock", "peak_memory_per_row", peak, "bytes")
    results.claim("catalog: seconds to the first batch of a million rows", seconds[CATALOG], "<=", 0.5)
    results.claim("catalog: bytes a row beyond the user's columns", per_row, "<=", 64.0)


SECTIONS: dict[str, Callable[[Results, Effort], None]] = {
    "photos": photos,
    "small": small,
    "arrays": arrays,
    "catalog": catalog,
}


def main() -> None:
    """Run the sections that are wanted; the figures are saved after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--known", action="store_true", help="without sweeps: the settings that are known to be good"
    )
    parser.add_argument("--only", default="", help=f"some of {','.join(SECTIONS)}, with commas")
    wanted = parser.parse_args()
    names = [name for name in wanted.only.split(",") if name] or list(SECTIONS)
    if unknown := [name for name in names if name not in SECTIONS]:
        parser.error(f"there is no section {unknown[0]}; there are {', '.join(SECTIONS)}")
    effort = QUICK if quick() else KNOWN if wanted.known else FULL
    results = Results("local", merge=bool(wanted.only))
    for name in names:
        results.forget(name)
        try:
            SECTIONS[name](results, effort)
        except MeasureFailed as failed:
            results.row(name, "penstock", "failed", float("nan"), "", note=str(failed))
        results.save()
    results.write()


if __name__ == "__main__":
    main()
