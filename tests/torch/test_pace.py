"""The pace: light items stay where they are, waiting ones get fetchers, and those only as many as they gain from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.torch.pace import MOST_THREADS, START, Pace

if TYPE_CHECKING:
    from collections.abc import Callable


def run(pace: Pace, rate_at: Callable[[int], float], seconds: float, *, starved: bool = False) -> list[int]:
    """Let a made-up clock run in which items arrive at ``rate_at(depth)`` a second; the depths it went through."""
    now, depths = 1000.0, []
    end = now + seconds
    while now < end:
        now += 1.0 / rate_at(pace.depth)
        pace.arrived(now, starved=starved)
        if not depths or depths[-1] != pace.depth:
            depths.append(pace.depth)
    return depths


def test_light_items_stay_in_the_calling_thread() -> None:
    pace = Pace()
    for _ in range(1000):
        pace.observe(pace.chunk, pace.chunk * 2e-6, pace.chunk * 2e-6 if pace.heavy else None)
    assert not pace.fetchers
    assert pace.chunk > 256, "hardly a look at the clock"


def test_items_that_compute_stay_in_the_calling_thread() -> None:
    pace = Pace()
    for _ in range(1000):
        pace.observe(1, 5e-3, 4.9e-3)
    assert not pace.fetchers


def test_two_items_that_wait_are_enough_to_hire_fetchers() -> None:
    pace = Pace()
    pace.observe(1, 0.05, 0.0001)
    assert not pace.fetchers, "the first may have been a file being opened"
    pace.observe(1, 0.05, 0.0001)
    assert pace.fetchers


def test_one_slow_item_among_light_ones_hires_nobody() -> None:
    pace = Pace()
    pace.observe(1, 0.05, 0.0001)
    for _ in range(200):
        pace.observe(10, 20e-6, 20e-6 if pace.heavy else None)
    assert not pace.fetchers


def test_depth_starts_with_little_and_doubles_while_the_rate_grows() -> None:
    pace = Pace()
    depths = run(pace, lambda depth: depth / 0.05, seconds=3.0)
    assert depths[:6] == [START, 8, 16, 32, 64, MOST_THREADS]


def test_depth_stays_where_more_gains_nothing() -> None:
    pace = Pace()
    run(pace, lambda depth: min(depth, 16) / 0.05, seconds=4.0)
    assert 16 <= pace.depth <= 24


def test_depth_steps_back_where_more_collapses() -> None:
    pace = Pace()
    run(pace, lambda depth: depth / 0.05 if depth <= 16 else 8 / 0.05, seconds=3.0)
    assert pace.depth <= 16


def test_depth_does_not_grow_while_there_is_too_little_to_do() -> None:
    pace = Pace()
    run(pace, lambda depth: depth / 0.05, seconds=3.0, starved=True)
    assert pace.depth == START


def test_what_the_user_said_is_not_tuned() -> None:
    pace = Pace(depth=10, most=10, fixed=True, fetchers=True)
    run(pace, lambda depth: depth / 0.05, seconds=3.0)
    assert pace.depth == 10


def test_fetchers_no_faster_than_the_caller_are_let_go() -> None:
    pace = Pace()
    for _ in range(4):
        pace.observe(1, 1e-3, 0.2e-3)
    assert pace.fetchers
    run(pace, lambda _: 1000.0, seconds=3.0)
    assert not pace.fetchers
