"""How much to do at once, measured and not asked for.

Two questions, one answer each:

- *Here or in fetchers?* Items that take microseconds are fetched by the caller: handing one to a thread costs
  more than it does. Items that **wait** (wall time well above CPU time) are worth fetchers. `Pace.observe`
  watches.
- *How many at once?* `Pace.arrived` starts with few, doubles while the measured rate grows with it, steps
  back when it does not, and looks again later, ever more rarely.

A Pace has no lock and no clock of its own: one thread calls `observe`, and `arrived` is called under the
crew's lock. It is kept over epochs, so that what was learned once is not paid for again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

START = 4
"""Requests in flight at the start: a burst congests, and one round trip later there is a measurement."""

MOST_THREADS = 128
"""Threads in one process; beyond it the interpreter's lock and not the wire is what they wait for."""

MOST_TASKS = 512
"""Items of an `async` dataset in flight in one process; a task is far cheaper than a thread."""

_HEAVY = 100e-6
"""Seconds an item takes from which on the thread's busy time is measured too; a reading is 1% of it."""

_CHUNK = 1e-3
"""Seconds between two looks at the clocks while fetching here."""

_CALM, _CALM_CHUNK = 8, 5e-3
"""Looks without waiting after which the next are further apart, how far, and on the cheap clock alone."""

WAITS = 0.3
"""Share of an item's time that it waits from which on more fetchers are worth it."""

_WAITED = 2e-3
"""Seconds of waiting, over at least two looks, that are evidence enough for fetchers."""

_WORTH = 1.1
"""More than this factor on the rate is a gain; less is noise."""

_WINDOW = 0.02
"""Shortest measurement of a rate, in seconds."""


@dataclass(slots=True)
class Pace:
    """What one loader has learned about its dataset.

    ``depth``: requests kept in flight. ``fixed``: the user said how many, so nothing is tuned.
    ``most``: the bound on depth. ``fetchers``: whether items go to fetchers at all. ``heavy``: items are long
    enough for the thread's busy time to be read. ``suspect``: they may be waiting, so that it is worth reading exactly.
    """

    depth: int = START
    most: int = MOST_THREADS
    fixed: bool = False
    fetchers: bool = False
    chunk: int = 1
    seconds: float = 0.0
    heavy: bool = True
    suspect: bool = True
    _waited: float = 0.0
    _looks: int = 0
    _calm: int = 0
    _climb: _Climb = field(default_factory=lambda: _Climb())

    def observe(self, count: int, wall: float, busy: float | None) -> None:
        """Take in that ``count`` items were fetched here in ``wall`` seconds, of which the thread was ``busy``."""
        each = wall / count
        self.seconds = each if self.seconds == 0.0 else 0.75 * self.seconds + 0.25 * each
        chunk = _CHUNK if self._calm < _CALM else _CALM_CHUNK
        self.chunk = max(1, min(4 * self.chunk, int(chunk / max(each, 1e-8))))
        self.heavy = each > _HEAVY
        if busy is None or not self.heavy or wall - busy < WAITS * wall:
            self._waited *= 0.5
            self._calm += 1
            if self._calm >= _CALM and busy is not None:
                self.suspect = False
            return
        self._calm = 0
        self._waited += wall - busy
        self._looks += 1
        if self._waited >= _WAITED and self._looks >= 2:
            self.fetchers = True

    def arrived(self, now: float, *, starved: bool) -> None:
        """Take in that a fetcher finished an item at ``now``; ``starved``: there was no next one for it."""
        if self.fixed:
            return
        rate = self._climb.measure(now, self.depth, starved=starved)
        if rate is None:
            return
        self.depth = self._climb.step(rate, self.depth, self.most)
        if self._climb.settled and self.seconds > 0.0 and self._climb.best * self.seconds < _WORTH:
            self._fetch_here_again()

    def _fetch_here_again(self) -> None:
        # The fetchers together are no faster than the caller alone: the items compute, they do not wait.
        self.fetchers = False
        self.depth = START
        self._waited, self._looks = -50 * _WAITED, 0
        self._climb = _Climb()


@dataclass(slots=True)
class _Climb:
    """Hill climbing on the rate of arrival, over depths."""

    best: float = 0.0
    settled: bool = False
    _below: int = START
    _since: float = 0.0
    _count: int = 0
    _starved: bool = False
    _hold: int = 0
    _patience: int = 16

    def measure(self, now: float, depth: int, *, starved: bool) -> float | None:
        """Give the rate when a window of at least two rounds of ``depth`` is full, and was never starved."""
        self._starved |= starved
        if self._count == 0 and self._since == 0.0:
            self._since = now
            return None
        self._count += 1
        elapsed = now - self._since
        if self._count < 2 * depth or elapsed < _WINDOW:
            return None
        rate = None if self._starved else self._count / elapsed
        self._since, self._count, self._starved = now, 0, False
        return rate

    def step(self, rate: float, depth: int, most: int) -> int:
        """Give the depth to go on with after ``rate`` was measured at ``depth``."""
        if self.settled:
            self._hold -= 1
            if self._hold > 0:
                return depth
            self.settled, self.best, self._below = False, rate, depth
            return min(most, depth + max(2, depth // 2))
        if rate > _WORTH * self.best:
            self.best = rate
            if depth < most:
                self._below = depth
                return min(most, 2 * depth)
            return self._rest(depth)
        return self._rest(self._below)

    def _rest(self, depth: int) -> int:
        self.settled = True
        self._hold = self._patience
        self._patience = min(1024, 2 * self._patience)
        return depth
