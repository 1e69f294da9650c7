"""What every system far from its data shares: the command line and the meter.

``run.py SYSTEM STAGE.json --setting '{...}'`` takes batches and prints one line of JSON. ``run.py SYSTEM --settings``
prints the settings worth trying, the ordinary ones first. A setting may say under ``rounds`` how many batches come at
once (one from each worker process), so that whole rounds are timed.

STAGE.json says where the data are: ``endpoint``, ``count``, ``size``, ``batch``, and a bucket for each form of the
data (``objects``, ``tars``, ``litdata``, ``mds``).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
from _peer import Setting, tree_cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Place = dict[str, Any]


@dataclass(frozen=True)
class System:
    """One way of getting batches from far away."""

    stream: Callable[[Place, Setting], Iterator[int]]
    """Deliver batches and say of each how many samples it held; ends after one pass over the data, or never."""
    settings: list[Setting]


def tree_rss_mib() -> float:
    """Memory of this process and its children that only they have (pages shared among them count once)."""
    total = 0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, AttributeError):
            continue
    return total / 2**20


def measure(batches: Iterator[int], *, skip: int, least: int, seconds: float) -> dict[str, float]:
    """Leave out the first `skip` batches, then take whole multiples of `least` until `seconds` are over.

    Also gives the rate of everything since the first batch was asked for, the ramp included.
    """
    begun, cpu_begun = time.perf_counter(), tree_cpu_seconds()
    early = sum(next(batches) for _ in range(skip))
    start, cpu, samples, taken, whole_epoch = time.perf_counter(), tree_cpu_seconds(), 0, 0, False
    moments = [start]
    while taken < least or taken % least or moments[-1] - start < seconds:
        size = next(batches, 0)
        if not size:
            whole_epoch = True
            break
        samples += size
        taken += 1
        moments.append(time.perf_counter())
    end, cpu_end = time.perf_counter(), tree_cpu_seconds()
    if not samples:
        raise SystemExit(f"the data were over after {skip} batches: nothing is left to measure")
    return {
        "samples_per_s": samples / (end - start),
        "cpu_us_per_sample": (cpu_end - cpu) / samples * 1e6,
        "whole_samples_per_s": (early + samples) / (end - begun),
        "whole_cpu_us_per_sample": (cpu_end - cpu_begun) / (early + samples) * 1e6,
        "samples": early + samples,
        "seconds": end - begun,
        "whole_epoch": whole_epoch,
        **intervals(moments),
    }


def intervals(moments: list[float]) -> dict[str, float]:
    """The time between batches: its median, and what 99 of 100 stay below."""
    gaps = sorted(after - before for before, after in itertools.pairwise(moments))
    at = min(len(gaps) - 1, -(-99 * len(gaps) // 100) - 1)
    return {"interval_s": statistics.median(gaps), "interval_p99_s": gaps[at], "interval_max_s": gaps[-1]}


def main(systems: dict[str, System]) -> None:
    """Run the command line over the systems that this program knows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("system", choices=sorted(systems))
    parser.add_argument("stage", type=Path, nargs="?")
    parser.add_argument("--settings", action="store_true")
    parser.add_argument("--setting", type=json.loads)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--least", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6)
    wanted = parser.parse_args()
    system = systems[wanted.system]
    if wanted.settings:
        print(json.dumps({"settings": system.settings}), flush=True)
        return
    place = json.loads(wanted.stage.read_text())
    for name, value in place["environment"].items():
        os.environ[name] = value
    setting = dict(wanted.setting if wanted.setting is not None else system.settings[0])
    # A folder of its own for those who keep what they fetched; a second run must fetch again.
    scratch = tempfile.mkdtemp(prefix="far-", dir=wanted.stage.parent)
    place["scratch"] = scratch
    rounds = int(setting.get("rounds", 1))
    found = measure(
        iter(system.stream(place, setting)),
        skip=max(wanted.skip, rounds if rounds > 1 else wanted.skip),
        least=max(wanted.least, rounds),
        seconds=wanted.seconds,
    )
    line = {
        "system": wanted.system,
        "setting": setting,
        **found,
        "rss_mib": tree_rss_mib(),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **{name: value() if callable(value) else value for name, value in more.items()},
    }
    print(json.dumps(line), flush=True)
    for child in psutil.Process().children(recursive=True):
        child.kill()
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)


more: dict[str, Any] = {}
"""Further figures that a system has to tell, or what gives them at the end."""
