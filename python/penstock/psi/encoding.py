"""From an array to a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _native
from penstock.psi.axes import as_array, four_axes
from penstock.psi.failures import translated
from penstock.psi.header import LEVELS, Level
from penstock.psi.metadata import packed

if TYPE_CHECKING:
    from collections.abc import Mapping

TYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "float32")
WORTH_A_THREAD = 1 << 20
"""Bytes of samples below which another thread costs more than it brings."""


def encode(
    array: Any,
    level: Level = "dense",
    *,
    layout: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    threads: int | None = None,
) -> bytes:
    """Encodes a picture or a volume, bit for bit.

    - ``array``: NumPy array or torch tensor on the CPU, in any memory order, of an integer type of 8, 16 or 32 bits, of
      float16 or float32 (NaN payloads and signed zeros included), or of bool, which becomes uint8 of 0 and 1.
    - ``level``: ``"fast"`` (largest, fastest to write and to read), ``"dense"``, or ``"max"`` (smallest, slow to write).
    - ``layout``: what the axes are, such as ``"CHW"`` or ``"DHW"`` (a volume). Default: ``"HW"``, ``"HWC"`` or ``"DHWC"``, by
      their number. A single channel comes back without an axis of its own.
    - ``metadata``: ``{"icc": bytes, "exif": bytes, "xmp": bytes, "json": value}``.
    - ``threads``: at most so many; default: as many as the process may use cores, fewer for small images.

    Raises ValueError for arrays that PSI cannot hold.

    >>> file = encode(np.zeros((3, 480, 640), np.uint16), layout="CHW")
    """
    if level not in LEVELS:
        raise ValueError(f"level is {level!r}; it is one of {', '.join(LEVELS)}")
    values = as_array(array)
    if values.dtype == np.bool_:
        values = values.view(np.uint8)
    if values.dtype.name not in TYPES:
        raise ValueError(f"PSI has no {values.dtype}; it has {', '.join(TYPES)}")
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    samples, letters = four_axes(values, layout)
    if 0 in samples.shape:
        raise ValueError(f"an array of shape {values.shape} has nothing to encode")
    if any(stride < 0 for stride in samples.strides):
        samples = samples.copy()
    with translated():
        return _native.psi_encode(
            samples.data,
            samples.dtype.name,
            volume="D" in letters,
            level=level,
            threads=threads_for(values.nbytes, threads),
            metadata=packed(metadata or {}),
        )


def threads_for(nbytes: int, threads: int | None) -> int:
    """How many threads that many bytes of samples are worth."""
    if threads is not None:
        if threads < 1:
            raise ValueError(f"{threads} threads")
        return threads
    return max(1, min(len(os.sched_getaffinity(0)), nbytes // WORTH_A_THREAD))
