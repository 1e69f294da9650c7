"""``decode_batch`` on a GPU: files in, tensors out."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _native
from penstock.psi.axes import Region, box, checked, natural, shape_in
from penstock.psi.failures import translated
from penstock.psi.gpu.decoder import Decoder
from penstock.psi.gpu.plan import NUMBERS, Box, fill, joined, plan
from penstock.psi.header import from_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

_LIMIT = 1 << 36


def decode_batch(
    files: Sequence[Buffer],
    *,
    regions: Sequence[Region | None] | None = None,
    flips: Sequence[bool] | None = None,
    layout: str | None = None,
    dtype: Any = None,
    device: str = "cuda",
    scale: float | Sequence[float] | None = None,
    bias: float | Sequence[float] | None = None,
    verify: bool = True,
    check: bool = True,
    max_bytes: int = _LIMIT,
) -> Any:
    """Decodes ``files`` on ``device``, in the current stream: one tensor ``[N, …]`` where all come out alike, else a list.

    - ``regions``: for each file, a tuple of slices as ``penstock.psi.decode`` takes, or None for all of it. ``flips``: which
      files are mirrored left to right.
    - ``layout``: ``"CHW"``, ``"HWC"``, …; default the natural one of the first file.
    - ``dtype``: of the result; default the samples' own. ``"float16"``, ``"bfloat16"`` and ``"float32"`` become
      ``sample * scale + bias``, with ``scale`` and ``bias`` one number or one a channel; other types are not converted to.
    - ``verify``: check the tiles' checksums. ``check``: wait for the batch and raise what is wrong with it; without it
      the error of a bad file comes with a later batch, and its pixels are unspecified.

    >>> decode_batch([file], dtype="float16", scale=1 / 255, layout="CHW")  # doctest: +SKIP
    """
    import torch

    if not files:
        return []
    with translated(lambda number: f"file {number} of {len(files)}"):
        infos = [from_row(_native.psi_info(file), memoryview(file).nbytes) for file in files]
    chosen = natural(infos[0]) if layout is None else checked(layout)
    boxes = []
    for number, info in enumerate(infos):
        start, size = box(None if regions is None else regions[number], info)
        flip = flips is not None and bool(flips[number])
        boxes.append(Box(start[2], start[1], start[0], size[2], size[1], size[0], info.channels, flip_x=flip))
    shapes = [shape_in(chosen, (b.depth, b.height, b.width), b.channels) for b in boxes]
    kinds = {info.dtype for info in infos}
    wanted, kind = _output_type(dtype, kinds, numbers=scale is not None or bias is not None)
    itemsize = wanted.itemsize
    elements = [b.width * b.height * b.depth * b.channels for b in boxes]
    aligned = [-(-count // 16) * 16 for count in elements]
    if sum(aligned) * itemsize > max_bytes:
        raise ValueError(
            f"the batch decodes to {sum(aligned) * itemsize:,} bytes, and max_bytes allows {max_bytes:,}"
        )
    alike = len({(b.depth, b.height, b.width, b.channels) for b in boxes}) == 1
    steps = elements if alike else aligned
    starts = (np.cumsum(steps) - steps).tolist()
    offsets, lengths, total = joined(files)
    blob = torch.empty(max(total, 16), dtype=torch.uint8, pin_memory=True)
    fill(blob.numpy(), files, offsets)

    def name(number: int) -> str:
        return f"file {number} of {len(files)}"

    planned = plan(
        blob.numpy(), offsets, lengths, boxes, starts, chosen, kind, itemsize, name=name, max_bytes=max_bytes
    )
    decoder = _decoder(device, verify)
    out = torch.empty(sum(steps), dtype=wanted, device=decoder.device)
    most = max(info.channels for info in infos)
    numbers = kind in NUMBERS
    pending = decoder.decode(
        blob,
        planned,
        out,
        scale=_by_channel(1.0 if scale is None else scale, most, decoder.device) if numbers else None,
        bias=_by_channel(0.0 if bias is None else bias, most, decoder.device) if numbers else None,
        named=lambda number, error, reason: error(reason, key=name(number)),
        pictures=len(files),
    )
    if check:
        pending.check()
    if alike:
        return out.view(len(files), *shapes[0])
    return [
        out[start : start + math.prod(shape)].view(shape) for start, shape in zip(starts, shapes, strict=True)
    ]


def _output_type(dtype: Any, kinds: set[Any], *, numbers: bool) -> tuple[Any, str]:
    """Torch's type of the output, and what the kernels call it."""
    import torch

    if len(kinds) > 1 and (dtype is None or str(dtype).removeprefix("torch.") not in NUMBERS):
        have = ", ".join(sorted(str(kind) for kind in kinds))
        raise ValueError(f"the files hold {have}: together they can only become {', '.join(NUMBERS)}")
    own = next(iter(kinds))
    name = str(own if dtype is None else dtype).removeprefix("torch.")
    if name in NUMBERS and (name != own.name or numbers):
        return getattr(torch, name), name
    if name != own.name:
        raise ValueError(
            f"dtype {name}: samples of {own.name} stay what they are, or become {', '.join(NUMBERS)}"
        )
    if numbers:
        raise ValueError(f"scale and bias need a dtype of {', '.join(NUMBERS)}")
    return getattr(torch, name), "bits"


def _by_channel(value: float | Sequence[float], channels: int, device: Any) -> Any:
    import torch

    given = tuple(value) if hasattr(value, "__iter__") else (float(value),) * channels
    if len(given) < channels:
        raise ValueError(f"{len(given)} values for {channels} channels")
    return torch.tensor(given, dtype=torch.float32).to(device, non_blocking=True)


@lru_cache(maxsize=16)
def _decoder(device: str, verify: bool) -> Decoder:  # noqa: FBT001 - a key of the cache
    return Decoder(device, verify=verify)
