"""Layouts and regions: every array as (slice, row, column, channel), which is what the codec takes.

A layout is a word of the letters ``D`` (slices of a volume), ``H`` (rows), ``W`` (columns) and ``C`` (channels), in the
order of the array's axes: ``"HW"``, ``"HWC"``, ``"CHW"``, ``"DHW"``, ``"DHWC"``, ``"DCHW"``, ``"CDHW"`` and so on.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from penstock.psi.header import Info

AXES = "DHWC"
_USUAL = {2: "HW", 3: "HWC", 4: "DHWC"}

Region: TypeAlias = "tuple[slice[int | None, int | None, None], ...]"
"""Rows and columns, for a volume slices before them: ``np.s_[0:224, 100:324]``. Axes that are left out are whole."""


def checked(layout: str) -> str:
    """The layout in capitals; ValueError where it is none."""
    letters = layout.upper()
    if len(set(letters)) != len(letters) or not set("HW") <= set(letters) <= set(AXES):
        raise ValueError(
            f"{layout!r} is no layout: H and W, and where they are needed D and C, each once, such as 'HWC'"
        )
    return letters


def as_array(values: Any) -> np.ndarray[Any, Any]:
    """NumPy's view of an array or tensor. torch is looked at only where the caller has imported it."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        if values.device.type != "cpu":
            raise ValueError(f"the tensor is on {values.device}; give tensor.cpu()")
        if values.dtype is torch.bfloat16:
            raise ValueError("PSI has no bfloat16; give tensor.view(torch.int16), which keeps every bit")
        values = values.detach().numpy()
    return np.asarray(values)


def four_axes(array: np.ndarray[Any, Any], layout: str | None) -> tuple[np.ndarray[Any, Any], str]:
    """A view with the axes (slice, row, column, channel), and the layout that the array has."""
    if layout is None:
        if array.ndim not in _USUAL:
            raise ValueError(
                f"an array of shape {array.shape}; PSI holds pictures of two or three axes and volumes of three or four"
            )
        letters = _USUAL[array.ndim]
    else:
        letters = checked(layout)
        if array.ndim != len(letters):
            raise ValueError(f"an array of shape {array.shape} has not the axes {letters}")
    there = array.transpose([letters.index(axis) for axis in AXES if axis in letters])
    for position, axis in enumerate(AXES):
        if axis not in letters:
            there = np.expand_dims(there, position)
    return there, letters


def natural(info: Info) -> str:
    """The layout that decoding gives where none is asked for: channels last, and no axis for a single channel."""
    return ("D" if info.volume else "") + "HW" + ("C" if info.channels > 1 else "")


def box(region: Region | slice | None, info: Info) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Start and size of the region along (slice, row, column)."""
    sides = (info.depth, info.height, info.width)
    if region is None:
        return (0, 0, 0), sides
    if isinstance(region, slice):
        region = (region,)
    own = sides if info.volume else sides[1:]
    if len(region) > len(own) or {type(part) for part in region} != {slice}:
        axes = "slices, rows and columns" if info.volume else "rows and columns"
        raise ValueError(
            f"a region is a tuple of slices over {axes}, such as np.s_[0:224, 100:324]; not {region!r}"
        )
    parts = [*region, *[slice(None)] * (len(own) - len(region))]
    starts, sizes = [], []
    for part, side in zip(parts, own, strict=True):
        start = 0 if part.start is None else part.start + (side if part.start < 0 else 0)
        stop = side if part.stop is None else part.stop + (side if part.stop < 0 else 0)
        if part.step not in (None, 1):
            raise ValueError(f"a region takes every pixel; a step of {part.step} is for the decoded array")
        if not 0 <= start < stop <= side:
            raise ValueError(f"the region takes {part.start}:{part.stop} of {side}")
        starts.append(start)
        sizes.append(stop - start)
    missing = 3 - len(own)
    whole = ((0,) * missing + tuple(starts), (1,) * missing + tuple(sizes))
    return (whole[0][0], whole[0][1], whole[0][2]), (whole[1][0], whole[1][1], whole[1][2])


def shape_in(layout: str, size: tuple[int, int, int], channels: int) -> tuple[int, ...]:
    """The shape that samples of that size have in a layout; ValueError where it lacks an axis that is needed."""
    lengths = dict(zip(AXES, (*size, channels), strict=True))
    for axis, length in lengths.items():
        if axis not in layout and length != 1:
            what = {"D": "slices", "C": "channels"}[axis]
            raise ValueError(f"{length} {what} do not fit the layout {layout!r}, which has no axis {axis}")
    return tuple(lengths[axis] for axis in layout)
