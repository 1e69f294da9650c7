"""What a user gives by mistake is told at once, in words, and costs nothing."""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support import our_threads, picture

import penstock
from penstock.errors import DataError, DecodeError, StateError, TransformError
from penstock.order import order

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def data(tmp_path: Path) -> penstock.Dataset:
    np.save(tmp_path / "rows.npy", np.arange(12))
    return penstock.open(tmp_path / "rows.npy")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch_size": 4.0}, "batch_size"),
        ({"batch_size": "4"}, "batch_size"),
        ({"seed": 1.5}, "seed"),
        ({"window": 1.5}, "size"),
        ({"device": "gpu"}, "device"),
        ({"device": "mps"}, "device"),
        ({"timeout": math.inf}, "timeout"),
        ({"timeout": 1e300}, "timeout"),
        ({"max_pixels": -1}, "max_pixels"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"trace": -1}, "trace"),
        ({"attempts": 0}, "attempts"),
    ],
)
def test_what_makes_no_sense_is_named(data: penstock.Dataset, options: dict[str, Any], says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        penstock.Loader(data, **options)


def test_a_path_in_the_place_of_a_dataset_is_told(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"penstock\.open"):
        penstock.Loader(str(tmp_path), 4)  # type: ignore[arg-type]


def test_any_whole_number_is_a_seed(data: penstock.Dataset) -> None:
    for seed in (-1, 2**64 - 1, 2**70, np.int64(-3)):
        with penstock.Loader(data, 4, seed=seed) as loader:  # type: ignore[arg-type]
            assert sorted(id for batch in loader for id in batch.ids.tolist()) == list(range(12))
    assert order(-1, 0, 5).tolist() == order(2**64 - 1, 0, 5).tolist()


def test_an_error_budget_of_nothing_allows_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"no picture")
    bad = penstock.open(tmp_path)
    with (
        penstock.Loader(bad, 1, on_error="skip", error_budget=0) as loader,
        pytest.raises(DecodeError),
    ):
        list(loader)
    with penstock.Loader(bad, 1, on_error="skip", error_budget=math.inf) as loader:
        assert [batch.skipped for batch in loader] == [(0,)]


def test_a_loader_that_could_not_be_made_leaves_no_thread_and_no_file(
    data: penstock.Dataset, tmp_path: Path
) -> None:
    before = len(our_threads())
    with pytest.raises(ValueError, match="max_pixels"):
        penstock.Loader(data, 4, transform=[dict], record=tmp_path / "run.jsonl", max_pixels=-1)
    (tmp_path / "other").write_text("text")
    with pytest.raises(StateError):
        penstock.Loader(data, 4, transform=[dict], record=tmp_path / "other")
    assert not (tmp_path / "run.jsonl").exists()
    assert len(our_threads()) == before


def test_a_trace_that_cannot_be_saved_does_not_keep_the_threads(
    data: penstock.Dataset, tmp_path: Path
) -> None:
    before = len(our_threads())
    (tmp_path / "file").write_text("")
    loader = penstock.Loader(data, 4, trace=tmp_path / "file" / "run.json")
    list(loader)
    with pytest.raises(OSError, match="file"):
        loader.close()
    assert len(our_threads()) == before


@pytest.mark.parametrize(
    "function",
    [
        lambda sample: None,
        lambda sample: {**sample, **({"odd": 1} if sample["array"] % 2 else {})},
        lambda sample: {**sample, **({} if sample["array"] % 2 else {"even": 1})},
    ],
)
def test_samples_of_one_batch_have_the_same_fields(data: penstock.Dataset, function: Any) -> None:
    with (
        penstock.Loader(data, 4, transform=[penstock.PerSample(function)]) as loader,
        pytest.raises(TransformError, match=r"sample \d"),
    ):
        list(loader)


@pytest.mark.parametrize(
    "place",
    [{"step": 3}, {"step": 10**9}, {"epoch": 2**80}, {"step": True}, {"epoch": 1.0}, {"epoch": -1}],
)
def test_a_state_that_stands_nowhere_is_refused(data: penstock.Dataset, place: dict[str, Any]) -> None:
    with penstock.Loader(data, 4) as loader, pytest.raises(StateError, match="stands"):
        loader.load_state_dict({**loader.state_dict(), **place})


def test_without_a_home_there_is_no_cache_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.sources import cache

    for name in ("PENSTOCK_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 54321)
    assert cache.keep("objects", "name", b"data") is False
    assert cache.kept("objects", "name") is None


def test_a_field_that_a_sample_lacks_is_said_by_the_loader(tmp_path: Path) -> None:
    np.save(tmp_path / "1.npy", np.arange(3))
    np.savez(tmp_path / "2.npz", x=np.arange(3))
    with (
        penstock.Loader(penstock.open(tmp_path), 2) as loader,
        pytest.raises(DataError, match="does not have it"),
    ):
        list(loader)


def test_a_type_that_numpy_lacks_is_told_where_samples_are_numpy_arrays(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    picture(0).save(tmp_path / "0.png")
    transform = [penstock.Resize((8, 8)), penstock.Normalize(), penstock.PerSample(dict)]
    with (
        penstock.Loader(
            penstock.open(tmp_path), 1, transform=transform, dtype="bfloat16", arrays="torch"
        ) as loader,
        pytest.raises(TransformError, match="bfloat16"),
    ):
        list(loader)


def test_what_a_header_claims_is_refused_by_the_users_limits(tmp_path: Path) -> None:
    picture(0, (48, 40)).save(tmp_path / "0.png")
    header = bytearray((tmp_path / "0.png").read_bytes())
    header[16:24] = (2**31 - 1).to_bytes(4, "big") * 2
    header[29:33] = zlib.crc32(header[12:29]).to_bytes(4, "big")
    (tmp_path / "0.png").write_bytes(header)
    with penstock.Loader(penstock.open(tmp_path), 1) as loader, pytest.raises(DecodeError, match="178956970"):
        list(loader)
