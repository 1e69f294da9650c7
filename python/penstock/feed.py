"""Between a plan's steps and the native pipeline: submits steps while the window has room, and takes them back as batches."""

from __future__ import annotations

import errno
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _native
from penstock.batch import Batch
from penstock.errors import (
    CatalogError,
    ChecksumError,
    ClosedError,
    DataError,
    DeadlineError,
    DecodeError,
    DeniedError,
    MissingError,
    StoreError,
    TruncatedError,
)
from penstock.psi.encoded import Finish, on_device, taken_over
from penstock.sources.listing import redacted
from penstock.stores import native_store
from penstock.tensors import as_numpy, as_torch, padded, same_lengths
from penstock.trace.spans import LoaderTrace
from penstock.transform import compile_program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.cache import Cache
    from penstock.dataset import Dataset
    from penstock.plan import Step
    from penstock.psi.encoded import Choice, Encoded
    from penstock.transform import Layout, Mode

_KINDS: dict[str, type[DataError]] = {
    "missing": MissingError,
    "truncated": TruncatedError,
    "checksum": ChecksumError,
    "decode": DecodeError,
}

DEFAULT_WINDOW = 1 << 30
"""Bytes. A batch of 256 float32 pictures of 224² has 154 MB, and several are under way."""


@dataclass
class Budget:
    """How many bad samples an epoch may have before ``on_error="skip"`` gives up."""

    limit: int
    epoch: int = -1
    spent: int = 0

    @classmethod
    def of(cls, budget: float, samples: int) -> Budget:
        """A share of the samples when below 1 (at least one, unless it is 0), else a count."""
        if 0 < budget < 1:
            return cls(max(1, int(budget * samples)))
        return cls(int(min(budget, 2**63)))

    def spend(self, epoch: int, count: int) -> bool:
        """Whether ``count`` more are within the budget of that epoch."""
        if epoch != self.epoch:
            self.epoch, self.spent = epoch, 0
        self.spent += count
        return self.spent <= self.limit


@dataclass(frozen=True)
class FeedOptions:
    """What the Loader was told, checked and parsed."""

    transform: Sequence[Any]
    dtype: str | None
    layout: Layout | None
    mode: Mode
    seed: int
    threads: int | None
    window: int | None
    attempts: int
    budget: Budget | None
    torch: bool
    pinned: bool
    pad: float | None
    timeout: float
    max_pixels: int
    max_bytes: int
    trace: int
    world: int
    decode: Choice = "cpu"
    displacement: int | None = None
    cache: Cache | None = None


