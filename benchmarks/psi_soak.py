"""PSI's long tests, once: round trips of made-up pictures, and damaged files against the decoder.

``python benchmarks/psi_soak.py [--cases 100000] [--seconds 600]``. They run in pieces of at most a few minutes, each with a
seed of its own, in release builds. What the figures are: `docs/psi.md` and `crates/psi/tests`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _results import Results, quick

ROOT = Path(__file__).resolve().parent.parent
PIECE_CASES = 28_000
"""Of each of the two properties of ``round_trip.rs``."""
PIECE_SECONDS = 300


def test(name: str, only: str, before: tuple[str, ...], **environment: str) -> tuple[bool, str]:
    """Runs one Rust test; whether it passed, and what it said."""
    command = [*before, "cargo", "test", "--release", "--quiet", "-j2", "-p", "penstock-psi", "--test", name]
    done = subprocess.run(
        [*command, "--", only, "--nocapture", "--test-threads=2"],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3600,
        check=False,
    )
    said = done.stdout
    if done.returncode:
        print(said[-4000:], flush=True)
    return done.returncode == 0 and "test result: ok" in said, said


def before_this(suite: str, case: str, metric: str, *, more: bool) -> int:
    """What the pieces before gave, where this run goes on from them."""
    rows = Results(suite, merge=True).rows if more else []
    return sum(int(row["value"]) for row in rows if (row["case"], row["metric"]) == (case, metric))


def round_trips(wanted: int, before: tuple[str, ...], suite: str, *, more: bool) -> None:
    """Made-up pictures of every type, shape and content through every level and set of instructions, and back."""
    done, failures = (
        before_this(suite, "round trips", metric, more=more) for metric in ("cases", "failures")
    )
    start = time.monotonic()
    while done < wanted:
        # Without a fixed seed proptest draws one from the system for each run.
        count = min(PIECE_CASES, -(-(wanted - done) // 2))
        passed, _ = test("round_trip", "any_", before, PROPTEST_CASES=str(count))
        done += 2 * count
        failures += not passed
        print(f"{done} round trips, {failures} failures, {time.monotonic() - start:.0f} s", flush=True)
        results = Results(suite, merge=True)
        results.row("round trips", "psi", "cases", done, "pictures")
        results.row("round trips", "psi", "failures", failures, "runs")
        results.claim("round trips: pictures", done, ">=", 100_000)
        results.claim("round trips: failures", failures, "==", 0)
        results.save()


def damaged_files(wanted: int, before: tuple[str, ...], suite: str, *, more: bool) -> None:
    """Files that were changed at random: an error, or the pixels that were written."""
    seed = time.time_ns() % 2**32
    spent, files, wrong = (
        before_this(suite, "damaged files", metric, more=more) for metric in ("seconds", "cases", "failures")
    )
    while spent < wanted:
        # Two at a time, each with a seed of its own: the seconds are those of both.
        piece = min(PIECE_SECONDS, -(-(wanted - spent) // 2))
        seeds = [str(seed + 1), str(seed + 2)]
        seed += 2

        def one(chosen: str, piece: int = piece) -> tuple[bool, str]:
            return test("hostile", "changed", before, PSI_FUZZ_SECONDS=str(piece), PSI_FUZZ_SEED=chosen)

        with ThreadPoolExecutor(2) as pool:
            for passed, said in pool.map(one, seeds):
                spent += piece
                wrong += not passed
                files += sum(int(count) for count in re.findall(r"(\d+) changed files", said))
        print(f"{spent} s of damaged files, {files} files, {wrong} failures", flush=True)
        results = Results(suite, merge=True)
        results.row("damaged files", "psi", "seconds", spent, "s", note=f"seeds to {seed}")
        results.row("damaged files", "psi", "cases", files, "files")
        results.row("damaged files", "psi", "failures", wrong, "runs")
        results.claim("damaged files: seconds", spent, ">=", 600)
        results.claim("damaged files: failures", wrong, "==", 0)
        results.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument(
        "--only", choices=("round_trips", "damaged_files"), help="one of the two; both may run at once"
    )
    parser.add_argument("--more", action="store_true", help="go on from what the results say")
    parser.add_argument("--before", default="", help="a command that each piece is run through, such as nice")
    options = parser.parse_args()
    before = tuple(options.before.split())
    cases, seconds = (2000, 10) if quick() else (options.cases, options.seconds)
    suite = "psi_soak-quick" if quick() else "psi_soak"
    if options.only != "damaged_files":
        round_trips(cases, before, suite, more=options.more)
    if options.only != "round_trips":
        damaged_files(seconds, before, suite, more=options.more)
    Results(suite, merge=True).write()


if __name__ == "__main__":
    main()
