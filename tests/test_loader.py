"""The Loader: what it yields, in which order, and how it goes on."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support import our_threads

import penstock
import penstock.pack
from penstock.errors import ClosedError, StateError


@pytest.fixture(scope="module")
def arrays(array_folder: Path) -> penstock.Dataset:
    return penstock.open(array_folder)


@pytest.fixture(scope="module")
def pictures(picture_folder: Path) -> penstock.Dataset:
    return penstock.open(picture_folder)


def ids_of(loader: penstock.Loader) -> list[list[int]]:
    return [batch.ids.tolist() for batch in loader]


def test_a_batch_holds_the_samples_that_its_ids_name(arrays: penstock.Dataset) -> None:
    with penstock.Loader(arrays, 16, seed=3) as loader:
        seen = []
        for batch in loader:
            assert isinstance(batch["array"], torch.Tensor)
            assert batch["array"].shape[1:] == (4, 5)
            assert (batch["array"][:, 0, 0].numpy() == batch.ids).all()
            seen += batch.ids.tolist()
    assert sorted(seen) == list(range(100))


def test_numpy_arrays_on_request(arrays: penstock.Dataset) -> None:
    with penstock.Loader(arrays, 16, arrays="numpy") as loader:
        batch = next(iter(loader))
    assert type(batch["array"]) is np.ndarray
    assert batch["array"].dtype == np.float32
    assert (np.from_dlpack(batch["array"]) == batch["array"]).all()


def test_batches_stay_valid_after_the_loader_is_closed(arrays: penstock.Dataset) -> None:
    with penstock.Loader(arrays, 10, seed=1) as loader:
        batches = list(loader)
    for batch in batches:
        assert (batch["array"][:, 3, 4].numpy() == batch.ids).all()


def test_each_loop_is_the_next_epoch_in_another_order(arrays: penstock.Dataset) -> None:
    with penstock.Loader(arrays, 16, seed=5) as loader:
        assert len(loader) == 7
        first, second = ids_of(loader), ids_of(loader)
    assert first != second
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(100))
    with penstock.Loader(arrays, 16, seed=5, epochs=2) as loader:
        assert len(loader) == 14
        assert ids_of(loader) == first + second
        assert ids_of(loader) == first + second, "run out, it starts again from the first epoch"


def test_unshuffled_is_the_order_of_the_catalog(arrays: penstock.Dataset) -> None:
    with penstock.Loader(arrays, 32, shuffle=False, drop_last=True) as loader:
        assert sum(ids_of(loader), []) == list(range(96))


def test_labels_come_beside_the_pictures(pictures: penstock.Dataset) -> None:
    with penstock.Loader(pictures, 8, transform=[penstock.Resize((20, 30)), penstock.Normalize()]) as loader:
        for batch in loader:
            assert batch["image"].shape == (batch.size, 3, 20, 30)
            assert batch["image"].dtype == torch.float32
            names = [pictures.catalog.keys()[id] for id in batch.ids]
            expected = [("ant", "bee", "cat").index(name.split("/")[0]) for name in names]
            assert batch["label"].tolist() == expected


def test_samples_of_different_shapes_come_as_a_list_or_padded(pictures: penstock.Dataset) -> None:
    with penstock.Loader(pictures, 12, seed=2) as loader:
        batch = next(iter(loader))
        assert isinstance(batch["image"], list)
        assert len({tuple(image.shape) for image in batch["image"]}) > 1
    with penstock.Loader(pictures, 12, seed=2, pad=0) as loader:
        padded = next(iter(loader))
    assert padded["image"].shape[0] == 12
    for slot, image in enumerate(batch["image"]):
        assert padded["image.lengths"][slot].tolist() == list(image.shape)
        inside = padded["image"][slot][tuple(slice(0, n) for n in image.shape)]
        assert (inside == image).all()


def test_several_fields_of_a_sample_come_together(tar_folder: Path) -> None:
    data = penstock.open(tar_folder)
    crop = [penstock.RandomResizedCrop(24), penstock.Flip()]
    with penstock.Loader(data, 5, transform=crop, layout="NHWC") as loader:
        for batch in loader:
            assert batch["image"].shape == (5, 24, 24, 3)
            assert batch["mask"].shape == (5, 24, 24)
            assert set(batch["mask"].unique().tolist()) <= {0, 7}
            assert [bytes(text).decode() for text in batch["text"]] == [
                "word " * (int(id) + 1) for id in batch.ids
            ]
            # The mask is the picture's first channel above the middle: the same crop must have been cut from both.
            bright = batch["image"][..., 0] > 127
            agreement = ((batch["mask"] > 0) == bright).float().mean()
            assert agreement > 0.93


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("window", [1, "1GiB"])
def test_pixels_do_not_depend_on_threads_or_window(
    pictures: penstock.Dataset, threads: int, window: int | str
) -> None:
    assert pixels(pictures, threads=threads, window=window) == pixels(pictures)


@pytest.mark.parametrize("world", [2, 3, 8])
def test_pixels_do_not_depend_on_the_number_of_ranks(pictures: penstock.Dataset, world: int) -> None:
    merged: dict[tuple[int, int], bytes] = {}
    for rank in range(world):
        merged |= pixels(pictures, rank=rank, world=world)
    assert merged == pixels(pictures)


def pixels(data: penstock.Dataset, **options: object) -> dict[tuple[int, int], bytes]:
    """What each sample looks like in each of two epochs."""
    augment = [penstock.RandomResizedCrop(16), penstock.Flip(), penstock.ColorJitter(0.2, 0.2, 0.2, 0.1)]
    settings = {"batch_size": 16, "seed": 9, "epochs": 2, "transform": augment} | options
    seen = {}
    with penstock.Loader(data, **settings) as loader:
        for batch in loader:
            for id, image in zip(batch.ids.tolist(), batch["image"], strict=True):
                seen[batch.epoch, id] = image.numpy().tobytes()
    return seen


def test_resume_from_every_step_gives_the_rest_exactly(pictures: penstock.Dataset) -> None:
    options = {"batch_size": 16, "seed": 4, "epochs": 2, "transform": [penstock.RandomResizedCrop(12)]}

    def record(loader: penstock.Loader, count: int | None = None) -> list[tuple[list[int], bytes]]:
        out = []
        for batch in loader:
            out.append((batch.ids.tolist(), batch["image"].numpy().tobytes()))
            if len(out) == count:
                break
        return out

    with penstock.Loader(pictures, **options) as loader:
        whole = record(loader)
    for stop in range(1, len(whole)):
        with penstock.Loader(pictures, **options) as loader:
            head = record(loader, stop)
            state = json.loads(json.dumps(loader.state_dict()))
        with penstock.Loader(pictures, **options) as loader:
            loader.load_state_dict(state)
            assert head + record(loader) == whole, f"resumed after batch {stop}"


def test_second_and_third_resume_on_other_worlds(arrays: penstock.Dataset) -> None:
    with penstock.Loader(arrays, 16, seed=6) as loader:
        whole = ids_of(loader)
    pieces: list[list[int]] = []
    state = None
    for world, count in [(1, 2), (3, 2), (2, 1), (8, 99)]:
        ranks = [penstock.Loader(arrays, 16, seed=6, rank=rank, world=world) for rank in range(world)]
        if state is not None:
            for loader in ranks:
                loader.load_state_dict(state)
        for number, batches in enumerate(zip(*ranks, strict=True)):
            real = [batch.ids[: batch.size - batch.padding] for batch in batches]
            pieces.append(np.concatenate(real).tolist())
            if number + 1 == count:
                break
        states = [loader.state_dict() for loader in ranks]
        assert all(other == states[0] for other in states)
        state = states[0]
        for loader in ranks:
            loader.close()
    assert pieces == whole


def test_a_loop_left_early_is_over_and_the_next_is_the_next_epoch(arrays: penstock.Dataset) -> None:
    with penstock.Loader(arrays, 16, seed=5) as loader:
        whole = [ids_of(loader), ids_of(loader)]
    with penstock.Loader(arrays, 16, seed=5) as loader:
        for number, batch in enumerate(loader):
            assert batch.ids.tolist() == whole[0][number]
            if number == 2:
                break
        assert ids_of(loader) == whole[1]


def test_a_second_loop_ends_the_first(arrays: penstock.Dataset) -> None:
    with penstock.Loader(arrays, 16) as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        next(second)
        assert list(first) == []
        assert len(list(second)) == 6


def test_a_state_of_something_else_is_refused(arrays: penstock.Dataset, pictures: penstock.Dataset) -> None:
    with penstock.Loader(arrays, 16, seed=1) as loader:
        state = loader.state_dict()
        for wrong, word in [
            (penstock.Loader(pictures, 16, seed=1), "another dataset"),
            (penstock.Loader(arrays, 16, seed=2), "seed"),
            (penstock.Loader(arrays, 8, seed=1), "batch_size"),
            (penstock.Loader(arrays[:50], 16, seed=1), "another dataset"),
        ]:
            with wrong, pytest.raises(StateError, match=word):
                wrong.load_state_dict(state)
        for broken in ({}, [1], 3, {**state, "version": 99}, {**state, "epoch": -1}, {**state, "plan": 3}):
            with pytest.raises(StateError):
                loader.load_state_dict(broken)


def test_the_last_short_batch_reaches_every_rank_and_says_its_padding(arrays: penstock.Dataset) -> None:
    data = arrays[:33]
    last = []
    for rank in range(8):
        with penstock.Loader(data, 32, rank=rank, world=8) as loader:
            last.append(list(loader)[-1])
    assert [batch.size for batch in last] == [1] * 8
    assert sum(batch.size - batch.padding for batch in last) == 1
    assert all(batch.global_size == 1 for batch in last)
    assert sum(batch.weight for batch in last) == 8, "weights make the mean over ranks the mean over samples"


def test_weights_make_the_gradient_that_of_the_global_batch(arrays: penstock.Dataset) -> None:
    values = np.random.default_rng(0).normal(size=100)
    means = []
    for rank in range(3):
        with penstock.Loader(arrays, 32, rank=rank, world=3) as loader:
            batch = next(iter(loader))
        means.append(batch.weight * values[batch.ids].mean())
        assert batch.size in (10, 11)
    with penstock.Loader(arrays, 32) as loader:
        assert np.isclose(np.mean(means), values[next(iter(loader)).ids].mean())


def test_python_callables_per_batch_and_per_sample(arrays: penstock.Dataset) -> None:
    def negate(sample: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"array": -sample["array"], "sum": sample["array"].sum()}

    def double(fields: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {**fields, "array": fields["array"] * 2}

    with penstock.Loader(arrays, 16, transform=[penstock.PerSample(negate), double]) as loader:
        for batch in loader:
            assert isinstance(batch["array"], torch.Tensor)
            assert (batch["array"][:, 0, 0].numpy() == -2.0 * batch.ids).all()
            assert (batch["sum"].numpy() == 20.0 * batch.ids).all()


def test_per_sample_in_processes(arrays: penstock.Dataset) -> None:
    with penstock.Loader(arrays[:20], 10, transform=[penstock.PerSample(_times_ten, processes=1)]) as loader:
        for batch in loader:
            assert (batch["array"][:, 0, 0].numpy() == 10.0 * batch.ids).all()


def _times_ten(sample: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"array": sample["array"] * 10}


def test_text_columns_come_as_lists(picture_folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    names = sorted(str(p.relative_to(picture_folder)) for p in picture_folder.rglob("*.jpg"))
    for name in names:
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes((picture_folder / name).read_bytes())
    table.write_text("file,site,age\n" + "\n".join(f"{name},s{n % 3},{n}" for n, name in enumerate(names)))
    data = penstock.open(table).select("image", "site", "age")
    with penstock.Loader(data, 10, transform=[penstock.Resize((8, 8))]) as loader:
        for batch in loader:
            assert batch["site"] == [f"s{n % 3}" for n in batch["age"].tolist()]


def test_an_empty_dataset_has_no_batches(arrays: penstock.Dataset) -> None:
    with penstock.Loader(arrays[:0], 16) as loader:
        assert len(loader) == 0
        assert list(loader) == []


def test_wrong_arguments_are_told_at_once(arrays: penstock.Dataset) -> None:
    for wrong in (
        {"batch_size": 0},
        {"epochs": 0},
        {"on_error": "ignore"},
        {"timeout": 0},
        {"threads": 0},
        {"rank": 0},
        {"rank": 2, "world": 2},
        {"batch_size": 4, "rank": 0, "world": 8},
        {"window": "much"},
        {"error_budget": -1},
        {"transform": [str.upper, penstock.Flip()]},
        {"transform": [3]},
        {"arrays": "jax"},
        {"dtype": "float33"},
    ):
        with pytest.raises((ValueError, TypeError)):
            penstock.Loader(arrays, **{"batch_size": 16, **wrong})


def test_a_closed_loader_says_so_and_leaves_no_thread(arrays: penstock.Dataset) -> None:
    loader = penstock.Loader(arrays, 16)
    iteration = iter(loader)
    next(iteration)
    loader.close()
    loader.close()
    with pytest.raises(ClosedError):
        iter(loader)
    assert list(iteration) == []
    assert our_threads() == []


def test_a_closed_loader_lets_go_of_its_files_and_another_keeps_its_own(
    array_folder: Path, tmp_path: Path
) -> None:
    penstock.pack.pack(str(array_folder), tmp_path / "packed", penstock.pack.PackOptions(shard_size=1 << 20))
    data = penstock.open(tmp_path / "packed")

    def held() -> list[str]:
        files = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        maps = Path("/proc/self/maps").read_text().splitlines()
        return [line for line in files + maps if str(tmp_path) in line and line.endswith(".tar")]

    one, two = (penstock.Loader(data, 10, epochs=8) for _ in range(2))
    for loader in (one, two):
        kept = list(loader)
    assert len(held()) >= 2, "nothing was open: this test shows nothing"
    both = len(held())
    one.close()
    assert 0 < len(held()) < both, "the other loader lost its files"
    assert len(list(two)) == 80
    two.close()
    assert held() == []
    assert all((batch["array"][:, 0, 0].numpy() == batch.ids).all() for batch in kept)


def test_a_loader_is_not_sent_to_another_process(arrays: penstock.Dataset) -> None:
    with penstock.Loader(arrays, 16) as loader, pytest.raises(TypeError, match="send its dataset"):
        pickle.dumps(loader)


def test_the_trace_tells_of_every_stage(pictures: penstock.Dataset, tmp_path: Path) -> None:
    with penstock.Loader(pictures, 16, transform=[penstock.Resize((8, 8))]) as loader:
        batches = list(loader)
        spans = loader.trace.spans()
        stats = loader.stats()
        loader.trace.save(tmp_path / "trace.json")
    assert {"fetch", "decode", "wait", "finish", "step"} <= {span.stage for span in spans}
    assert all(span.end_ns >= span.start_ns for span in spans)
    assert sum(span.samples for span in spans if span.stage == "decode") == 60
    assert stats["samples"] == 60
    assert stats["batches"] == len(batches)
    assert stats["bytes"] == sum(
        path.stat().st_size for path in Path(pictures.store.uri.removeprefix("file://")).rglob("*.jpg")
    )
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"X", "M"}
