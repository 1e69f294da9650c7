"""Python callables between the native pipeline and the training step.

A plain callable in ``Loader(transform=[…])`` gets each batch's fields. :class:`PerSample` calls a function once a
sample, in threads or in processes. They run in a thread of the Loader's, ahead of the training step; each call
has a deadline, and an exception arrives in the training loop as a TransformError with the original as its cause.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import DeadlineError, TransformError

if TYPE_CHECKING:
    from penstock.batch import Batch

type_of_sample = dict[str, Any]


@dataclass(frozen=True)
class PerSample:
    """Calls ``function(sample) -> sample`` for each sample; samples are dicts of NumPy arrays.

    ``processes``: in that many worker processes, for functions that hold the GIL (they must be importable, and no
    lambda); 0 means threads. ``threads``: how many; default one a core. Fields whose results have one shape are
    stacked, others arrive as a list.

    >>> PerSample(lambda sample: {**sample, "image": sample["image"][::-1]})  # doctest: +ELLIPSIS
    PerSample(...)
    """

    function: Callable[[type_of_sample], Mapping[str, Any]]
    processes: int = 0
    threads: int | None = None


class DaemonPool:
    """Threads that run calls and that never keep the interpreter from ending.

    ``concurrent.futures`` joins its threads at exit, so that one call that never returns would hang the program.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = (
            queue.SimpleQueue()
        )
        self._threads = threads
        for number in range(threads):
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True).start()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function, arguments = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function(*arguments))
            except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
                future.set_exception(error)
            del call, future, function, arguments

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Runs the call in some thread."""
        future: Future[Any] = Future()
        self._calls.put((future, function, arguments))
        return future

    def close(self) -> None:
        """Lets the threads end after what they are at."""
        for _ in range(self._threads):
            self._calls.put(None)


class Stage:
    """One callable of the user's, made ready to run."""

    def __init__(self, transform: PerSample | Callable[[Mapping[str, Any]], Any], timeout: float) -> None:
        self.transform = transform
        self.timeout = timeout
        self._pool: DaemonPool | ProcessPoolExecutor
        if isinstance(transform, PerSample) and transform.processes:
            import multiprocessing

            self._pool = ProcessPoolExecutor(
                transform.processes, mp_context=multiprocessing.get_context("spawn")
            )
        else:
            threads = 1
            if isinstance(transform, PerSample):
                threads = transform.threads or len(os.sched_getaffinity(0))
            self._pool = DaemonPool(threads, "penstock-transform")

    def run(self, batch: Batch) -> Batch:
        """The batch after the callable; TransformError or DeadlineError where it fails."""
        deadline = time.monotonic() + self.timeout
        if isinstance(self.transform, PerSample):
            return batch.replace(self._each(batch, self.transform, deadline))
        future = self._pool.submit(self.transform, dict(batch))
        fields = self._result(future, deadline, self.transform, f"step {batch.step} of epoch {batch.epoch}")
        if not isinstance(fields, Mapping):
            raise TransformError(
                f"{_name(self.transform)} gave {type(fields).__name__} for step {batch.step}; a transform gives back a "
                "mapping of fields"
            )
        return batch.replace(fields)

    def _each(self, batch: Batch, transform: PerSample, deadline: float) -> dict[str, Any]:
        columns = {name: _as_numpy(value) for name, value in batch.items()}
        futures = [
            self._pool.submit(transform.function, {name: value[i] for name, value in columns.items()})
            for i in range(batch.size)
        ]
        samples = [
            self._result(future, deadline, transform.function, f"sample {id}")
            for future, id in zip(futures, batch.ids.tolist(), strict=True)
        ]
        if not samples:
            return dict(batch)
        for id, sample in zip(batch.ids.tolist(), samples, strict=True):
            if not isinstance(sample, Mapping):
                raise TransformError(
                    f"{_name(transform.function)} gave {type(sample).__name__} for sample {id}; it gives back a mapping of fields"
                )
            if sample.keys() != samples[0].keys():
                raise TransformError(
                    f"{_name(transform.function)} gave the fields {', '.join(map(str, sample))} for sample {id}, and "
                    f"{', '.join(map(str, samples[0]))} for others of its batch; every sample needs the same fields"
                )
        return {name: _stack([sample[name] for sample in samples], batch.get(name)) for name in samples[0]}

    def _result(self, future: Future[Any], deadline: float, function: Any, what: str) -> Any:
        try:
            return future.result(max(0.0, deadline - time.monotonic()))
        except FutureTimeout:
            if future.done():  # the callable itself raised TimeoutError
                error = future.exception()
                raise TransformError(f"{_name(function)} raised {error!r} on {what}") from error
            self.close()
            raise DeadlineError(
                f"{_name(function)} has not returned for {what} within {self.timeout:g} s. The callable owes the result; "
                "give the Loader a longer timeout= if it needs more"
            ) from None
        except BrokenProcessPool as error:
            raise TransformError(
                f"a process that ran {_name(function)} died (on {what} or another). With processes= the function must be "
                "importable where the processes start: in a module, or in the script below `if __name__ == '__main__'`"
            ) from error
        except Exception as error:
            raise TransformError(f"{_name(function)} raised {error!r} on {what}") from error

    def close(self) -> None:
        """Ends the threads, or kills the processes: a call that never returns must not keep them."""
        if isinstance(self._pool, DaemonPool):
            self._pool.close()
            return
        processes = list((getattr(self._pool, "_processes", None) or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            with contextlib.suppress(OSError, ValueError):
                process.kill()


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _as_numpy(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_numpy(item) for item in value]
    if not hasattr(value, "numpy"):
        return value
    try:
        return value.numpy()
    except TypeError as error:
        raise TransformError(
            f"PerSample takes and gives NumPy arrays, and NumPy has no {value.dtype}: use float32 there, or a callable for the "
            "whole batch"
        ) from error


def _stack(values: list[Any], like: Any) -> Any:
    first = values[0]
    if isinstance(first, str):
        return values
    arrays = [np.asarray(_as_numpy(value)) for value in values]
    if any(array.shape != arrays[0].shape for array in arrays):
        return arrays
    stacked = np.stack(arrays)
    if like is not None and hasattr(like, "numpy"):
        import torch

        return torch.from_numpy(stacked)
    return stacked
