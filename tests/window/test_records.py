"""Records of an arrival order: what is no record is left as it is, and a damaged one is told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

import penstock
from penstock.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def data(tmp_path: Path) -> penstock.Dataset:
    np.save(tmp_path / "rows.npy", np.arange(12))
    return penstock.open(tmp_path / "rows.npy")


@pytest.fixture
def record(data: penstock.Dataset, tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    with penstock.Loader(data, 4, record=path) as loader:
        list(loader)
    return path


@pytest.mark.parametrize("content", [b"weights", b"line one\nline two", b"\n", b'{"a": 1}\nrest'])
def test_a_file_that_is_no_record_is_refused_and_left_as_it_is(
    data: penstock.Dataset, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with pytest.raises(StateError, match="no record"):
        penstock.Loader(data, 4, record=path)
    assert path.read_bytes() == content


def test_a_record_whose_head_or_last_line_was_cut_off_is_gone_on_with(
    data: penstock.Dataset, record: Path
) -> None:
    whole = record.read_bytes()
    for length in (0, 1, 40, whole.index(b"\n"), whole.rindex(b"\n") - 3):
        record.write_bytes(whole[:length])
        with penstock.Loader(data, 4, record=record) as loader:
            batches = [batch.ids.tolist() for batch in loader]
        with penstock.Loader(data, 4, replay=record) as loader:
            assert [batch.ids.tolist() for batch in loader] == batches


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        "[" * 100_000,
        '{"epoch": 0}',
        '{"epoch": 0, "step": 1}',
        '{"epoch": 0, "step": 1, "moves": "0000"}',
        '{"epoch": 0, "step": 1, "moves": [0, 0, 0, 1e9]}',
        '{"epoch": 0, "step": 1, "moves": [0, 0, 0, 99999999999999999999]}',
        '{"epoch": 0, "step": 1, "moves": [0, -1, 0, 0]}',
        '{"epoch": 0, "step": 1, "moves": [-4, 0, 0, 0]}',
    ],
)
def test_a_damaged_record_is_told(data: penstock.Dataset, record: Path, line: str) -> None:
    with record.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(StateError, match="damaged"), penstock.Loader(data, 4, replay=record) as loader:
        list(loader)


def test_the_record_says_what_was_planned(record: Path) -> None:
    moves = [json.loads(line)["moves"] for line in record.read_text().splitlines()[1:]]
    assert moves == [[0] * 4] * 3
