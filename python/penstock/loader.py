"""The Loader: runs a plan and yields batches."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from penstock.arrival import Arrivals, Displaced, Recorder, Replay, dealt
from penstock.cache import Cache
from penstock.errors import ClosedError, StateError
from penstock.feed import Budget, Feed, FeedOptions
from penstock.plan import FullShuffle, Plan, Step
from penstock.stages import PerSample, Stage
from penstock.state import LoaderState, gone_on
from penstock.tensors import torch_wanted
from penstock.trace.spans import DEFAULT_CAPACITY
from penstock.units import parse_bytes

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.batch import Batch
    from penstock.dataset import Dataset
    from penstock.psi.encoded import Choice
    from penstock.tensors import Arrays
    from penstock.trace.spans import LoaderTrace
    from penstock.transform import Layout, Mode

LONGEST_TIMEOUT = 1e8
"""Seconds: three years, which clocks of nanoseconds can count."""

Order = Literal["strict", "arrival"]
OnError = Literal["raise", "skip", "retry"]


class Loader:
    """Yields the batches of ``dataset``, in a fresh order each epoch, decoded and transformed ahead of the trainer.

    With ``epochs=None`` each ``for`` loop over the loader is one epoch, and the next loop the next one; with
    ``epochs=N`` one loop runs them all.

    - ``batch_size``: samples of a global batch; with several ranks each gets its cut of it. ``drop_last``: leave out
      a last batch that is not full.
    - ``seed``, ``shuffle``: the order and every random draw depend on the seed, the epoch and the sample's id alone.
    - ``transform``: operations such as ``RandomResizedCrop(224)`` run natively per sample; then Python callables, which
      get a batch's fields, or ``PerSample(function)``.
    - ``dtype``, ``layout``: of image fields (``"float32"``, ``"NCHW"``); ``mode``: their channels
      (``"rgb"``, ``"grey"`` or ``"unchanged"``: as stored).
    - ``window``: memory for batches under way, ``"1GiB"`` or bytes; default: enough to keep every thread busy.
      ``threads``: default one a core, and more while the cores idle because the disk is slow.
    - ``order``: ``"strict"``, every batch as planned; or ``"arrival"``, for far storage: what arrives fills the oldest open
      batch, so that one slow request holds up none. A sample comes at most ``max_displacement`` batches before or after
      its own, in the same epoch, on the same rank. ``record``: a file that the order is written to; ``replay``: such a file,
      whose order is repeated. With several ranks each has a file of its own: ``{rank}`` in the name is filled in.
    - ``cache``: for far storage, ``"64GiB"`` of local disk, or a `Cache` that says where.
    - ``device``: ``"cuda"`` copies batches ahead on a side stream (without it they are pinned where CUDA is in use).
      ``arrays``: ``"torch"``, ``"numpy"``, or ``"auto"``: torch where it is installed.
    - ``decode``: where PSI pictures are decoded: ``"device"`` hands the files on and decodes on the GPU, ``"cpu"`` does not;
      ``"auto"`` does so on CUDA where the device can follow the transform (no ColorJitter or Grayscale, no Python callable).
    - ``rank``, ``world``: default from torch.distributed where that is initialised, else 0 of 1.
    - ``on_error``: what a bad sample does: ``"raise"``, ``"skip"`` (leave it out, count it, up to ``error_budget``: a share
      of the samples that a rank gets in an epoch, or a count from 1 on; the same limit on every rank)
      or ``"retry"`` (read it up to ``attempts`` times, then raise).
    - ``pad``: fields whose samples differ in shape come padded with this value, with ``<field>.lengths`` beside them;
      None gives a list of views.
    - ``timeout``: seconds that one batch may take before DeadlineError says who owes it.
    - ``max_pixels``, ``max_bytes``: larger samples are refused before anything is allocated for them.
    - ``trace``: spans that ``loader.trace`` keeps; or a path, to which they are saved at the close (``.parquet``, else
      JSON for Perfetto).

    >>> with Loader(data, batch_size=64, transform=[RandomResizedCrop(224)]) as loader:  # doctest: +SKIP
    ...     for batch in loader:
    ...         train(batch["image"], batch["label"])
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 32,
        *,
        epochs: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        transform: Sequence[Any] = (),
        dtype: str | None = None,
        layout: Layout | None = None,
        mode: Mode = "rgb",
        window: int | str | None = None,
        threads: int | None = None,
        order: Order = "strict",
        max_displacement: int = 16,
        record: str | os.PathLike[str] | None = None,
        replay: str | os.PathLike[str] | None = None,
        cache: Cache | int | str | None = None,
        device: str | None = None,
        arrays: Arrays = "auto",
        decode: Choice = "auto",
        rank: int | None = None,
        world: int | None = None,
        on_error: OnError = "raise",
        error_budget: float = 0.01,
        attempts: int = 3,
        pad: float | None = None,
        timeout: float = 120.0,
        max_pixels: int = 178_956_970,
        max_bytes: int = 4 << 30,
        trace: int | str | os.PathLike[str] = DEFAULT_CAPACITY,
        plan: Plan | None = None,
    ) -> None:
        if epochs is not None and epochs < 1:
            raise ValueError(f"epochs is {epochs}; it is at least 1, or None for one epoch a loop")
        if on_error not in ("raise", "skip", "retry"):
            raise ValueError(f'on_error is {on_error!r}; it is "raise", "skip" or "retry"')
        if not error_budget >= 0:
            raise ValueError(
                f"error_budget is {error_budget}; it is a share of an epoch (below 1) or a count"
            )
        if not 0 < timeout <= LONGEST_TIMEOUT:
            raise ValueError(
                f"timeout is {timeout}; it is a number of seconds above 0, and at most {LONGEST_TIMEOUT:g}"
            )
        for name, number, least in (
            ("max_pixels", max_pixels, 1),
            ("max_bytes", max_bytes, 1),
            ("attempts", attempts, 1),
            ("trace", trace if isinstance(trace, int) else 0, 0),
        ):
            if number < least:
                raise ValueError(f"{name} is {number}; it is at least {least}")
        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}; it is at least 1, or None to have it tuned")
        if order not in ("strict", "arrival"):
            raise ValueError(f'order is {order!r}; it is "strict" or "arrival"')
        if max_displacement < 0:
            raise ValueError(f"max_displacement is {max_displacement}; it is a number of batches, 0 or more")
        if replay is not None and (order == "arrival" or record is not None):
            raise ValueError("replay repeats an order that was recorded: leave out order and record")
        if not hasattr(dataset, "catalog"):
            raise TypeError(f"a Loader loads a Dataset, as penstock.open gives it, and not {dataset!r:.80}")
        rank, world = _ranks(rank, world)
        self.dataset = dataset
        self.epochs = epochs
        self.plan: Plan = plan or FullShuffle(
            len(dataset), batch_size, seed, shuffle=shuffle, drop_last=drop_last, rank=rank, world=world
        )
        native, python = _split(transform)
        if decode not in ("auto", "cpu", "device"):
            raise ValueError(f'decode is {decode!r}; it is "auto", "cpu" or "device"')
        if decode == "device" and python:
            raise ValueError(
                'decode="device" with a Python callable: callables get decoded pixels on the CPU'
            )
        if decode == "auto" and (python or not str(device).startswith("cuda")):
            decode = "cpu"
        torch = torch_wanted("torch" if device not in (None, "cpu") else arrays)
        self._device = None if device in (None, "cpu") else _checked_device(str(device))
        self._timeout = timeout
        self._trace_path = None if isinstance(trace, int) else os.fspath(trace)
        fingerprint = dataset.fingerprint()
        recorded = {"dataset": fingerprint, "plan": dict(self.plan.state()), "rank": rank, "world": world}
        if replay is not None:
            self.plan = Replay(self.plan, _of_rank(replay, rank, world), recorded)
        self._place = self._state = LoaderState.fresh(fingerprint, self.plan.state(), rank, world)
        self._order = order
        self._arrivals: Arrivals | None = None
        self._resumed = False
        self._closed = False
        self._pid = os.getpid()
        self._stages: list[Stage] = []
        self._recorder = None
        self._feed = Feed(
            dataset,
            FeedOptions(
                transform=native,
                dtype=dtype,
                layout=layout,
                mode=mode,
                seed=seed,
                threads=threads,
                window=None if window is None else parse_bytes(window),
                attempts=attempts if on_error == "retry" else 1,
                budget=Budget.of(error_budget, -(-len(dataset) // world)) if on_error == "skip" else None,
                torch=torch,
                pinned=_pinned(self._device, torch),
                pad=pad,
                timeout=timeout,
                max_pixels=max_pixels,
                max_bytes=max_bytes,
                trace=trace if isinstance(trace, int) else DEFAULT_CAPACITY,
                world=world,
                displacement=max_displacement if order == "arrival" else None,
                decode=decode,
                cache=None if cache is None else Cache.of(cache),
            ),
        )
        self._iteration: weakref.ref[Iterator[Batch]] | None = None
        # Last, when nothing is wrong with the rest: threads, and a file.
        try:
            if record is not None:
                self._recorder = Recorder(_of_rank(record, rank, world), recorded)
            self._stages += [Stage(callable_, timeout) for callable_ in python]
        except BaseException:
            self.close()
            raise

    # Iterating.

    def __len__(self) -> int:
        """Batches of one loop over the loader: of an epoch, or of all ``epochs``."""
        return self.plan.steps_per_epoch * (self.epochs or 1)

    def __iter__(self) -> Iterator[Batch]:
        """Starts the next loop: where a loaded state says, else with the next epoch.

        An earlier loop that is still open ends: two loops over one loader do not mix.
        """
        self._check()
        self._end_iteration()
        state = self._state
        if state.step and not self._resumed:  # the last loop was left early
            state = state.at(state.epoch + 1, 0)
        if self.epochs is not None and state.epoch >= self.epochs and not self._resumed:
            state = state.at(0, 0)  # all epochs were run: again from the first
        self._resumed = False
        self._state = state
        last = state.epoch + 1 if self.epochs is None else self.epochs
        self._arrivals = None
        if self._order == "arrival" or self._recorder is not None or state.displaced is not None:
            self._arrivals = Arrivals(self.plan, self.dataset.catalog.ids, places=self._recorder is not None)
            self._arrivals.begin(state.displaced or Displaced())
        iteration = self._run(state.epoch, state.step, last)
        self._iteration = weakref.ref(iteration)
        return iteration

    def _run(self, epoch: int, step: int, last: int) -> Iterator[Batch]:
        batches = self._feed.batches(self._steps(epoch, step, last))
        if self._stages:
            from penstock.ahead import run_ahead

            batches = run_ahead(
                batches, self._staged, depth=2, timeout=self._timeout, wake=self._feed.discard
            )
        if self._device:
            from penstock.device import ahead

            batches = ahead(batches, self._device)
        elif self._feed.encoded:
            from penstock.psi.encoded import decoded_here

            batches = decoded_here(batches)
        trace = self._feed.trace
        try:
            for batch in batches:
                self._count(batch)
                given = trace.now()
                yield batch
                trace.add("step", batch.epoch, batch.step, given, trace.now(), batch.size)
                self._check()
        finally:
            close = getattr(batches, "close", None)
            if close:
                close()
            if os.getpid() == self._pid and not self._closed:
                self._feed.discard()

    def _count(self, batch: Batch) -> None:
        displaced = None
        if self._arrivals is not None:
            moves = self._arrivals.handed_out(batch)
            # A strict run that went on from an arrival order's state has samples to hand out late until the epoch ends.
            if self._order == "arrival" or self._state.displaced is not None:
                displaced = self._arrivals.displaced
            if self._recorder is not None:
                self._recorder.add(batch.epoch, batch.step, moves)
        self._state = self._state.after(batch.epoch, batch.step, self.plan.steps_per_epoch, displaced)

    def _steps(self, epoch: int, step: int, last: int) -> Iterator[Step]:
        arrivals, displaced = self._arrivals, self._state.displaced or Displaced()
        for number in range(epoch, last):
            start = step if number == epoch else 0
            if arrivals is None:
                yield from self.plan.steps(number, start)
            else:
                yield from arrivals.steps(number, start, displaced if number == epoch else Displaced())

    def _staged(self, batch: Batch) -> Batch:
        trace = self._feed.trace
        start = trace.now()
        for stage in self._stages:
            batch = stage.run(batch)
        if self._feed.options.torch:
            from penstock.tensors import as_torch

            batch = batch.replace(
                {
                    name: as_torch(value) if type(value).__module__ == "numpy" else value
                    for name, value in batch.items()
                }
            )
        trace.add("transform", batch.epoch, batch.step, start, trace.now(), batch.size)
        return batch

    def _end_iteration(self) -> None:
        iteration = self._iteration() if self._iteration is not None else None
        self._iteration = None
        if iteration is not None:
            # Already running in another frame: it finds out at its next batch.
            with contextlib.suppress(ValueError):
                iteration.close()  # type: ignore[attr-defined]

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands, as small readable JSON: counts the batches that were handed out."""
        return self._state.to_json()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Goes on where ``state`` was taken, at the next loop; on any number of ranks.

        In arrival order, in the middle of an epoch, each rank has a state of its own. On the same number of ranks each loads
        its own; on another number each loads the list of all of them.

        StateError where the state is of another dataset, order or version, or where a rank's is missing.
        """
        self._check()
        self._end_iteration()
        place = self._place
        loaded = gone_on(state, like=place)
        if loaded.displaced is not None and (loaded.rank, loaded.world) != (place.rank, place.world):
            ids = self.dataset.catalog.ids
            own = dealt(self.plan, ids, loaded.epoch, loaded.step, loaded.displaced, place.rank, place.world)
            loaded = place.at(loaded.epoch, loaded.step, own)
        if self.epochs is not None and loaded.epoch > self.epochs:
            raise StateError(
                f"the state stands in epoch {loaded.epoch}, but this loader has {self.epochs} epochs"
            )
        if loaded.step and loaded.step >= self.plan.steps_per_epoch:
            raise StateError(
                f"the state stands before step {loaded.step}, but an epoch has {self.plan.steps_per_epoch} steps"
            )
        self._state = loaded
        self._resumed = True

    # Looking.

    @property
    def trace(self) -> LoaderTrace:
        """Spans and counters of the run."""
        return self._feed.trace

    def stats(self) -> dict[str, float]:
        """Counts so far: batches, samples, bytes, skipped, retries, seconds waited, threads, memory, Python's µs a batch."""
        return self._feed.stats()

    # Ending.

    def close(self) -> None:
        """Ends all threads and lets memory go; batches that were handed out stay valid."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        with contextlib.ExitStack() as ending:  # each of them, whatever the others say
            ending.callback(self._feed.close)
            if self._recorder is not None:
                ending.callback(self._recorder.close)
            for stage in self._stages:
                ending.callback(stage.close)
            if self._trace_path is not None:
                ending.callback(self.trace.save, self._trace_path)
            self._end_iteration()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_feed", None) is not None and not sys.is_finalizing():
            self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Loader has threads and cannot be sent to another process; send its dataset, and make a Loader there"
        )

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ClosedError(
                "the loader was made in another process: its threads did not come along through fork(). Make a loader "
                "in each process"
            )
        if self._closed:
            raise ClosedError("the loader was closed; make a new one to go on")


def _split(transform: Sequence[Any]) -> tuple[list[Any], list[PerSample | Callable[..., Any]]]:
    """Native operations, then Python callables: in that order, since batches leave native code once."""
    from penstock.transform import is_operation

    operations = list(transform) if isinstance(transform, Sequence) else [transform]
    first_python = next((i for i, op in enumerate(operations) if not is_operation(op)), len(operations))
    native, python = operations[:first_python], operations[first_python:]
    for item in python:
        if is_operation(item):
            raise ValueError(
                f"{item!r} comes after a Python callable; native operations come first, since they run before the batch "
                "is in Python"
            )
        if not callable(item) and not isinstance(item, PerSample):
            raise TypeError(f"{item!r} is neither an operation of penstock nor callable")
    return native, python


def _of_rank(path: str | os.PathLike[str], rank: int, world: int) -> str:
    """The name of a rank's own file."""
    name = os.fspath(path)
    if "{rank}" in name:
        return name.replace("{rank}", str(rank))
    if world == 1:
        return name
    whole = Path(name)
    return os.fspath(whole.with_name(f"{whole.stem}-{rank}{whole.suffix}"))


def _checked_device(device: str) -> str:
    """ValueError where it is no GPU, or the torch that is here sees none."""
    if device.partition(":")[0] != "cuda":
        raise ValueError(
            f'device is {device!r}; it is "cuda", "cuda:N", or "cpu". For others move batches yourself: tensor.to(device)'
        )
    import torch

    if not torch.cuda.is_available():
        raise ValueError(
            f"device={device!r}: torch {torch.__version__} sees no GPU here (torch.cuda.is_available() is False)"
        )
    return device


def _pinned(device: str | None, torch: bool) -> bool:  # noqa: FBT001 - one call, above
    """Whether slabs are pinned: for copies of ours, or since the trainer uses CUDA and will copy itself.

    That CUDA is in use is looked at and never brought about: asking for devices would break CUDA in forked children.
    """
    if device is not None:
        return device.startswith("cuda")
    cuda = sys.modules.get("torch.cuda") if torch else None
    return cuda is not None and bool(cuda.is_initialized())


def _ranks(rank: int | None, world: int | None) -> tuple[int, int]:
    if (rank is None) != (world is None):
        raise ValueError("give rank and world together, or neither")
    if rank is not None and world is not None:
        return rank, world
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return 0, 1
