"""torch's ``default_collate`` with less around it: the same batches, in the same memory format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import collate as torch_collate

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.torch.shelf import Shelf

_LEAST = 4 << 10
"""Bytes of a batch from which on it is built in shared memory; smaller ones travel in the message."""


def quick(collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Give a function that does what ``collate`` does; where that is torch's, plain tensors are just stacked."""
    # In a worker of torch's, torch's makes shared memory.
    own = collate is not torch_collate.default_collate or get_worker_info() is not None
    return collate if own else _collate


def _collate(batch: Any) -> Any:
    first = batch[0]
    if (
        type(first) is torch.Tensor
        and first.layout is torch.strided
        and not first.is_nested
        and torch_collate.default_collate_fn_map.get(torch.Tensor) is torch_collate.collate_tensor_fn
    ):
        return torch.stack(batch, 0)
    return torch_collate.default_collate(batch)


def collating_on(shelf: Shelf) -> None:
    """Have ``default_collate`` build batches of tensors on ``shelf``, for the rest of this process.

    torch's builds each in shared memory that it makes for it. Where the user put another function for tensors into
    torch's table, it stays.
    """
    torchs = torch_collate.collate_tensor_fn
    table = torch_collate.default_collate_fn_map
    if table.get(torch.Tensor) is not torchs:
        return

    def collate_tensor_fn(batch: Any, *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        if type(first) is torch.Tensor and first.layout is torch.strided and first.device.type == "cpu":
            size = len(batch) * first.nbytes
            plain = size > _LEAST and not first.is_nested and not first.is_quantized
            room = shelf.room(size) if plain else None
            if room is not None:
                return torch.stack(batch, 0, out=room.view(first.dtype).view(len(batch), *first.shape))
        return torchs(batch, collate_fn_map=collate_fn_map)

    table[torch.Tensor] = collate_tensor_fn
