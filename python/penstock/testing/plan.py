"""What every plan must do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from penstock.plan import Plan, Step

WORLDS = (1, 2, 3, 8)


class PlanSuite(ABC):
    """Subclass it, implement :meth:`make`, and let pytest collect the subclass."""

    @abstractmethod
    def make(
        self, samples: int, batch_size: int, *, seed: int, rank: int, world: int, drop_last: bool
    ) -> Plan:
        """A plan over ``samples`` rows."""

    def _plans(
        self, samples: int, batch_size: int, world: int, *, drop_last: bool = False, seed: int = 1
    ) -> list[Plan]:
        return [
            self.make(samples, batch_size, seed=seed, rank=rank, world=world, drop_last=drop_last)
            for rank in range(world)
        ]

    @staticmethod
    def _real(step: Step) -> list[int]:
        rows = [int(row) for row in step.rows]
        return rows[: len(rows) - step.padding] if step.padding else rows

    def _global(self, plans: list[Plan], epoch: int, start: int = 0) -> list[list[int]]:
        """Global batches of an epoch: each rank's real rows, rank after rank."""
        per_rank = [list(plan.steps(epoch, start)) for plan in plans]
        counts = {len(steps) for steps in per_rank}
        assert len(counts) == 1, f"the ranks have different numbers of steps: {sorted(counts)}"
        return [[row for step in steps for row in self._real(step)] for steps in zip(*per_rank, strict=True)]

    @settings(max_examples=60, deadline=None)
    @given(
        samples=st.integers(0, 300),
        batch_size=st.integers(8, 64),
        world=st.sampled_from(WORLDS),
        epoch=st.integers(0, 5),
        seed=st.integers(0, 2**32),
        drop_last=st.booleans(),
    )
    def test_each_sample_exactly_once_per_epoch(
        self, samples: int, batch_size: int, world: int, epoch: int, seed: int, *, drop_last: bool
    ) -> None:
        plans = self._plans(samples, batch_size, world, drop_last=drop_last, seed=seed)
        seen = Counter(row for batch in self._global(plans, epoch) for row in batch)
        assert not seen or max(seen.values()) == 1, (
            f"came more than once: {[r for r, n in seen.items() if n > 1]}"
        )
        assert set(seen) <= set(range(samples))
        assert len(seen) == samples - plans[0].dropped, "dropped does not say how many samples are left out"
        if not drop_last:
            assert plans[0].dropped == 0
        assert plans[0].dropped < batch_size

    @pytest.mark.parametrize("world", WORLDS)
    def test_the_global_batches_are_the_same_on_any_number_of_ranks(self, world: int) -> None:
        alone = self._global(self._plans(301, 32, 1), epoch=2)
        assert self._global(self._plans(301, 32, world), epoch=2) == alone

    @pytest.mark.parametrize("world", WORLDS)
    def test_of_rank_is_the_plan_that_the_other_rank_has(self, world: int) -> None:
        (alone,) = self._plans(301, 32, 1)
        if not hasattr(alone, "of_rank"):
            pytest.skip("this plan has no of_rank")
        found = self._global([alone.of_rank(rank, world) for rank in range(world)], epoch=2)
        assert found == self._global(self._plans(301, 32, world), epoch=2)

    @pytest.mark.parametrize("world", WORLDS)
    def test_no_rank_is_left_without_samples(self, world: int) -> None:
        for samples in (32 * 3 + 1, 32 * 3 + world):
            for plan in self._plans(samples, 32, world):
                assert all(len(step.rows) > 0 for step in plan.steps(0))

    @pytest.mark.parametrize("world", WORLDS)
    def test_padding_is_said_and_repeats_samples_of_its_own_batch(self, world: int) -> None:
        plans = self._plans(32 + 1, 32, world)
        whole = self._global(plans, epoch=0)
        for plan in plans:
            for number, step in enumerate(plan.steps(0)):
                padded = (
                    [int(row) for row in step.rows[len(step.rows) - step.padding :]] if step.padding else []
                )
                assert set(padded) <= set(whole[number])
                assert step.global_size == len(whole[number])

    @pytest.mark.parametrize("world", WORLDS)
    def test_steps_from_any_start_are_the_tail_of_the_epoch(self, world: int) -> None:
        plans = self._plans(131, 16, world)
        whole = self._global(plans, epoch=1)
        for start in range(plans[0].steps_per_epoch + 1):
            assert self._global(plans, 1, start) == whole[start:]

    def test_resumed_twice_and_thrice_on_other_worlds_it_is_still_the_same_epoch(self) -> None:
        whole = self._global(self._plans(203, 24, 1), epoch=4)
        stops = [(0, 3, 2), (3, 5, 8), (5, 6, 1), (6, len(whole), 3)]
        pieces = []
        for start, stop, world in stops:
            pieces += self._global(self._plans(203, 24, world), 4, start)[: stop - start]
        assert pieces == whole

    def test_the_number_of_steps_is_as_announced(self) -> None:
        for samples in (0, 1, 23, 24, 25, 240):
            for drop_last in (False, True):
                (plan,) = self._plans(samples, 24, 1, drop_last=drop_last)
                assert len(list(plan.steps(0))) == plan.steps_per_epoch

    def test_steps_name_their_place_and_rows_are_int64(self) -> None:
        (plan,) = self._plans(100, 32, 1)
        for number, step in enumerate(plan.steps(3)):
            assert (step.epoch, step.step) == (3, number)
            assert step.rows.dtype == np.int64

    def test_what_decides_the_order_is_in_the_state_as_json(self) -> None:
        import json

        first, other = (self._plans(64, 16, 1, seed=seed)[0].state() for seed in (1, 2))
        assert json.loads(json.dumps(dict(first))) == dict(first)
        assert dict(first) != dict(other), "another seed must give another state"
