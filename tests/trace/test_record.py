"""Any loader's steps are timed, in any process, without changing what it yields."""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import open_files

import penstock
from penstock.trace import Recording, Span, load


class Squares:
    """A dataset whose samples say which they are, and whose code marks a stage of its own."""

    def __init__(self, count: int, mark: Any = None) -> None:
        self.count, self.mark, self.colour = count, mark, "blue"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> np.ndarray:
        if index >= self.count:
            raise IndexError(index)
        if self.mark is None:
            return np.full(4, index**2)
        with self.mark("square"):
            return np.full(4, index**2)


class Several(Squares):
    def __getitems__(self, indices: list[int]) -> list[np.ndarray]:
        return [self[index] for index in indices]


def in_child(dataset: Any, indices: list[int], gate: Any) -> None:
    assert [int(dataset[index][0]) for index in indices] == [index**2 for index in indices]
    gate.wait(30)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_record_into_the_same_recording(method: str) -> None:
    recording = Recording()
    dataset = recording.dataset(Squares(20, recording.marker()))
    context = multiprocessing.get_context(method)
    gate = context.Barrier(3)
    children = [
        context.Process(target=in_child, args=(dataset, list(range(start, 20, 2)), gate)) for start in (0, 1)
    ]
    for child in children:
        child.start()
    gate.wait(30)
    for child in children:
        child.join(30)
        assert child.exitcode == 0
    spans = recording.spans()
    got = [span for span in spans if span.stage == "get"]
    assert sorted(span.sample for span in got) == list(range(20))
    assert {span.process for span in got} == {child.pid for child in children}
    assert sum(span.stage == "square" for span in spans) == 20
    assert all(span.bytes == 32 and span.samples == 1 for span in got)


def test_a_killed_worker_loses_its_last_spans_and_nothing_else(tmp_path: Path) -> None:
    recording = Recording()
    dataset = recording.dataset(Squares(1000))
    pid = os.fork()
    if pid == 0:
        for index in range(600):
            if index == 300:
                time.sleep(0.06)  # spans are written when one ends this long after the last time
            dataset[index]
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    dataset[0]
    found = [span.sample for span in recording.spans() if span.process == pid]
    assert found == list(range(len(found)))
    assert len(found) >= 301
    assert sum(span.process == 0 for span in recording.spans()) == 1


def test_steps_waits_and_collates_are_timed_and_batches_pass_unchanged() -> None:
    recording = Recording()
    dataset = recording.dataset(Squares(6))
    collate = recording.collate(np.stack)
    batches = ([dataset[n] for n in range(start, start + 3)] for start in (0, 3))
    seen = []
    for batch in recording.steps(collate(batch) for batch in batches):
        with recording.span("transfer"):
            seen.append(batch)
    assert np.concatenate(seen)[:, 0].tolist() == [n**2 for n in range(6)]
    summary = recording.summary()
    assert {row.stage: row.spans for row in summary} == {
        "get": 6, "collate": 2, "wait": 3 - 1, "transfer": 2, "step": 2,
    }  # fmt: skip
    assert summary["wait"].samples == 6
    assert summary["wait"].bytes == summary["collate"].bytes == 6 * 32
    assert [(span.epoch, span.step) for span in recording.spans() if span.stage == "transfer"] == [
        (0, 0),
        (0, 1),
    ]
    assert "collate" in str(summary)
    with pytest.raises(KeyError, match="'decode'"):
        _ = summary["decode"]


def test_a_wrapped_dataset_is_the_original_but_for_the_clock() -> None:
    recording = Recording()
    plain, several = recording.dataset(Squares(5)), recording.dataset(Several(5))
    assert len(plain) == 5
    assert plain.colour == "blue"
    assert not hasattr(plain, "__getitems__")
    assert [int(value[0]) for value in several.__getitems__([1, 3])] == [1, 9]
    assert [int(value[0]) for value in plain] == [0, 1, 4, 9, 16]
    assert int(pickle.loads(pickle.dumps(plain))[3][0]) == 9
    stream = recording.dataset(iter([b"a", b"bc"]))
    assert list(stream) == [b"a", b"bc"]


def test_nothing_is_left_of_a_recording() -> None:
    before = open_files()
    recording = Recording()
    recording.dataset(Squares(3))[1]
    folder = Path(recording._folder)
    assert folder.is_dir()
    del recording
    gc.collect()
    assert not folder.exists()
    assert open_files() == before


def test_threads_keep_their_spans_apart() -> None:
    recording = Recording()
    dataset = recording.dataset(Squares(200))
    barrier = threading.Barrier(4)

    def work(start: int) -> None:
        barrier.wait(30)
        for index in range(start, 200, 4):
            dataset[index]

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    [thread.start() for thread in threads]
    [thread.join(30) for thread in threads]
    got = recording.spans()
    assert sorted(span.sample for span in got) == list(range(200))
    for thread in {span.thread for span in got}:
        mine = [span for span in got if span.thread == thread]
        assert all(one.end_ns <= two.start_ns for one, two in itertools.pairwise(mine))


def test_spans_survive_parquet_and_perfetto_reads_the_json(tmp_path: Path) -> None:
    recording = Recording()
    recording.add("decode", 1, 2, 10, 30, 4, 50, sample=7, thread=3)
    recording.add("step", 1, 2, 30, 70, 4)
    recording.save(tmp_path / "t.parquet")
    assert load(tmp_path / "t.parquet") == recording.spans()
    assert load(tmp_path / "t.parquet")[0] == Span("decode", 2, 10, 30, 3, 1, 4, 50, 7, 0)
    recording.save(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "X"] == ["decode 2", "step 2"]
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} == {
        "penstock",
        "trainer",
        "worker 3",
    }
    Recording().save(tmp_path / "empty.parquet")
    assert load(tmp_path / "empty.parquet") == []


def test_a_loader_saves_its_trace_when_it_closes(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(60, dtype=np.float32).reshape(20, 3))
    path = tmp_path / "run.parquet"
    with penstock.Loader(penstock.open(tmp_path / "x.npy"), batch_size=5, trace=path) as loader:
        assert len(list(loader)) == 4
    spans = load(path)
    assert {"copy", "wait", "step"} <= {span.stage for span in spans}
    assert sum(span.stage == "step" for span in spans) == 4