class Feed:
    """One native pipeline and what it needs to know of the dataset."""

    def __init__(self, dataset: Dataset, options: FeedOptions) -> None:
        self.options = options
        self._dataset = dataset
        self._catalog = dataset.catalog
        self._stored = [field for field in dataset.fields if field.source == "stored"]
        self._columns = [field for field in dataset.fields if field.source == "column"]
        self._order = [field.name for field in dataset.fields]
        program = compile_program(
            options.transform, dtype=options.dtype, layout=options.layout, mode=options.mode
        )
        self._finish = Finish.of(program)
        self._encoded = on_device(dataset, program, options.decode)
        objects = self._catalog.objects
        self._store_name = redacted(str(getattr(dataset.store, "uri", type(dataset.store).__name__)))
        self._pipeline = _native.Pipeline(
            native_store(dataset.store, len(objects)),
            key_table(objects),
            [
                (
                    field.name,
                    "encoded" if field.name in self._encoded else field.kind,
                    None if field.dtype is None or field.shape is None else (field.dtype, list(field.shape)),
                )
                for field in self._stored
            ],
            program,
            seed=int(options.seed) % 2**64,
            threads=options.threads,
            window_bytes=DEFAULT_WINDOW if options.window is None else options.window,
            attempts=options.attempts,
            read_timeout=options.timeout,
            max_pixels=options.max_pixels,
            max_bytes=options.max_bytes,
            trace_capacity=options.trace,
            keep_slabs=options.pinned,
            displacement=options.displacement,
            cache=None
            if options.cache is None
            else options.cache.native(self._store_name, dataset.fingerprint()),
        )
        self._addresses = self._catalog.native([field.name for field in self._stored])
        self.trace = LoaderTrace(self._pipeline, options.trace)
        self._pins = None
        if options.pinned:
            from penstock.device import Pins

            self._pins = Pins()
        self._counts = dict.fromkeys(("batches", "samples", "skipped", "retries"), 0)
        self._python_ns = 0
        self._waited_ns = 0

    def batches(self, steps: Iterator[Step]) -> Iterator[Batch]:
        """The steps as batches, in order. Closing the iterator forgets what is under way."""
        under_way: deque[Step] = deque()
        more = True
        deadline = None
        while True:
            # The CPU time of this thread: while the pipeline keeps every core busy, the clock on the wall counts turns
            # that belong to the workers.
            begun = time.thread_time_ns()
            while more and self._pipeline.has_room():
                step = next(steps, None)
                if step is None:
                    more = False
                else:
                    self._submit(step)
                    under_way.append(step)
            if not under_way:
                return
            submitted, asked = time.thread_time_ns(), time.perf_counter_ns()
            if deadline is None:
                deadline = asked + int(self.options.timeout * 1e9)
            # A window over a far store wants more steps while the oldest one is still on its way.
            finished = self._wait((deadline - asked) / 1e9, more=more)
            self._waited_ns += time.perf_counter_ns() - asked
            if finished is None:
                self._python_ns += submitted - begun
                continue
            deadline = None
            came = time.thread_time_ns()
            batch = self._batch(under_way.popleft(), finished)
            del finished
            self._python_ns += (submitted - begun) + (time.thread_time_ns() - came)
            yield batch
            del batch  # while the next one is awaited, only the trainer keeps this one's memory

    def _submit(self, step: Step) -> None:
        rows = step.rows
        self._pipeline.submit(
            self._addresses,
            step.epoch,
            step.step,
            rows.view(np.uint64),
            None if step.planned is None else step.planned.view(np.uint64),
            step.padding > 0,
        )

    def _wait(self, seconds: float, *, more: bool) -> _native.Finished | None:
        """The next finished step; None when there is room for another one first, if ``more`` are to come."""
        asked = time.monotonic()
        try:
            finished = self._pipeline.next(max(seconds, 0.0), self.options.budget is not None, more)
        except RuntimeError as error:
            raise ClosedError(str(error)) from None
        if finished is None and (not more or time.monotonic() - asked >= seconds):
            raise DeadlineError(
                f"no batch within {self.options.timeout:g} s: {self._pipeline.describe_wait()}. Give the Loader a longer "
                "timeout= if the store needs more"
            )
        return finished

    def _batch(self, step: Step, finished: _native.Finished) -> Batch:
        self._counts["retries"] += finished.retries
        skipped = self._skip(step, finished) if finished.failures else ()
        rows = np.frombuffer(finished.rows, np.int64)
        ids = np.frombuffer(finished.ids, np.uint64)
        values: dict[str, Any] = {}
        for field, arrays in zip(self._stored, finished.arrays(), strict=True):
            if field.name in self._encoded:
                values[field.name] = self._files(field.name, arrays, ids, rows)
            else:
                self._add(values, field.name, arrays)
        for field in self._columns:
            column = self._catalog.column(field.name, rows)
            if column.dtype == object:
                values[field.name] = column.tolist()
            else:
                column = np.ascontiguousarray(column)
                values[field.name] = as_torch(column) if self.options.torch else column
        padding = step.padding
        if skipped and padding:
            kept_real = int(np.isin(step.rows[: len(step.rows) - padding], rows).sum())
            padding = len(rows) - kept_real
        self._counts["batches"] += 1
        self._counts["samples"] += len(ids) - padding
        names = [*self._order, *(name for name in values if name not in self._order)]
        return Batch(
            {name: values[name] for name in names if name in values},
            ids=ids,
            epoch=step.epoch,
            step=step.step,
            padding=padding,
            global_size=step.global_size,
            world=self.options.world,
            skipped=skipped,
        )

    def _files(self, name: str, arrays: Any, ids: np.ndarray, rows: np.ndarray) -> Encoded:
        """A field that the device decodes."""
        if self._pins is not None and arrays:
            self._pins.pin(arrays[0])

        def named(slot: int, reason: str, kind: type[DataError]) -> DataError:
            at = self._catalog.addresses(name, rows[slot : slot + 1])
            key = self._catalog.objects[int(at.object[0])].as_py()
            where = f"{key} @ {at.offset[0]}" if at.offset[0] else key
            return kind(reason, id=int(ids[slot]), key=where, store=self._store_name, field=name)

        return taken_over(arrays, self._finish, ids, named)

    @property
    def encoded(self) -> bool:
        """Whether batches have fields that are not decoded yet."""
        return bool(self._encoded)

    def _add(self, values: dict[str, Any], name: str, arrays: _native.Array | list[_native.Array]) -> None:
        if self._pins is not None:
            for array in arrays if isinstance(arrays, list) else (arrays,):
                self._pins.pin(array)
        convert: Any = as_torch if self.options.torch else as_numpy
        if not isinstance(arrays, list):
            values[name] = convert(arrays)
            if (
                self.options.pad is not None and values[name].ndim > 1
            ):  # they happen to be alike: lengths all the same
                values[f"{name}.lengths"] = convert(same_lengths(values[name].shape))
        elif self.options.pad is None or not arrays:
            values[name] = [convert(array) for array in arrays]
        else:
            box, lengths = padded([as_numpy(array) for array in arrays], self.options.pad)
            values[name] = convert(box)
            values[f"{name}.lengths"] = convert(lengths)

    def _skip(self, step: Step, finished: _native.Finished) -> tuple[int, ...]:
        failures = finished.failures
        budget = self.options.budget
        if budget is None:
            raise self._error(failures[0], more=len(failures) - 1)
        ids = tuple(sorted({failure[0] for failure in failures}))
        self._counts["skipped"] += len(ids)
        if not budget.spend(step.epoch, len(ids)):
            error = self._error(failures[0], more=len(failures) - 1)
            error.add_note(
                f"on_error='skip' gave up: {budget.spent} bad samples in epoch {step.epoch}, and error_budget allows "
                f"{budget.limit}"
            )
            raise error
        return ids

    def _error(self, failure: tuple[int, int, int, str, int, str, str], more: int) -> Exception:
        id, _, field, key, offset, kind, message = failure
        where = f"{key} @ {offset}" if offset else key
        name = self._stored[field].name
        error: Exception
        if kind in _KINDS:
            error = _KINDS[kind](message, id=id, key=where, store=self._store_name, field=name)
        elif kind == "denied":
            error = DeniedError(errno.EACCES, f"sample {id} ({where} in {self._store_name}): {message}")
        elif kind == "deadline":
            error = DeadlineError(f"sample {id} ({where} in {self._store_name}): {message}")
        else:
            error = StoreError(f"sample {id} ({where} in {self._store_name}): {message}")
        if more:
            error.add_note(f"{more} more failed in the same batch")
        return error

    def discard(self) -> None:
        """Forgets what is under way."""
        self._pipeline.discard()

    def stats(self) -> dict[str, float]:
        """Counts so far."""
        batches = max(self._counts["batches"], 1)
        totals = self._pipeline.totals()
        return {
            **self._counts,
            "bytes": totals["copy"][2] + totals["fetch"][2],
            "wait_seconds": self._waited_ns / 1e9,
            "python_us_per_batch": self._python_ns / 1e3 / batches,
            "threads": self._pipeline.threads,
            "memory_bytes": self._pipeline.mapped_bytes,
            **{f"fetch_{name}": count for name, count in self._pipeline.fetched().items()},
            **{f"cache_{name}": count for name, count in self._pipeline.cached().items()},
        }

    def close(self) -> None:
        """Ends the native threads."""
        if self._pins is not None:
            self._pins.close()
        self._pipeline.close()


def key_table(objects: Any) -> Any:
    """What the engine needs to read an Arrow string array in place."""
    import pyarrow as pa

    if isinstance(objects, pa.ChunkedArray):
        objects = objects.combine_chunks()
    if len(objects) == 0:
        return []
    if objects.null_count:
        raise CatalogError("the catalog's table of objects has rows without a key")
    _, offsets, text = objects.buffers()
    wide = pa.types.is_large_string(objects.type)
    as_bytes = [np.frombuffer(buffer if buffer is not None else b"", np.uint8) for buffer in (offsets, text)]
    return (*as_bytes, objects.offset, len(objects), wide)
