"""`DataLoader`: torch's, with many requests in flight, and a state that can be saved."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch.utils import data as torch_data
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

from penstock.torch.access import access, is_stateful
from penstock.torch.crew import LoopThread
from penstock.torch.epoch import Epoch, blank_progress
from penstock.torch.fetching import fresh_pace
from penstock.torch.inprocess import IterableEpoch, MapEpoch
from penstock.torch.interrupts import Held
from penstock.torch.progress import Progress
from penstock.torch.randomness import Moment, generators_of
from penstock.torch.workers import WorkerEpoch

if TYPE_CHECKING:
    from penstock.torch.reading import Reader


class DataLoader(torch_data.DataLoader):  # type: ignore[misc]
    """torch's DataLoader with many requests in flight at once, inside a batch and across batches.

    All arguments are torch's, with torch's meaning and defaults, and one is added:

    ``fetchers``: items fetched at once in each process. None (default): measured; items that take
    microseconds are got one after another as torch does, items that wait are got by a growing number of
    fetchers. 0 or 1: always one after another. With an ``async def __getitem__`` (or ``async def getitem``)
    fetchers are tasks on an event loop, else threads.

    ``timeout``: seconds to wait for a batch, also with ``num_workers=0``; 0: half an hour. A wait that ends
    without the batch raises `penstock.errors.DeadlineError`, which is a RuntimeError here, as in torch.

    ``in_order=False`` gives batches as they are finished, also from fetchers with ``num_workers=0``.

    ``state_dict()`` and ``load_state_dict()`` behave as those of torchdata's StatefulDataLoader.

    >>> from penstock.torch import DataLoader
    >>> loader = DataLoader([1, 2, 3, 4], batch_size=2)
    >>> [batch.tolist() for batch in loader]
    [[1, 2], [3, 4]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,  # noqa: FBT001 - torch's signature
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Any = None,
        pin_memory: bool = False,  # noqa: FBT001, FBT002 - torch's signature
        drop_last: bool = False,  # noqa: FBT001, FBT002 - torch's signature
        timeout: float = 0,
        worker_init_fn: Any = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        fetchers: int | None = None,
    ) -> None:
        if fetchers is not None and (
            not isinstance(fetchers, int) or isinstance(fetchers, bool) or fetchers < 0
        ):
            raise ValueError(
                f"fetchers should be a non-negative integer or None (measured), not {fetchers!r}"
            )
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self.fetchers = fetchers
        self._iterator: Any = None
        self._prefetch_given = prefetch_factor is not None
        self._pace = fresh_pace(fetchers)
        self._loop: LoopThread | None = None
        self._progress: Progress | None = None
        self._indices_of_progress: Any = None
        self._reader: Reader | None = None
        self._resume: Progress | None = None
        self._start: Moment | None = None

    def __iter__(self) -> Any:
        """Begin an epoch, or go on in one that was loaded."""
        if isinstance(self.dataset, IterDataPipe | MapDataPipe):
            return super().__iter__()
        resume, start, kept = self._resume, self._start, self._iterator
        epoch: Epoch
        if isinstance(kept, WorkerEpoch) and kept.usable and not resume:
            kept.restart(self, start)
            epoch = kept
        elif self.num_workers > 0:
            self.check_worker_number_rationality()
            epoch = workers = WorkerEpoch(self, resume, start)
            self._iterator = workers if self.persistent_workers else None
        elif isinstance(self.dataset, torch_data.IterableDataset):
            epoch = IterableEpoch(self, resume, start)
        else:
            epoch = MapEpoch(self, resume, start)
        self._progress = epoch.progress
        self._indices_of_progress = epoch._indices
        self._resume = self._start = None  # last: an interrupt in here leaves the epoch to be begun again
        return epoch

    def _home(self) -> LoopThread | None:
        """Give the event loop of this loader's async dataset, which outlives epochs; None: it needs none."""
        if not access(self.dataset, batched=self._auto_collation).awaits:
            return None
        if self._loop is None or not self._loop.thread.is_alive():
            self._loop = LoopThread()
        return self._loop

    def state_dict(self) -> dict[str, Any]:
        """Give the place in the current epoch: of the batches given out, whatever is in flight.

        Between epochs it fixes the order of the next one, here and in whichever loader the state is loaded.
        """
        if self._resume is not None:
            return self._resume.to_json()
        progress = self._progress
        if progress is not None:
            with Held():
                progress.settle()
        if progress is None or progress.finished:
            if self._start is None:
                self._start = Moment.now(generators_of(self, self._index_sampler))
            progress = blank_progress(self) if progress is None else copy.copy(progress)
            progress.before, progress.first = self._start, None
            stays = self._iterator is not None and self.persistent_workers
            progress.draws_seed = not stays
            if self._progress is None and is_stateful(self._index_sampler):
                progress.sampler = {"sampler": self._index_sampler.state_dict()}
        elif self._indices_of_progress is not None:
            self._indices_of_progress.settle()
        if self.num_workers == 0:
            if self._reader is not None:
                progress.dataset, progress.iterator = self._reader.states()
            elif is_stateful(self.dataset):
                progress.dataset = self.dataset.state_dict()
        return progress.to_json()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have the next ``iter()`` go on where ``state_dict`` was saved. An empty dict is none.

        StateError if it is the state of something else.
        """
        self._forget()
        if state_dict:
            self._resume = Progress.from_json(state_dict)
            self._resume.check_fits(blank_progress(self), stateful_dataset=is_stateful(self.dataset))

    def _forget(self) -> None:
        if isinstance(self._iterator, WorkerEpoch):
            self._iterator.close()
        self._iterator = None
        self._progress = self._indices_of_progress = self._reader = None
        self._resume = self._start = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is running: a loader is pickled without it."""
        if self._progress is not None:
            self._progress.settle()
        state = dict(self.__dict__)
        state.update(_iterator=None, _loop=None, _reader=None, _indices_of_progress=None)
        return state
