"""The copy to the GPU: ahead of the step, from pinned slabs, each held until its copy has ended.

Without a GPU, streams and events are stand-ins that write down what is asked of them; the tests marked ``gpu`` use a real one.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import penstock
from penstock import device

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class FakeCuda:
    """Stands in for torch.cuda: a log, and copies that end when the test says so."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.ended = True
        self.registered: dict[int, int] = {}
        self.refuse = False

    def Stream(self, device: str) -> str:  # noqa: N802 - torch's name
        return f"stream on {device}"

    @contextlib.contextmanager
    def stream(self, stream: str) -> Iterator[None]:
        self.log.append(f"enter {stream}")
        yield

    def Event(self) -> Any:  # noqa: N802 - torch's name
        cuda = self

        class Event:
            def record(self, stream: str) -> None:
                cuda.log.append("record")

            def query(self) -> bool:
                return cuda.ended

            def synchronize(self) -> None:
                cuda.log.append("synchronize")

        return Event()

    def current_stream(self) -> Any:
        cuda = self

        class Current:
            def wait_event(self, event: Any) -> None:
                cuda.log.append("wait")

        return Current()

    def cudart(self) -> Any:
        cuda = self

        class Runtime:
            def cudaHostRegister(self, address: int, length: int, flags: int) -> int:  # noqa: N802
                assert address not in cuda.registered, "a slab is registered once"
                cuda.registered[address] = length
                return 1 if cuda.refuse else 0

            def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
                del cuda.registered[address]
                return 0

        return Runtime()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    for name in ("Stream", "stream", "Event", "current_stream", "cudart"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: fake.log.append("used"))

    def moved(value: Any, to: str) -> Any:
        assert to == "cuda:0"
        fake.log.append("copy")
        return [moved(item, to) for item in value] if isinstance(value, list) else value.clone()

    monkeypatch.setattr(device, "_moved", moved)
    return fake


def test_batches_arrive_in_order_and_whole(cuda: FakeCuda, array_folder: Path) -> None:
    with penstock.Loader(penstock.open(array_folder), 16, seed=3) as loader:
        expected = [(batch.step, batch.ids.tolist()) for batch in loader]
    with penstock.Loader(penstock.open(array_folder), 16, seed=3, device="cuda:0") as loader:
        seen = []
        for batch in loader:
            assert isinstance(batch["array"], torch.Tensor)
            assert (batch["array"][:, 0, 0].numpy() == batch.ids).all()
            seen.append((batch.step, batch.ids.tolist()))
        state = loader.state_dict()
    assert seen == expected
    assert (state["epoch"], state["step"]) == (1, 0)
    assert cuda.log.count("copy") == 7
    assert cuda.log.count("wait") == 7, "the step waits for its copy on the GPU, and not the CPU"


def test_the_next_copy_is_under_way_before_a_batch_is_handed_over(cuda: FakeCuda, array_folder: Path) -> None:
    with penstock.Loader(penstock.open(array_folder), 25, device="cuda:0") as loader:
        batches = iter(loader)
        next(batches)
        assert cuda.log.count("copy") == 2
        assert loader.state_dict()["step"] == 1, "the state counts what was handed over, not what was copied"
        rest = list(batches)
    assert len(rest) == 3


def test_host_memory_is_held_until_its_copy_has_ended(cuda: FakeCuda, array_folder: Path) -> None:
    cuda.ended = False
    with penstock.Loader(penstock.open(array_folder), 10, device="cuda:0") as loader:
        held = [loader.stats()["memory_bytes"] for _ in loader]
    assert cuda.log.count("synchronize") == 10, "at the end each copy is waited for"
    cuda.ended = True
    with penstock.Loader(penstock.open(array_folder), 10, device="cuda:0") as loader:
        let_go = [loader.stats()["memory_bytes"] for _ in loader]
    assert max(held) >= max(let_go)


def test_each_slab_is_pinned_once_and_unpinned_at_the_close(cuda: FakeCuda, array_folder: Path) -> None:
    with penstock.Loader(penstock.open(array_folder), 10, device="cuda:0", epochs=4) as loader:
        for _ in loader:
            pass
        assert len(cuda.registered) >= 1
        assert all(length >= 10 * 4 * 5 * 4 for length in cuda.registered.values())
    assert cuda.registered == {}


def test_where_the_trainer_uses_cuda_batches_are_pinned_for_copies_of_its_own(
    cuda: FakeCuda, array_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = penstock.open(array_folder)
    with penstock.Loader(data, 10) as loader:
        list(loader)
        assert cuda.registered == {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with penstock.Loader(data, 10) as loader:
        list(loader)
        assert cuda.registered
    assert cuda.registered == {}
    with penstock.Loader(data, 10, arrays="numpy") as loader:
        list(loader)
        assert cuda.registered == {}


def test_memory_that_cannot_be_pinned_is_used_as_it_is(cuda: FakeCuda, array_folder: Path) -> None:
    cuda.refuse = True
    with penstock.Loader(penstock.open(array_folder), 10, device="cuda:0") as loader:
        assert sorted(int(id) for batch in loader for id in batch.ids) == list(range(100))
    cuda.registered.clear()


def test_a_loop_left_early_leaves_nothing_registered(cuda: FakeCuda, array_folder: Path) -> None:
    with penstock.Loader(penstock.open(array_folder), 10, device="cuda:0", transform=[dict]) as loader:
        for _ in loader:
            break
        assert sorted(int(id) for batch in loader for id in batch.ids) == list(range(100))
    assert cuda.registered == {}


def test_a_gpu_that_is_not_there_is_told_at_once(array_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="sees no GPU"):
        penstock.Loader(penstock.open(array_folder), 10, device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_batches_are_those_of_the_cpu(picture_folder: Path) -> None:
    data = penstock.open(picture_folder)
    options: dict[str, Any] = {
        "batch_size": 8, "seed": 3, "epochs": 3, "transform": [penstock.RandomResizedCrop(32), penstock.Normalize()]
    }  # fmt: skip
    with penstock.Loader(data, **options) as loader:
        expected = [(batch.ids.tolist(), batch["image"].numpy().copy()) for batch in loader]
    with penstock.Loader(data, device="cuda", **options) as loader:
        seen = []
        for batch in loader:
            assert batch["image"].is_cuda
            assert batch["label"].is_cuda
            doubled = batch["image"] * 2  # work on the trainer's own stream
            seen.append((batch.ids.tolist(), (doubled / 2).cpu().numpy()))
    assert [ids for ids, _ in seen] == [ids for ids, _ in expected]
    for (_, here), (_, there) in zip(seen, expected, strict=True):
        assert np.array_equal(here, there)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_copies_are_made_ahead_from_pinned_memory(array_folder: Path) -> None:
    with penstock.Loader(penstock.open(array_folder), 10, epochs=3, device="cuda", window="1MiB") as loader:
        for batch in loader:
            torch.cuda._sleep(1_000_000)
            assert (batch["array"][:, 0, 0].cpu().numpy() == batch.ids).all()
