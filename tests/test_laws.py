"""The laws as one property: however a run is interrupted, resumed, spread over ranks and threads, it is the same run."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock

EPOCHS = 2
_Batch = tuple[int, int, tuple[int, ...], tuple[int, ...]]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> penstock.Dataset:
    """90 arrays, of which every eleventh cannot be read."""
    root = tmp_path_factory.mktemp("rows")
    for number in range(90):
        np.save(root / f"{number:02}.npy", np.full(4, number, np.int32))
        if number % 11 == 5:
            (root / f"{number:02}.npy").write_bytes(b"\x93NUMPY broken")
    return penstock.open(root)


def part_of_a_run(
    data: penstock.Dataset, state: str | None, count: int | None, worlds: int, **options: object
) -> tuple[list[_Batch], str | None]:
    """Up to ``count`` steps on ``worlds`` ranks: the global batches and what was skipped, and the state after them."""
    seen: list[_Batch] = []
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                penstock.Loader(
                    data, rank=rank, world=worlds, epochs=EPOCHS, on_error="skip", error_budget=1e6, arrays="numpy", **options
                )
            )
            for rank in range(worlds)
        ]  # fmt: skip
        if state is not None:
            for loader in ranks:
                loader.load_state_dict(json.loads(state))
        if count == 0:
            return seen, state
        for batches in zip(*ranks, strict=True):
            ids: list[int] = []
            for batch in batches:
                kept = batch.size - batch.padding
                assert not batch.size or (np.asarray(batch["array"])[:, 0] == batch.ids).all()
                ids += batch.ids[:kept].tolist()
            skipped = sorted({id for batch in batches for id in batch.skipped})
            seen.append((batches[0].epoch, batches[0].step, tuple(ids), tuple(skipped)))
            if len(seen) == count:
                break
        states = {json.dumps(loader.state_dict(), sort_keys=True) for loader in ranks}
    assert len(states) == 1, "the state says nothing of ranks"
    return seen, states.pop()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    samples=st.integers(1, 90),
    batch_size=st.integers(4, 24),
    seed=st.integers(0, 2**63),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    stops=st.lists(st.tuples(st.sampled_from((1, 2, 3, 4)), st.integers(0, 9)), max_size=4),
    threads=st.integers(1, 4),
    window=st.sampled_from((1, 4096, 1 << 30)),
)
def test_an_interrupted_run_is_the_uninterrupted_one(
    rows: penstock.Dataset, samples: int, batch_size: int, seed: int, *, shuffle: bool, drop_last: bool,
    stops: list[tuple[int, int]], threads: int, window: int,
) -> None:  # fmt: skip
    data = rows[:samples]
    options = {"batch_size": batch_size, "seed": seed, "shuffle": shuffle, "drop_last": drop_last}
    whole, _ = part_of_a_run(data, None, None, 1, **options)

    pieces: list[_Batch] = []
    state = None
    for world, count in stops:
        piece, state = part_of_a_run(data, state, count, world, threads=threads, window=window, **options)
        pieces += piece
        if len(pieces) == len(whole):
            break
    else:
        pieces += part_of_a_run(data, state, None, 1, threads=threads, window=window, **options)[0]
    assert pieces == whole

    dropped = samples % batch_size if drop_last else 0
    for epoch in range(EPOCHS):
        came = Counter(id for at, _, ids, skipped in whole if at == epoch for id in ids + skipped)
        assert not came or max(came.values()) == 1
        assert len(came) == samples - dropped
        bad = {id for at, _, _, skipped in whole if at == epoch for id in skipped}
        assert bad == {id for id in came if id % 11 == 5}
