"""How many bytes a batch holds, near enough to bound what is fetched ahead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def bytes_of(data: Any) -> int:
    """Give the bytes of tensors, arrays and byte strings in ``data``; lists of more than 64 are sampled."""
    if isinstance(data, torch.Tensor):
        return int(data.nbytes) if data.layout == torch.strided else 0
    if isinstance(data, bytes | bytearray | memoryview | str):
        return len(data)
    if isinstance(data, Mapping):
        return sum(bytes_of(value) for value in data.values())
    if isinstance(data, list | tuple):
        if len(data) > 64:
            return sum(bytes_of(value) for value in data[:64]) * len(data) // 64
        return sum(bytes_of(value) for value in data)
    held = getattr(data, "nbytes", None)
    return held if isinstance(held, int) else 32
