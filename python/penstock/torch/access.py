"""How a map-style dataset gives its items: one by one, a batch in one call, or on an event loop."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.utils.data import ConcatDataset, Subset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class Access:
    """The way into one dataset.

    ``get``: gives an item for an index, or, if ``whole``, the items for a batch of indices; if ``awaits``,
    what it gives is to be awaited. ``plain``: ``get(index)`` is ``dataset[index]``, so that a loop may say
    just that.
    """

    get: Callable[[Any], Any]
    whole: bool = False
    awaits: bool = False
    plain: bool = False


def access(dataset: Any, *, batched: bool) -> Access:
    """Find the best way into ``dataset``: an async method, then ``__getitems__``, then ``dataset[index]``.

    ``batched``: indices come in batches; ``__getitems__`` is for those alone, as in torch.
    """
    several = getattr(dataset, "__getitems__", None) if batched else None
    if several is not None and inspect.iscoroutinefunction(several):
        return Access(several, whole=True, awaits=True)
    single = getattr(dataset, "getitem", None)
    if inspect.iscoroutinefunction(single):
        return Access(single, awaits=True)
    if _gives_coroutines(dataset):
        return Access(dataset.__getitem__, awaits=True)
    if several and not _only_loops(dataset):
        return Access(several, whole=True)
    return Access(dataset.__getitem__, plain=True)


def _gives_coroutines(dataset: Any) -> bool:
    """Whether ``dataset[index]`` is a coroutine, looking through torch's own wrappers."""
    if isinstance(dataset, Subset):
        return _gives_coroutines(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        parts: Sequence[Any] = dataset.datasets
        return bool(parts) and all(_gives_coroutines(part) for part in parts)
    return inspect.iscoroutinefunction(getattr(type(dataset), "__getitem__", None))


def _only_loops(dataset: Any) -> bool:
    """Whether ``__getitems__`` is torch's own of `Subset` over a dataset that has none: a loop."""
    if not isinstance(dataset, Subset) or type(dataset).__getitems__ is not Subset.__getitems__:
        return False
    inner = dataset.dataset
    return not callable(getattr(inner, "__getitems__", None)) or _only_loops(inner)


def is_stateful(thing: object) -> bool:
    """Whether ``thing`` can be saved and restored, as torchdata asks: it has both methods."""
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))
