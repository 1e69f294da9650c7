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

    def begin(self, *, dataset: Any = None, iterator: Any = None, skip: int = 0, ended: bool = False) -> None:
        """Start an epoch, or go on in one: from the saved states, or by reading ``skip`` batches again."""
        stateful = is_stateful(self.dataset)
        if stateful and dataset is not None:
            self.dataset.load_state_dict(dataset)
        self.batches, self.ended = 0, ended
        if ended:
            self.batches = skip
            return
        self._iterator = iter(self.dataset)
        own = self._iterator is not self.dataset and is_stateful(self._iterator)
        if own and iterator is not None:
            self._iterator.load_state_dict(iterator)  # type: ignore[attr-defined]
        if skip and not stateful and not own:
            _log.info(
                "reading %d batches of %r over again to resume: it has no state_dict", skip, self.dataset
            )
            for _ in range(skip):
                self._items()
        self.batches = skip

    def read(self) -> Any:
        """Give the next batch of items, not collated. StopIteration at the end."""
        if self.ended:
            raise StopIteration
        data = self._items()
        self.batches += 1
        return data

    def _items(self) -> Any:
        if self._size is None:
            try:
                return next(self._iterator)
            except StopIteration:
                self.ended = True
                raise
        items = list(islice(self._iterator, self._size))
        if len(items) < self._size:
            self.ended = True
            if not items or self._drop_last:
                raise StopIteration
        return items

    def states(self) -> tuple[Any, Any]:
        """Give the states of the dataset and of its iterator; None for one that has none."""
        dataset = self.dataset.state_dict() if is_stateful(self.dataset) else None
        own = self._iterator is not self.dataset and is_stateful(self._iterator)
        return dataset, self._iterator.state_dict() if own else None  # type: ignore[attr-defined]
