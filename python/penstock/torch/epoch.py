"""What all iterators of an epoch have in common: seeds drawn as torch draws them, place, pinning, closing."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.data import IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory

from penstock.errors import ClosedError
from penstock.torch.access import is_stateful
from penstock.torch.collating import quick
from penstock.torch.interrupts import Held
from penstock.torch.progress import Progress
from penstock.torch.randomness import Moment, Stream, generators_of
from penstock.torch.samplers import Indices

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.torch.loader import DataLoader


class _EpochIsOverError(Exception):
    """The epoch is complete. Not StopIteration, which the user's own code may raise by mistake."""


class Epoch(Iterator[Any]):
    """One pass over a dataset.

    The parts that begin differ: a fresh epoch draws its seeds now; one whose beginning was saved
    (``pinned``) or that goes on in its middle (``resume``) draws them where the saved one did. The progress
    object is shared with the loader, which may be asked for its state after the iterator is gone; nothing
    refers to the iterator itself, so that it is closed when the last user drops it.
    """

    def __init__(self, loader: DataLoader, resume: Progress | None, pinned: Moment | None) -> None:
        self.dataset = loader.dataset
        self.iterable = isinstance(loader.dataset, IterableDataset)
        self._loader_name = type(loader).__name__
        self._batched = bool(loader._auto_collation)
        self._collate = quick(loader.collate_fn)
        self._in_order = bool(loader.in_order)
        self._sampler = loader._index_sampler
        self._own = generators_of(loader, loader._index_sampler)
        self._generator = loader.generator
        self._pins = _pinning(loader)
        self._pid = os.getpid()
        self._promised = loader._IterableDataset_len_called
        self._closed = False
        self._batch: Any = None
        self._receipt: Callable[[], None] | None = None
        self.progress, self._indices = self._begin(loader, resume, pinned, seed=None)

    def _begin(
        self, loader: DataLoader, resume: Progress | None, pinned: Moment | None, *, seed: int | None
    ) -> tuple[Progress, Indices | None]:
        """Draw what is drawn at the start of an epoch; ``seed``: that of workers that stay, which is kept."""
        stream = Stream(self._own)
        progress = blank_progress(loader)
        midway = resume is not None and resume.midway
        if resume is not None:
            resume.check_fits(progress, stateful_dataset=is_stateful(loader.dataset))
        if midway and resume is not None:
            progress = resume
            if progress.before is not None:
                stream.go_to(progress.before)
        else:
            if resume is not None:
                pinned = resume.before
                progress.sampler, progress.dataset = resume.sampler, resume.dataset
                progress.workers = resume.workers
                seed = None if resume.draws_seed else resume.seed
            if pinned is not None:
                stream.go_to(pinned)
            progress.before = stream.moment()
        indices = None
        if not self.iterable:
            indices = Indices(self._sampler, stream, progress, resumed=resume is not None, midway=midway)
        if not midway:
            with stream.drawing():
                progress.seed = self._draw_seed() if seed is None else seed
        return progress, indices

    def _draw_seed(self) -> int:
        return int(torch.empty((), dtype=torch.int64).random_(generator=self._generator).item())

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        try:
            if torch._C._autograd._profiler_enabled():
                with torch.autograd.profiler.record_function(
                    f"enumerate(DataLoader)#{type(self).__name__}.__next__"
                ):
                    data = self._made()
            else:
                data = self._made()
        except _EpochIsOverError:
            raise StopIteration from None
        except StopIteration as stop:
            raise RuntimeError(
                f"the dataset or its collate_fn raised StopIteration after {self.progress.batches} batches; "
                "that would have ended the epoch early and in silence"
            ) from stop
        progress = self.progress
        if self._promised is not None and self.iterable and progress.yielded >= self._promised:
            self._warn_of_length()
        # An interrupt comes before these lines, and the batch is still there for the next call, or after them, when
        # the caller has it: nothing is called in them, so that there is no moment in between.
        progress.yielded += 1
        progress.given, self._batch = self._receipt, None
        return data

    def _made(self) -> Any:
        """Give the next batch as the user gets it; until it is given out it stays in ``_batch``.

        Called again after an interrupt, it gives the same batch. ``_receipt`` books it; a batch whose error is the
        user's is given out by being raised.
        """
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._sampler)

    def __getstate__(self) -> NoReturn:
        raise NotImplementedError(
            f"{type(self).__name__} cannot be pickled: save loader.state_dict() instead"
        )

    def _finish(self) -> NoReturn:
        """End the epoch: it is complete."""
        with Held():
            self.progress.settle()
            if self._indices is not None:
                self._indices.finish()
            self.progress.finished = True
        raise _EpochIsOverError

    def _refuse_fork(self) -> None:
        if os.getpid() != self._pid:
            raise ClosedError(
                f"this iterator of a DataLoader was made in process {self._pid}, its fetchers stayed there: "
                f"call iter() on the DataLoader again in this child (process {os.getpid()})"
            )

    def _pinned(self, data: Any) -> Any:
        return pin_memory(data, self._pins) if self._pins else data

    def close(self) -> None:
        """Let fetchers and workers go; harmless if called twice."""
        self._closed = True
        self._batch = None

    def _warn_of_length(self) -> None:
        more = ""
        if self.progress.num_workers:
            more = (
                " Each worker has a copy of the IterableDataset: unless __iter__ gives each its own share "
                "(see torch.utils.data.get_worker_info), samples come more than once."
            )
        warnings.warn(
            f"Length of IterableDataset {self.dataset} was reported to be {self._promised} (when accessing "
            f"len(dataloader)), but {self.progress.yielded + 1} samples have been fetched.{more}",
            stacklevel=3,
        )


def blank_progress(loader: DataLoader) -> Progress:
    """Give the progress of an epoch of ``loader`` that has not begun."""
    iterable = isinstance(loader.dataset, IterableDataset)
    length: int | None = None
    if not iterable:
        try:
            length = len(loader._index_sampler)
        except (TypeError, NotImplementedError):  # a sampler need not have a length
            length = None
    return Progress(
        kind="iterable" if iterable else "map",
        num_workers=loader.num_workers,
        batch_size=loader.batch_size,
        length=length,
        seed=0,
    )


def _pinning(loader: DataLoader) -> str | None:
    """Give the device type that batches are pinned for; None: they are not."""
    if not loader.pin_memory:
        return None
    if loader.pin_memory_device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{loader.pin_memory_device}'.",
            stacklevel=4,
        )
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=4,
        )
        return None
    if accelerator.type == "mps":
        warnings.warn(
            "'pin_memory' argument is set as true but not supported on MPS now, "
            "device pinned memory won't be used.",
            stacklevel=4,
        )
        return None
    return str(accelerator.type)
