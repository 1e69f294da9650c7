"""Arrival order: every sample once, moved no further than allowed, resumable, and repeatable from a record."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.window.conftest import SAMPLES, Far

import penstock
from penstock import Loader

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BATCH = 16


def loader(far: Far, **keywords: Any) -> Loader:
    settings: dict[str, Any] = {"seed": 5, "order": "arrival", "max_displacement": 4, "arrays": "numpy"}
    return Loader(far.data, keywords.pop("batch_size", BATCH), **(settings | keywords))


def ids_of(batches: Sequence[penstock.Batch]) -> list[int]:
    return [id for batch in batches for id in batch.ids.tolist()]


def planned(far: Far, epoch: int = 0, rank: int = 0, world: int = 1) -> dict[int, int]:
    """Id → the step at which it was planned."""
    plan = penstock.plan.FullShuffle(SAMPLES, BATCH, 5, rank=rank, world=world)
    return {
        int(id): step.step for step in plan.steps(epoch) for id in far.data.catalog.ids(step.rows).tolist()
    }


def test_each_sample_once_out_of_order_and_no_further_than_allowed(far: Far) -> None:
    with loader(far, max_displacement=2) as one:
        for epoch in range(2):
            batches = list(one)
            assert sorted(ids_of(batches)) == list(range(SAMPLES))
            steps = planned(far, epoch)
            moves = [steps[id] - batch.step for batch in batches for id in batch.ids.tolist()]
            assert any(moves), "nothing came out of order: the wire is too even for this test"
            assert max(map(abs, moves)) <= 2
            for batch in batches:
                (values,) = batch.values()
                np.testing.assert_array_equal(values[:, 0], batch.ids)
                np.testing.assert_array_equal(values[:, -1], batch.ids)


def test_a_loop_left_early_and_resumed_again_and_again_gives_each_sample_once(far: Far) -> None:
    state: dict[str, Any] | None = None
    seen: list[penstock.Batch] = []
    displaced = 0
    while len(seen) < SAMPLES // BATCH:
        with loader(far) as one:
            if state is not None:
                one.load_state_dict(json.loads(json.dumps(state)))
            seen += itertools.islice(one, 4)
            state = one.state_dict()
            displaced += len(state.get("late", ()))
            assert len(state.get("late", ())) == len(state.get("ahead", ()))
    assert sorted(ids_of(seen)) == list(range(SAMPLES))
    assert [batch.step for batch in seen] == list(range(SAMPLES // BATCH))
    assert displaced, "every state was taken where nothing was displaced"
    steps = planned(far)
    assert max(abs(steps[id] - batch.step) for batch in seen for id in batch.ids.tolist()) <= 4
    assert state is not None
    assert (state["epoch"], state["step"]) == (1, 0)
    assert "late" not in state, "at the end of an epoch nothing is displaced"


def test_a_state_in_arrival_order_can_be_gone_on_from_in_strict_order(far: Far) -> None:
    with loader(far) as one:
        batches = iter(one)
        seen = [next(batches)]
        while not (state := one.state_dict()).get("late"):
            seen.append(next(batches))
    with loader(far, order="strict") as two:
        two.load_state_dict(state)
        first = next(iter(two))
        assert set(state["late"]) & set(first.ids.tolist())
        again = two.state_dict()
    with loader(far, order="strict") as three:
        three.load_state_dict(again)
        rest = [first, *three]
    assert sorted(ids_of([*seen, *rest])) == list(range(SAMPLES))


def test_a_record_replayed_gives_the_same_batches_bit_for_bit(far: Far, tmp_path: Path) -> None:
    record = tmp_path / "arrival.jsonl"
    with loader(far, epochs=2, record=record) as one:
        first = list(one)
    far.wire.set(tail="0:1")
    with loader(far, epochs=2, order="strict", replay=record) as two:
        second = list(two)
    assert ids_of(first) != sorted(planned(far), key=planned(far).__getitem__)
    for one_batch, other in zip(first, second, strict=True):
        assert (one_batch.epoch, one_batch.step) == (other.epoch, other.step)
        assert one_batch.ids.tolist() == other.ids.tolist()
        for name in one_batch:
            np.testing.assert_array_equal(one_batch[name], other[name])


def test_a_record_goes_on_after_a_resume_and_the_later_line_of_a_batch_holds(
    far: Far, tmp_path: Path
) -> None:
    record = tmp_path / "arrival.jsonl"
    with loader(far, record=record) as one:
        batches = iter(one)
        kept = list(itertools.islice(batches, 7))
        state = one.state_dict()
        list(itertools.islice(batches, 5))  # what a crash loses
    with record.open("ab") as file:
        file.write(b'{"epoch":0,"step":12,"mo')  # as a kill leaves it
    with loader(far, record=record) as two:
        two.load_state_dict(state)
        kept += list(two)
    assert sorted(ids_of(kept)) == list(range(SAMPLES))
    with loader(far, order="strict", replay=record) as three:
        assert ids_of(list(three)) == ids_of(kept)


def test_a_replay_resumes_in_the_middle_and_refuses_another_order(far: Far, tmp_path: Path) -> None:
    record = tmp_path / "arrival.jsonl"
    with loader(far, record=record) as one:
        whole = ids_of(list(one))
    with loader(far, order="strict", replay=record) as two:
        head = list(itertools.islice(two, 3))
        state = two.state_dict()
    with loader(far, order="strict", replay=record) as three:
        three.load_state_dict(state)
        assert ids_of([*head, *three]) == whole
    with loader(far, order="strict") as strict, pytest.raises(penstock.errors.StateError, match="replay"):
        strict.load_state_dict(state)
    with pytest.raises(penstock.errors.StateError, match="seed"):
        loader(far, order="strict", replay=record, seed=6)
    with (
        loader(far, order="strict", replay=record, epochs=2) as four,
        pytest.raises(penstock.errors.StateError, match="step 0 of epoch 1"),
    ):
        list(four)


def test_ranks_keep_their_own_samples_and_the_padded_batch_keeps_its_slots(far: Far) -> None:
    seen: list[int] = []
    for rank in range(3):
        keywords = {"rank": rank, "world": 3, "batch_size": 21}
        plan = penstock.plan.FullShuffle(SAMPLES, 21, 5, rank=rank, world=3)
        own = np.concatenate([step.rows[: len(step.rows) - step.padding] for step in plan.steps(0)])
        with loader(far, **keywords) as one:
            mine = [id for batch in one for id in batch.ids.tolist()[: batch.size - batch.padding]]
        assert sorted(mine) == sorted(far.data.catalog.ids(own).tolist())
        seen += mine
    assert sorted(seen) == list(range(SAMPLES))


def test_a_rank_refuses_what_another_rank_was_late_with(far: Far) -> None:
    with loader(far, rank=0, world=2) as one:
        batches = iter(one)
        next(batches)
        while not (state := one.state_dict()).get("late"):
            next(batches)
    with loader(far, rank=1, world=2) as two, pytest.raises(penstock.errors.StateError, match="rank 0 of 2"):
        two.load_state_dict(state)


def rank_by_rank(
    far: Far, world: int, batch_size: int, states: list[dict[str, Any]], batches: int, order: str = "arrival"
) -> tuple[list[int], list[dict[str, Any]]]:
    """What each rank hands out in so many batches, padding left out, and its state then."""
    ids: list[int] = []
    found = []
    for rank in range(world):
        with loader(far, batch_size=batch_size, rank=rank, world=world, order=order, epochs=2) as one:
            if states:
                one.load_state_dict(json.loads(json.dumps(states)))
            for batch in itertools.islice(one, batches):
                ids += batch.ids.tolist()[: batch.size - batch.padding]
            found.append(one.state_dict())
    return ids, found


@pytest.mark.parametrize(
    ("batch_size", "worlds"), [(16, (2, 3, 1, 3, 2, 2, 1)), (21, (1, 3, 2, 3)), (21, (3, 2, 1, 2, 3))]
)
def test_on_another_number_of_ranks_it_goes_on_from_the_states_of_all(
    far: Far, batch_size: int, worlds: tuple[int, ...]
) -> None:
    steps = -(-SAMPLES // batch_size)
    seen: list[int] = []
    states: list[dict[str, Any]] = []
    displaced = 0
    for number, world in enumerate(worlds):
        least = (number + 1) * steps // len(worlds) - number * steps // len(worlds)
        ids, states = rank_by_rank(far, world, batch_size, states, least)
        seen += ids
        displaced += sum(len(state.get("late", ())) for state in states)
        assert len(set(seen)) == len(seen), "a sample came twice"
    assert sorted(seen) == list(range(SAMPLES))
    assert displaced, "every state was taken where nothing was displaced"
    assert [(state["epoch"], state["step"]) for state in states] == [(1, 0)] * worlds[-1]
    assert all("late" not in state for state in states), "at the end of an epoch nothing is displaced"
    # And the next epoch is whole, from one state, on any number of ranks.
    ids, _ = rank_by_rank(far, 3, batch_size, states[:1], steps)
    assert sorted(ids) == list(range(SAMPLES))


def test_a_strict_run_goes_on_from_the_states_of_all_ranks_on_another_number_of_them(far: Far) -> None:
    seen, states = rank_by_rank(far, 2, BATCH, [], 5)
    ids, again = rank_by_rank(far, 3, BATCH, states, 2, "strict")
    rest, _ = rank_by_rank(far, 2, BATCH, again, SAMPLES // BATCH - 7, "strict")
    assert sorted(seen + ids + rest) == list(range(SAMPLES))


def test_states_that_are_not_of_all_ranks_are_refused_with_what_to_give(far: Far) -> None:
    _, states = rank_by_rank(far, 3, BATCH, [], 3)
    _, later = rank_by_rank(far, 3, BATCH, states, 1)
    cases = {
        r"rank 0, 2 of 3: what rank 1 handed out is not in it. Give the states of all 3 ranks": [
            states[0],
            states[2],
        ],
        "two of the states are of the same rank": [states[0], states[0], states[2]],
        "different places": [*states[:2], later[2]],
        "a list of the states": [],
    }
    with loader(far, rank=0, world=2) as two:
        for match, given in cases.items():
            with pytest.raises(penstock.errors.StateError, match=match):
                two.load_state_dict(given)
        with pytest.raises(penstock.errors.StateError, match="of all 3 ranks"):
            two.load_state_dict(states[1])
        # Samples that the plan does not have there.
        foreign = [{**states[0], "late": [SAMPLES - 1], "ahead": [SAMPLES + 5]}, *states[1:]]
        with pytest.raises(penstock.errors.StateError, match="not of one run"):
            two.load_state_dict(foreign)


def test_a_record_says_that_it_cannot_tell_of_samples_of_other_ranks(far: Far, tmp_path: Path) -> None:
    _, states = rank_by_rank(far, 2, BATCH, [], 4)
    assert any(state["late"] for state in states)
    with loader(far, record=tmp_path / "r.jsonl") as one:
        one.load_state_dict(states)
        assert len(list(one)) == SAMPLES // BATCH - 4, "alone it has all samples itself"
    for rank in range(3):
        with loader(far, rank=rank, world=3, record=tmp_path / "s-{rank}.jsonl") as one:
            one.load_state_dict(states)
            if set(one.state_dict()["late"]) <= set(planned(far, rank=rank, world=3)):
                assert len(list(one)) == SAMPLES // BATCH - 4
            else:
                with pytest.raises(penstock.errors.StateError, match="record"):
                    list(one)


def test_what_makes_no_sense_is_said(far: Far) -> None:
    with pytest.raises(ValueError, match="order"):
        loader(far, order="random")
    with pytest.raises(ValueError, match="max_displacement"):
        loader(far, max_displacement=-1)
    with pytest.raises(ValueError, match="replay"):
        loader(far, replay="x", record="y")


def test_the_trace_shows_requests_and_why_so_many_were_in_flight(far: Far, tmp_path: Path) -> None:
    with loader(far, order="strict") as one:
        list(one)
        spans = one.trace.spans()
        decisions = one.trace.decisions()
        one.trace.save(tmp_path / "trace.json")
    fetches = [span for span in spans if span.stage == "fetch"]
    requests = [span for span in spans if span.stage == "request"]
    assert len(fetches) == len(requests) == SAMPLES
    assert all(span.thread == -2 and span.bytes > 0 for span in fetches)
    # Five milliseconds there and back, before the first byte.
    assert min(span.seconds for span in requests) >= 0.005
    assert sum(span.seconds for span in requests) <= sum(span.seconds for span in fetches)
    assert decisions[0].reason == "growing"
    assert decisions[0].limit >= 8
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "b" for event in events) == sum(event["ph"] == "e" for event in events)
