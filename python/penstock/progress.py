"""A live progress bar with rate and ETA on a terminal; a plain line every few seconds anywhere else.

The work is counted by any number of threads (``advance``) and shown by the one thread that waits for
them (``show``): counting costs two additions under a lock, drawing happens at the caller's pace.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PLAIN_EVERY = 5.0
"""Seconds between two plain lines where there is no terminal."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def format_bytes(count: float) -> str:
    """``count`` bytes in the largest unit that keeps it at least 1: ``format_bytes(3 << 20)`` is "3.0 MiB"."""
    value = float(count)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def format_seconds(seconds: float) -> str:
    """A duration as people say it: ``"0.4 s"``, ``"2 min 05 s"``, ``"3 h 07 min"``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


@dataclass(frozen=True)
class Reading:
    """What a progress shows at one moment. Rates count this run alone, not what an earlier one had done."""

    samples: int
    bytes: int
    total_samples: int
    total_bytes: int
    seconds: float
    samples_per_second: float
    bytes_per_second: float
    eta: float | None
    """Seconds that are left at the rate so far; None until something has been done."""

    def rate(self) -> str:
        """``"412.0 MB/s, 3,801 samples/s"``."""
        return f"{self.bytes_per_second / 1e6:,.1f} MB/s, {self.samples_per_second:,.0f} samples/s"

    def line(self, what: str) -> str:
        """The plain line: what, how far, rate, ETA."""
        share = (
            self.bytes / self.total_bytes if self.total_bytes else self.samples / max(1, self.total_samples)
        )
        eta = "?" if self.eta is None else format_seconds(self.eta)
        return (
            f"{what}: {share:4.0%}  {self.samples:,} of {self.total_samples:,} samples, "
            f"{format_bytes(self.bytes)} of {format_bytes(self.total_bytes)}, {self.rate()}, {eta} left"
        )


class Progress:
    """Counts samples and bytes and shows them.

    ``done_samples`` and ``done_bytes`` are what an earlier run had finished. ``quiet`` counts and shows nothing.
    ``stream`` defaults to stderr, so that what a command prints stays clean.

    >>> with Progress("packing", total_samples=10, total_bytes=1000, quiet=True) as bar:
    ...     bar.advance(samples=10, bytes=1000)
    ...     bar.reading().samples
    10
    """

    def __init__(
        self,
        what: str,
        *,
        total_samples: int,
        total_bytes: int,
        done_samples: int = 0,
        done_bytes: int = 0,
        quiet: bool = False,
        stream: TextIO | None = None,
        plain_every: float = PLAIN_EVERY,
    ) -> None:
        self.what = what
        self._total = (total_samples, total_bytes)
        self._before = (done_samples, done_bytes)
        self._samples = done_samples
        self._bytes = done_bytes
        self._lock = threading.Lock()
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet
        self._live = not quiet and self._stream.isatty()
        self._plain_every = plain_every
        self._start = time.monotonic()
        self._last_line = self._start
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._start = self._last_line = time.monotonic()
        if self._live:
            self._open_bar()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._draw(self.reading())
            self._bar.stop()
            self._bar = None
        elif not self._quiet and kind is None:
            self._print(self.reading())

    def advance(self, *, samples: int = 0, bytes: int = 0) -> None:
        """Count work that is done; from any thread."""
        with self._lock:
            self._samples += samples
            self._bytes += bytes

    def reading(self) -> Reading:
        """The figures as they stand."""
        with self._lock:
            samples, done = self._samples, self._bytes
        seconds = max(time.monotonic() - self._start, 1e-9)
        new_samples, new_bytes = samples - self._before[0], done - self._before[1]
        if self._total[1]:
            left, fresh = self._total[1] - done, new_bytes
        else:
            left, fresh = self._total[0] - samples, new_samples
        return Reading(
            samples=samples,
            bytes=done,
            total_samples=self._total[0],
            total_bytes=self._total[1],
            seconds=seconds,
            samples_per_second=new_samples / seconds,
            bytes_per_second=new_bytes / seconds,
            eta=max(0.0, left * seconds / fresh) if fresh > 0 else None,
        )

    def show(self) -> None:
        """Draw the bar, or print the plain line if its time has come. Called by the waiting thread."""
        if self._bar is not None:
            self._draw(self.reading())
        elif not self._quiet and time.monotonic() - self._last_line >= self._plain_every:
            self._print(self.reading())

    def _print(self, reading: Reading) -> None:
        self._last_line = time.monotonic()
        print(reading.line(self.what), file=self._stream, flush=True)

    def _open_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[left]}"),
            console=Console(file=self._stream),
            auto_refresh=False,
            expand=True,
        )
        self._task = self._bar.add_task(self.what, total=1.0, rate="", left="")
        self._bar.start()

    def _draw(self, reading: Reading) -> None:
        if self._bar is None or self._task is None:
            return
        by_bytes = reading.total_bytes > 0
        self._bar.update(
            self._task,
            completed=reading.bytes if by_bytes else reading.samples,
            total=reading.total_bytes if by_bytes else reading.total_samples,
            rate=reading.rate(),
            left="" if reading.eta is None else f"{format_seconds(reading.eta)} left",
        )
        self._bar.refresh()
