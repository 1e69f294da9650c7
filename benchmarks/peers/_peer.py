"""What every opponent's ``run.py`` shares: the command line, the meter, the sweep.

``run.py CASE DATA --setting '{...}' --seconds 6`` measures one setting and prints one line of JSON.
``run.py CASE DATA --sweep --seconds 3`` measures each of the opponent's settings in a process of its own and
prints the best one's line, with what every other one reached under ``"swept"``.

Only numpy and psutil are needed here, so that each opponent can live in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Setting = dict[str, Any]
BATCH = 64
"""Photos and arrays a batch; samples of 3 KB come in batches of SMALL_BATCH."""
SMALL_BATCH = 512
SETTING_PATIENCE = 60
"""Seconds for one setting of a sweep."""
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Case:
    """One opponent at one task."""

    settings: Callable[[], list[Setting]]
    """Every setting worth trying, the ordinary ones first."""
    stream: Callable[[Path, Setting], Iterator[int]]
    """Deliver batches for ever and say of each how many samples it held."""


def tree_cpu_seconds() -> float:
    """User and system time of this process, of its children that live, and of those that were waited for."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        total += used.ru_utime + used.ru_stime
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:  # it ended this moment, and is counted above from the next time on
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def measure(batches: Iterator[int], seconds: float, warm_seconds: float) -> dict[str, float]:
    """Take batches, leave out the first seconds, and give the rate and the CPU time a sample of the rest."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < warm_seconds:
        next(batches)
    samples, cpu, start = 0, tree_cpu_seconds(), time.perf_counter()
    while time.perf_counter() - start < seconds:
        samples += next(batches)
    wall, cpu = time.perf_counter() - start, tree_cpu_seconds() - cpu
    return {
        "samples_per_s": samples / wall,
        "cpu_us_per_sample": cpu / samples * 1e6,
        "cores_busy": cpu / wall,
        "samples": samples,
    }


def peak_rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def photo_paths(data: Path) -> tuple[list[str], list[int]]:
    """Give the files of a folder of class folders and their labels, in sorted order."""
    classes = sorted(entry.name for entry in os.scandir(data) if entry.is_dir())
    paths, labels = [], []
    for label, name in enumerate(classes):
        for path in sorted((data / name).glob("*.jpg")):
            paths.append(str(path))
            labels.append(label)
    return paths, labels


def main(
    cases: dict[str, dict[str, Case]], *, more: Callable[[], dict[str, float]] = dict[str, float]
) -> None:
    """Run the command line. `cases` gives, for each task, the opponent's ways of doing it by name.

    `more` gives further figures after a measurement.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=sorted(cases))
    parser.add_argument("data", type=Path)
    parser.add_argument("--system", help="which of the opponent's ways; default: the only one")
    parser.add_argument("--setting", type=json.loads)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--warm", type=float, default=2)
    wanted = parser.parse_args()
    ways = cases[wanted.case]
    system = wanted.system or next(iter(ways))
    if system not in ways:
        parser.error(f"{wanted.case} knows {', '.join(ways)}, not {system}")
    case = ways[system]
    if wanted.sweep:
        print(json.dumps(_sweep(case, system, wanted)), flush=True)
        return
    setting = wanted.setting if wanted.setting is not None else case.settings()[0]
    found = measure(case.stream(wanted.data, setting), wanted.seconds, wanted.warm)
    line = {
        "system": system,
        "case": wanted.case,
        "setting": setting,
        **found,
        **more(),
        "peak_rss_mib": peak_rss_mib(),
    }
    print(json.dumps(line), flush=True)
    # The measurement is over. Worker processes of an endless epoch have nothing to hand in: end with them,
    # without waiting for queues to drain.
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(0)


def _sweep(case: Case, system: str, wanted: argparse.Namespace) -> dict[str, Any]:
    lines = []
    for setting in case.settings():
        command = [sys.executable, *sys.argv[:1], wanted.case, str(wanted.data), "--system", system]
        command += ["--setting", json.dumps(setting)]
        command += ["--seconds", str(wanted.seconds), "--warm", str(wanted.warm)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SETTING_PATIENCE)
        except subprocess.TimeoutExpired:
            error = f"no figures within {SETTING_PATIENCE} s"
            lines.append({"setting": setting, "samples_per_s": 0.0, "error": error})
            continue
        if done.returncode:
            lines.append({"setting": setting, "samples_per_s": 0.0, "error": done.stderr[-2000:]})
            continue
        lines.append(json.loads(done.stdout.strip().splitlines()[-1]))
        print(json.dumps(lines[-1]), file=sys.stderr, flush=True)
    best = max(lines, key=lambda line: line["samples_per_s"])
    if not best["samples_per_s"]:
        raise SystemExit(
            f"{system} ran with none of its settings; the last one said: {lines[-1].get('error')}"
        )
    swept = [{"setting": line["setting"], "samples_per_s": line["samples_per_s"]} for line in lines]
    return {**best, "swept": swept}
