"""Native arrays as what the trainer wants: torch tensors or NumPy arrays, stacked, listed or padded."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from penstock import _native

Arrays = Literal["auto", "torch", "numpy"]


def torch_wanted(arrays: Arrays) -> bool:
    """Whether batches hold torch tensors: asked for, or ``auto`` and torch is installed. Then torch is imported."""
    if arrays == "torch" and importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError('arrays="torch" needs torch, which is not installed: pip install torch')
    if arrays not in ("auto", "torch", "numpy"):
        raise ValueError(f'arrays is {arrays!r}; it is "auto", "torch" or "numpy"')
    wanted = arrays == "torch" or (
        arrays == "auto" and ("torch" in sys.modules or importlib.util.find_spec("torch") is not None)
    )
    if wanted:
        import torch  # noqa: F401 - seconds, which belong here and not under the first batch's deadline
    return wanted


def as_numpy(array: _native.Array) -> np.ndarray[Any, Any]:
    """A view of the array. bfloat16, which NumPy lacks, shows as uint16 bit patterns."""
    return np.asarray(array)


def as_torch(array: _native.Array | np.ndarray[Any, Any]) -> Any:
    """A tensor over the same memory."""
    import torch

    tensor = torch.from_numpy(np.asarray(array))
    return tensor.view(torch.bfloat16) if getattr(array, "dtype", None) == "bfloat16" else tensor


def padded(
    members: list[np.ndarray[Any, Any]], value: float
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Members of one rank, each in the corner of a box that holds the largest; and their true shapes.

    The shapes come as ``[n]`` lengths for one-dimensional members and as ``[n, dimensions]`` otherwise.
    """
    ranks = {member.ndim for member in members}
    if len(ranks) > 1:
        raise ValueError(f"samples with {sorted(ranks)} dimensions cannot be padded to one shape")
    shapes = np.array([member.shape for member in members], dtype=np.int64)
    box = np.full((len(members), *shapes.max(axis=0)), value, dtype=members[0].dtype)
    for slot, member in enumerate(members):
        box[slot][tuple(slice(0, length) for length in member.shape)] = member
    return box, shapes[:, 0] if shapes.shape[1] == 1 else shapes


def same_lengths(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """What :func:`padded` says of members that are all alike, from the shape of their batch."""
    if len(shape) == 2:
        return np.full(shape[0], shape[1], np.int64)
    return np.tile(np.array(shape[1:], np.int64), (shape[0], 1))
