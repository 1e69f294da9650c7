"""`penstock doctor` measures every layer of a real dataset, and says what limits in one sentence."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

import penstock
from penstock.doctor import Diagnosis, Layer, Level, examine
from penstock.doctor.figure import draw
from penstock.errors import StoreError
from penstock.trace import Span

if TYPE_CHECKING:
    from pathlib import Path


def level(in_flight: int, rate: float, median: float = 0.05) -> Level:
    return Level(in_flight, rate, rate * 1e5, median, 2 * median, 0)


def diagnosis(
    window: float = 900, decode: float | None = None, loader: float = 880, waited: float = 0.0, cores: int = 2
) -> Diagnosis:
    layers = [Layer("window", window, window * 1e5)]
    if decode is not None:
        layers.append(Layer("decode", decode, decode * 1e5))
    layers.append(Layer("loader", loader, loader * 1e5))
    levels = (level(1, 20), level(8, 160), level(64, 890, 0.07), level(512, 900, 0.6))
    return Diagnosis("s3://bucket/x", 5000, 1e5, 256, cores, levels, tuple(layers), 0.3, waited)


@pytest.mark.parametrize(
    ("found", "limit", "words"),
    [
        (diagnosis(), "store", "64 reads in flight"),
        (diagnosis(decode=300, loader=290), "decode", "2 cores decode 300 samples/s"),
        (diagnosis(decode=300, loader=290, cores=1), "decode", "one core decodes 300"),
        (diagnosis(window=400, loader=390), "window", "44%"),
        (diagnosis(decode=900, loader=450), "cores", "450 together"),
        (diagnosis(decode=2000, loader=300), "loader", "larger batches"),
        (diagnosis(waited=0.4), "store", "waits 40% of its time for data"),
    ],
)
def test_the_sentence_names_what_limits(found: Diagnosis, limit: str, words: str) -> None:
    assert found.limit == limit
    assert words in found.sentence
    assert found.sentence.count(". ") == 0
    assert found.sentence.endswith(".")
    assert json.loads(json.dumps(found.to_json()))["limit"] == limit


def test_enough_is_the_fewest_reads_in_flight_that_give_nearly_all() -> None:
    assert diagnosis().best.in_flight == 512
    assert diagnosis().enough.in_flight == 64


def test_pictures_are_measured_layer_by_layer_and_drawn(picture_folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    found = examine(
        str(picture_folder), batch_size=16, seconds=0.05, crop=24, step=0.002, levels=(1, 4), say=said.append
    )
    assert [one.in_flight for one in found.levels] == [1, 4]
    assert [layer.name for layer in found.layers] == ["window", "decode", "loader", "loader + step"]
    assert all(one.samples_per_s > 0 for one in (*found.levels, *found.layers))
    assert all(0 < one.median <= one.p99 for one in found.levels)
    sizes = [path.stat().st_size for path in picture_folder.rglob("*.jpg")]
    assert min(sizes) <= found.sample_bytes <= max(sizes)
    assert 0 <= found.waited_share <= 1
    assert said == [
        "raw store, 1 in flight",
        "raw store, 4 in flight",
        "window",
        "decode",
        "loader",
        "loader with a step",
    ]
    draw(tmp_path / "doctor.png", found)
    assert (tmp_path / "doctor.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_not_decoded_has_no_decode_layer(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.bin").write_bytes(bytes(100 + number))
    found = examine(str(tmp_path), batch_size=256, seconds=0.05, levels=(2,))
    assert [layer.name for layer in found.layers] == ["window", "loader", "loader + step"]
    assert found.batch_size == 20
    assert found.step_seconds > 0


def test_a_store_that_gives_nothing_is_an_error_that_says_why(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    np.save(data / "a.npy", np.zeros(3))
    dataset = penstock.open(data)
    shutil.rmtree(data)
    with pytest.raises(StoreError, match=r"the store gave nothing: .*a\.npy"):
        examine(dataset, seconds=0.05, levels=(1, 4))


def test_a_dataset_without_samples_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1.bin").write_bytes(b"1")
    none = penstock.open(tmp_path).where("id > 100")
    with pytest.raises(ValueError, match="no samples to measure"):
        examine(none)


def test_the_picture_survives_a_run_without_spans(tmp_path: Path) -> None:
    draw(tmp_path / "none.png", diagnosis())
    spans = (
        Span("fetch", 0, 5, 9, 1),
        Span("decode", 0, 7, 10, 0),
        Span("wait", 0, 0, 11, -1),
        Span("step", 0, 11, 20, -1),
    )
    found = diagnosis()
    draw(tmp_path / "some.png", Diagnosis(**{**found.__dict__, "spans": spans}))
    assert (tmp_path / "some.png").stat().st_size > (tmp_path / "none.png").stat().st_size
