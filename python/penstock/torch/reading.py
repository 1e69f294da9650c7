"""Reading an iterable dataset batch by batch, with a place that can be saved."""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.torch.access import is_stateful

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)


class Reader:
    """The batches of one iterable dataset, in the process that reads it.

    ``size``: items in a batch; None: the dataset gives its own batches, which are passed on as they are.
    """

    def __init__(self, dataset: Any, size: int | None, *, drop_last: bool) -> None:
        self.dataset = dataset
        self.batches = 0
        self.ended = False
        self._size = size
        self._drop_last = drop_last
        self._iterator: Iterator[Any] = iter(())
        self._items: Iterator[Any] = self._iterator
        self._begun: list[Any] = []
        self._cut = ""

    def begin(self, *, dataset: Any = None, iterator: Any = None, skip: int = 0, ended: bool = False) -> None:
        """Start an epoch, or go on in one: from the saved states, or by reading ``skip`` batches again."""
        stateful = is_stateful(self.dataset)
        if stateful and dataset is not None:
            self.dataset.load_state_dict(dataset)
        self.batches, self.ended, self._begun, self._cut = 0, ended, [], ""
        if ended:
            self.batches = skip
            return
        self._iterator = iter(self.dataset)
        # torch asks no more of it than __next__.
        whole = hasattr(self._iterator, "__iter__")
        self._items = self._iterator if whole else iter(self._iterator.__next__, object())
        own = self._iterator is not self.dataset and is_stateful(self._iterator)
        if own and iterator is not None:
            self._iterator.load_state_dict(iterator)  # type: ignore[attr-defined]
        if skip and not stateful and not own:
            _log.info(
                "reading %d batches of %r over again to resume: it has no state_dict", skip, self.dataset
            )
            for _ in range(skip):
                self.read()
        self.batches = skip

    def read(self) -> Any:
        """Give the next batch of items, not collated. StopIteration at the end.

        Items that an interrupt comes in between of are kept, and are the first of the next call.
        """
        if self._cut:
            raise RuntimeError(
                f"the dataset's generator was ended by a {self._cut} that came while it ran, after {self.batches} "
                "batches, and cannot go on: call iter() on the DataLoader again"
            )
        try:
            return self._one() if self._size is None else self._several(self._size)
        except Exception:
            self._begun = []
            raise
        except BaseException as error:
            if getattr(self._iterator, "gi_frame", self) is None:
                self._cut = type(error).__name__
            raise

    def _one(self) -> Any:
        for item in self._items:  # not next(): an interrupt could come between the call and the name
            self.batches += 1
            return item
        self.ended = True
        raise StopIteration

    def _several(self, size: int) -> list[Any]:
        items = self._begun
        if not self.ended:
            items.extend(islice(self._items, size - len(items)))
        if len(items) < size:
            self.ended = True
            if not items or self._drop_last:
                raise StopIteration
        self.batches += 1
        self._begun = []
        return items

    def states(self) -> tuple[Any, Any]:
        """Give the states of the dataset and of its iterator; None for one that has none."""
        dataset = self.dataset.state_dict() if is_stateful(self.dataset) else None
        own = self._iterator is not self.dataset and is_stateful(self._iterator)
        return dataset, self._iterator.state_dict() if own else None  # type: ignore[attr-defined]
