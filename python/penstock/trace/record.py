"""Step benchmarks of any loader: wrap its dataset, its collate function and its loop; nothing of it changes.

Costs about a microsecond a span in the process that records it, and no process waits for another.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import weakref
from contextlib import contextmanager
from time import perf_counter_ns as _now
from typing import TYPE_CHECKING, Any

from penstock.trace.spans import DEFAULT_CAPACITY, Span, Trace
from penstock.trace.spool import Spool, collect, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Recording(Trace):
    """Times a loader step by step: get, decode (or whatever the dataset's code marks), collate, transfer, wait, step.

    >>> recording = Recording()
    >>> loader = DataLoader(recording.dataset(data), collate_fn=recording.collate(collate))  # doctest: +SKIP
    >>> for batch in recording.steps(loader):  # doctest: +SKIP
    ...     with recording.span("transfer"):
    ...         batch = batch.to("cuda")
    ...     train(batch)
    >>> print(recording.summary())  # doctest: +SKIP

    Worker processes (forked or spawned) record into files in a temporary folder, which goes when the recording does.
    The wrapped dataset can be pickled and sent; the recording itself stays where it was made.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        super().__init__(capacity)
        self._folder = tempfile.mkdtemp(prefix="penstock-trace-")
        self._spool = Spool(self._folder)
        self._numbers: dict[tuple[int, int], int] = {}
        self._epoch = -1
        self._finalizer = weakref.finalize(self, _remove, self._folder, os.getpid())

    def dataset(self, dataset: Any) -> Any:
        """``dataset`` with each sample's ``get`` timed; it behaves like the original in every other way."""
        kind = _TimedMap if hasattr(dataset, "__getitem__") else _TimedIterable
        return kind(dataset, self._spool)

    def collate(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """``function`` timed as ``collate``, with the batch's bytes."""
        return _TimedCollate(function, self._spool)

    @contextmanager
    def span(self, stage: str) -> Iterator[None]:
        """Times a ``with`` block as a span of the newest step; in this process only. In a dataset's code use `marker`."""
        start = self.now()
        try:
            yield
        finally:
            self.add(stage, max(self._epoch, 0), self._step, start, self.now())

    def marker(self) -> Callable[[str], Any]:
        """A function for a dataset's own code, in any process: ``with mark("decode"): …``; it can be pickled."""
        return _Marker(self._spool)

    def steps(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Iterates ``loader`` once: an epoch of ``wait`` and ``step`` spans, with samples and bytes of each batch."""
        self._epoch += 1
        self._step = 0
        number = 0
        asked = self.now()
        for batch in loader:
            came = self.now()
            self._step = number
            samples, size = measure(batch)
            self.add("wait", self._epoch, number, asked, came, samples, size)
            given = self.now()
            yield batch
            # Only the trainer decides how long a batch lives: while the next one is made its memory may be free.
            del batch
            asked = self.now()
            self.add("step", self._epoch, number, given, asked, samples)
            number += 1  # noqa: SIM113 - enumerate keeps the batch in its pair

    _step = -1

    def spans(self) -> list[Span]:
        """All spans, of every process, by start."""
        self._spool.flush()
        others = collect(self._folder, self._origin, os.getpid(), self._number)
        return sorted([*super().spans(), *others], key=lambda span: span.start_ns)

    def seconds(self) -> dict[str, float]:
        """Seconds by stage, summed over threads and processes."""
        return {row.stage: row.seconds for row in self.summary()}

    def _number(self, pid: int, thread: int) -> int:
        of_process = [known for known in self._numbers if known[0] == pid]
        return self._numbers.setdefault((pid, thread), len(of_process))


def measure(batch: Any) -> tuple[int, int]:
    """Samples (the first axis of the first array) and bytes of whatever a loader yields."""
    samples, size = 0, 0
    pending = [batch]
    while pending:
        value = pending.pop()
        nbytes = getattr(value, "nbytes", None)
        if isinstance(nbytes, int):
            size += nbytes
            shape: tuple[int, ...] = tuple(getattr(value, "shape", ()))
            samples = samples or (shape[0] if shape else 0)
        elif isinstance(value, (bytes, bytearray, memoryview)):
            size += len(value)
        elif isinstance(value, dict) or hasattr(value, "values"):
            pending.extend(reversed(list(value.values())))
        elif isinstance(value, (list, tuple)):
            if value and isinstance(value[0], (bytes, str, int, float)):
                samples = samples or len(value)
            pending.extend(reversed(value))
    return samples, size


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child's copy goes with the child, the folder does not
        shutil.rmtree(folder, ignore_errors=True)


class _Marker:
    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = _now()
        try:
            yield
        finally:
            self._spool.add(stage, start, _now(), samples=1, bytes=0, sample=-1)


class _TimedCollate:
    def __init__(self, function: Callable[[Any], Any], spool: Spool) -> None:
        self._function, self._spool = function, spool

    def __call__(self, samples: Any) -> Any:
        start = _now()
        batch = self._function(samples)
        end = _now()
        _, size = measure(batch)
        count = len(samples) if hasattr(samples, "__len__") else 1
        self._spool.add("collate", start, end, samples=count, bytes=size, sample=-1)
        return batch


class _Timed:
    """Everything but what is timed is the original's, so that loaders find what they look for."""

    def __init__(self, inner: Any, spool: Spool) -> None:
        self._inner, self._spool = inner, spool

    def __getattr__(self, name: str) -> Any:
        if name in ("_inner", "_spool"):  # asked for while unpickling: not there yet
            raise AttributeError(name)
        value = getattr(self._inner, name)
        return self._several if name == "__getitems__" else value

    def __len__(self) -> int:
        return len(self._inner)

    def _several(self, indices: Any) -> Any:
        start = _now()
        values = self._inner.__getitems__(indices)
        end = _now()
        self._spool.add("get", start, end, samples=len(values), bytes=measure(values)[1], sample=-1)
        return values


class _TimedMap(_Timed):
    def __getitem__(self, index: Any) -> Any:
        start = _now()
        value = self._inner[index]
        end = _now()
        size = getattr(value, "nbytes", None)
        if type(size) is not int:
            size = measure(value)[1]
        spool = self._spool
        sample = index if type(index) is int else -1
        try:  # `Spool.add`, without the call: items of some microseconds are timed too
            spool.local.extend(pack(spool.codes["get"], start, end, 1, size, sample))
        except (AttributeError, KeyError):
            spool.add("get", start, end, 1, size, sample)
        except struct.error:  # an index beyond 64 bits
            spool.add("get", start, end, 1, size, -1)
        if end > spool.due_ns:
            spool.flush()
        return value


class _TimedIterable(_Timed):
    def __iter__(self) -> Iterator[Any]:
        start = _now()
        for value in self._inner:
            self._spool.add("get", start, _now(), samples=1, bytes=measure(value)[1], sample=-1)
            yield value
            start = _now()
