"""Arrival order: which samples came before or after their step, what a resumed run has left, and records of it.

``order="arrival"`` fills the oldest open batch with whatever arrives. The plan stays what it is; what differs is kept
as two small sets of ids: **late** (planned for a batch that was handed out, and not in any yet) and **ahead** (planned for
a later batch, and handed out already). They are always of one size, they are empty at the end of each epoch, and with
the number of the next step they are the whole state.

On another number of ranks, :func:`dealt` gives each rank as many of the late samples of all as it has samples that are ahead
already, so that its batches keep their sizes.

A record is a file of JSON lines: a head that says of what, then a line a batch with, slot by slot, how far from its place
in the epoch's order the sample was. Where a run was resumed before the end of its record, the later line of a batch holds.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import StateError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt

    from penstock.batch import Batch
    from penstock.plan import Plan, Step

    type_rows = npt.NDArray[np.int64]
    type_ids = Callable[[type_rows], npt.NDArray[np.uint64]]

_VERSION = 1


@dataclass(frozen=True)
class Displaced:
    """The ids that are late and those that are ahead."""

    late: frozenset[int] = frozenset()
    ahead: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.late or self.ahead)

    def after(self, planned: set[int], delivered: set[int]) -> Displaced:
        """Once a batch of ``delivered`` was handed out in the place of ``planned``."""
        return Displaced(
            (self.late - delivered) | (planned - delivered - self.ahead),
            (self.ahead - planned) | (delivered - planned - self.late),
        )


def dealt(
    plan: Plan, ids: type_ids, epoch: int, step: int, everybody: Displaced, rank: int, world: int
) -> Displaced:
    """The part of ``rank`` of ``world`` in what ``everybody`` has displaced before ``step``.

    A sample that is ahead stays with the rank that it is planned for now; the late ones are dealt in turn, the oldest
    first, until each rank has as many as it has ahead. Every rank comes to the same answer by itself.
    """
    given = np.fromiter(everybody.ahead, np.uint64, len(everybody.ahead))
    ahead: list[frozenset[int]] = []
    for one in range(world):
        steps = _of_rank(plan, one, world).steps(epoch, step)
        own = [ids(each.rows[: len(each.rows) - each.padding]) for each in steps]
        planned = np.concatenate([np.empty(0, np.uint64), *own])
        ahead.append(frozenset(planned[np.isin(planned, given)].tolist()))
    if sum(map(len, ahead)) != len(everybody.ahead) or len(everybody.late) != len(everybody.ahead):
        raise StateError(
            f"the states name {len(everybody.ahead)} samples that came ahead and {len(everybody.late)} that are late; "
            f"{sum(map(len, ahead))} of the former are in what is left of the plan: they are not of one run, or not of this one"
        )
    behind = _behind(_of_rank(plan, 0, 1), ids, epoch, step, everybody.late)
    oldest = iter([id for _, rows in behind for id in ids(rows).tolist()])
    late: list[set[int]] = [set() for _ in range(world)]
    while sum(map(len, late)) < len(everybody.late):
        for one in range(world):
            if len(late[one]) < len(ahead[one]):
                late[one].add(next(oldest))
    return Displaced(frozenset(late[rank]), ahead[rank])


def _of_rank(plan: Plan, rank: int, world: int) -> Plan:
    """The same plan as another rank has it."""
    of_rank = getattr(plan, "of_rank", None)
    if of_rank is None:
        raise StateError(
            f"{type(plan).__name__} has no of_rank(rank, world): in the middle of an epoch in arrival order it goes on only on "
            "the number of ranks that the state was taken on"
        )
    found: Plan = of_rank(rank, world)
    return found


def _behind(
    plan: Plan, ids: type_ids, epoch: int, start: int, late: frozenset[int]
) -> list[tuple[int, type_rows]]:
    """The steps before ``start`` and their samples that are late. StateError where some are in none of them."""
    behind = []
    wanted = np.fromiter(late, np.uint64, len(late))
    for step in itertools.takewhile(lambda step: step.step < start, plan.steps(epoch)) if late else ():
        is_late = np.isin(ids(step.rows), wanted)
        if is_late.any():
            behind.append((step.step, step.rows[is_late]))
    found = sum(len(rows) for _, rows in behind)
    if found != len(late):
        raise StateError(
            f"the state names {len(late)} samples that are still to come, and {found} of them are in the plan"
        )
    return behind


class Arrivals:
    """What was handed out, against what was planned: the displaced samples, and where each one came from."""

    def __init__(self, plan: Plan, ids: type_ids, *, places: bool) -> None:
        """``places``: whether :meth:`handed_out` shall say where samples came from, for a record."""
        self._plan = plan
        self._ids = ids
        self._planned: dict[tuple[int, int], tuple[int, list[int]]] = {}
        self._places: dict[int, dict[int, int]] | None = {} if places else None
        self.displaced = Displaced()

    def begin(self, displaced: Displaced) -> None:
        """A loop begins, where these samples are displaced."""
        self._planned.clear()
        if self._places is not None:
            self._places.clear()
        self.displaced = displaced

    def steps(self, epoch: int, start: int, displaced: Displaced) -> Iterator[Step]:
        """The steps of an epoch from ``start`` on, where these samples are displaced."""
        first, known = 0, 0
        if start and self._places is not None:
            late = np.fromiter(displaced.late, np.uint64, len(displaced.late))
            for step in itertools.takewhile(lambda step: step.step < start, self._plan.steps(epoch)):
                is_late = np.isin(self._ids(step.rows), late)
                self._remember(epoch, first, step.rows, is_late)
                first += len(step.rows)
                known += int(is_late.sum())
            if known != len(late):
                raise StateError(
                    "this rank was dealt samples of another one, which its record cannot tell: go on without record= until "
                    "the end of the epoch"
                )
        # What is late may have been planned for another rank: of another number of them.
        whole = self._plan.of_rank(0, 1) if hasattr(self._plan, "of_rank") else self._plan
        behind = _behind(whole, self._ids, epoch, start, displaced.late)
        source = self._watched(epoch, start, first)
        return _carried_on(source, behind, displaced.ahead, self._ids) if displaced else source

    def _watched(self, epoch: int, start: int, first: int) -> Iterator[Step]:
        for step in self._plan.steps(epoch, start):
            self._planned[epoch, step.step] = (first, self._ids(step.rows).tolist())
            self._remember(epoch, first, step.rows)
            first += len(step.rows)
            yield step

    def _remember(self, epoch: int, first: int, rows: type_rows, which: Any = ...) -> None:
        if self._places is not None:
            places = np.arange(first, first + len(rows))[which].tolist()
            self._places.setdefault(epoch, {}).update(
                zip(self._ids(rows)[which].tolist(), places, strict=True)
            )

    def handed_out(self, batch: Batch) -> list[int]:
        """Counts a batch. With ``places``: slot by slot, how far from its place each sample was; the skipped ones last."""
        first, planned = self._planned.pop((batch.epoch, batch.step))
        if batch.padding:  # it keeps its samples
            return [0] * len(planned)
        came = [*batch.ids.tolist(), *batch.skipped]
        self.displaced = self.displaced.after(set(planned), set(came))
        if self._places is None:
            return []
        places = self._places[batch.epoch]
        for epoch in [epoch for epoch in self._places if epoch < batch.epoch]:
            del self._places[epoch]
        return [places.pop(id) - first - slot for slot, id in enumerate(came)]


def _carried_on(
    source: Iterator[Step], behind: list[tuple[int, type_rows]], ahead: frozenset[int], ids: type_ids
) -> Iterator[Step]:
    """The late samples first, those ahead left out, in batches of the source's sizes.

    Each step says at which step its samples were planned, so that a bound on displacement goes on to hold.
    """
    given = np.fromiter(ahead, np.uint64, len(ahead))
    rows = np.concatenate([np.empty(0, np.int64), *(rows for _, rows in behind)])
    planned = np.concatenate([np.empty(0, np.int64), *(np.full(len(rows), step) for step, rows in behind)])
    waiting: deque[Step] = deque()
    while True:
        while not waiting or (len(rows) < len(waiting[0].rows) and not waiting[0].padding):
            step = next(source, None)
            if step is None:
                break
            waiting.append(step)
            if not step.padding:
                kept = step.rows[~np.isin(ids(step.rows), given)]
                rows = np.concatenate([rows, kept])
                planned = np.concatenate([planned, np.full(len(kept), step.step)])
        if not waiting:
            return
        step = waiting.popleft()
        size = len(step.rows)
        if step.padding:
            yield step
            continue
        if len(rows) < size:
            raise StateError(f"the state leaves {len(rows)} samples for step {step.step}, which has {size}")
        own = planned[:size]
        yield replace(step, rows=rows[:size].copy(), planned=None if (own == step.step).all() else own.copy())
        rows, planned = rows[size:], planned[size:]


class Recorder:
    """Writes a record as batches are handed out; each line is in the file at once, so that a kill loses none."""

    def __init__(self, path: str | os.PathLike[str], head: Mapping[str, Any]) -> None:
        """Goes on in a record that is there, if it is of the same data and order."""
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab+")
        try:
            self._go_on({"penstock": "arrival", "version": _VERSION, **head}, head)
        except BaseException:
            self._file.close()
            raise

    def _go_on(self, first: Mapping[str, Any], head: Mapping[str, Any]) -> None:
        self._file.seek(0)
        written = self._file.readline()
        if written.endswith(b"\n"):
            _check_head(self.path, written, head)
            self._file.seek(0)
            whole = self._file.read().rpartition(b"\n")[0]
            self._file.truncate(len(whole) + 1)  # without a line that a kill cut off
        elif _line(first).startswith(written):  # nothing yet, or a kill cut the head off
            self._file.truncate(0)
            self._write(first)
        else:  # somebody's file: it is left as it is
            raise StateError(f"{self.path} is no record of an arrival order")

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(_line(line))
        self._file.flush()

    def add(self, epoch: int, step: int, moves: list[int]) -> None:
        """One batch."""
        self._write({"epoch": epoch, "step": step, "moves": moves})

    def close(self) -> None:
        """Ends the file."""
        self._file.close()


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _parsed(path: Path, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise StateError(f"{path} is damaged: {line[:40]!r} is no line of a record")
    return found


def _check_head(path: Path, line: bytes, head: Mapping[str, Any]) -> None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = {}
    if not isinstance(found, dict) or found.get("penstock") != "arrival":
        raise StateError(f"{path} is no record of an arrival order")
    if found.get("version") != _VERSION:
        raise StateError(
            f"{path} has version {found.get('version')!r}; this penstock reads version {_VERSION}"
        )
    for name, value in head.items():
        if found.get(name) != value:
            raise StateError(
                f"{path} was recorded with {name}={found.get(name)!r}, but this loader has {value!r}"
            )


class Replay:
    """The plan as a record has it: the same samples in the same slots of the same batches."""

    def __init__(self, plan: Plan, path: str | os.PathLike[str], head: Mapping[str, Any]) -> None:
        self._plan = plan
        self._path = Path(path)
        self._lines: dict[tuple[int, int], int] = {}
        with self._path.open("rb") as file:
            _check_head(self._path, file.readline(), head)
            at = file.tell()
            for line in file:
                if line.endswith(b"\n"):
                    entry = _parsed(self._path, line)
                    epoch, step = entry.get("epoch"), entry.get("step")
                    if not (isinstance(epoch, int) and isinstance(step, int)):
                        raise StateError(f"{self._path} is damaged: {line[:40]!r} names no batch")
                    self._lines[epoch, step] = at
                at += len(line)

    @property
    def steps_per_epoch(self) -> int:
        """As planned."""
        return self._plan.steps_per_epoch

    @property
    def dropped(self) -> int:
        """As planned."""
        return self._plan.dropped

    def state(self) -> Mapping[str, object]:
        """As planned, and that it is a replay: its batches are others."""
        return {**self._plan.state(), "replay": True}

    def steps(self, epoch: int, start: int = 0) -> Iterator[Step]:
        """The steps of ``epoch`` from step ``start`` on, as recorded. StateError where the record ends."""
        planned = list(self._plan.steps(epoch))
        order = np.concatenate([step.rows for step in planned]) if planned else np.empty(0, np.int64)
        given = np.zeros(len(order), bool)
        first = 0
        with self._path.open("rb") as file:
            for step in planned:
                size = len(step.rows)
                if step.step >= start and not step.padding:
                    at = self._lines.get((epoch, step.step))
                    if at is None:
                        raise StateError(
                            f"{self._path} has no batch for step {step.step} of epoch {epoch}: the run was recorded no further"
                        )
                    file.seek(at)
                    moves = self._moves(file.readline(), step)
                    if len(moves) != size:
                        raise StateError(
                            f"{self._path} has {len(moves)} samples for step {step.step} of epoch {epoch}, which has {size}"
                        )
                    places = np.arange(first, first + size) + moves
                    outside = places.min(initial=0) < 0 or places.max(initial=0) >= len(order)
                    if outside or given[places].any() or len(np.unique(places)) < size:
                        raise StateError(
                            f"{self._path} is damaged at step {step.step} of epoch {epoch}: it has a sample twice, or one "
                            "that is not in the plan"
                        )
                    given[places] = True
                    yield replace(step, rows=order[places])
                elif step.step >= start:
                    yield step
                first += size

    def _moves(self, line: bytes, step: Step) -> type_rows:
        moves = _parsed(self._path, line).get("moves")
        if not isinstance(moves, list) or not all(type(move) is int and abs(move) < 2**48 for move in moves):
            raise StateError(
                f"{self._path} is damaged at step {step.step} of epoch {step.epoch}: it does not say where samples came from"
            )
        return np.asarray(moves, np.int64)
