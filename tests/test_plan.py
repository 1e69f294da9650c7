"""The full shuffle keeps the contract of a plan."""

from __future__ import annotations

import pytest

from penstock.order import order
from penstock.plan import FullShuffle, Plan
from penstock.testing import PlanSuite


class TestFullShuffle(PlanSuite):
    def make(
        self, samples: int, batch_size: int, *, seed: int, rank: int, world: int, drop_last: bool
    ) -> Plan:
        return FullShuffle(samples, batch_size, seed, rank=rank, world=world, drop_last=drop_last)


def test_the_order_is_frozen() -> None:
    assert order(7, 3, 8).tolist() == FROZEN


FROZEN = [2, 1, 4, 6, 0, 3, 5, 7]


def test_a_batch_smaller_than_the_world_is_refused() -> None:
    with pytest.raises(ValueError, match="global batch"):
        FullShuffle(100, 4, world=8)
