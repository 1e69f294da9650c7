"""The device's side of a Loader: fields that arrive as files (``penstock.psi.encoded``) become tensors.

Three ways, by what the records ask for, each enqueued on the current stream without waiting:

- **stored**: nothing is resampled, padded or brought to other channels. The kernels write the result itself: region,
  mirror image, type, normalisation and layout in one store.
- **resampled**: 8-bit pictures that are resized. The kernels decode the boxes into one padded tensor; two batched matrix
  products with Pillow's filter weights do the rest, clipped in between as Pillow does. float16 holds a value to an eighth of a
  level, and the products are summed in float32: within a level of the CPU's.
- **followed**: everything else. The boxes are decoded here and finished one by one by the reference's own steps.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.psi.encoded import lowered_first
from penstock.psi.gpu.decoder import Decoder
from penstock.psi.gpu.plan import NUMBERS, planned

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from penstock.errors import DataError
    from penstock.psi.encoded import Encoded
    from penstock.psi.gpu.plan import Plan

_COLUMNS = 15


def decode_encoded(encoded: Encoded, device: str) -> Any:
    """The decoded field on ``device``: a tensor, or a list of them where ``encoded.shape`` is None.

    Enqueued on the current stream. The bytes of ``encoded`` must stay until that has passed what was enqueued.

    Raises the error of a sample of an earlier batch where one is known by now.
    """
    import torch

    decoder = _decoder(device)
    if not len(encoded):
        return torch.empty(encoded.shape or (0,), device=decoder.device)
    if _is_stored(encoded):
        return _stored(decoder, encoded)
    if _is_resampled(encoded):
        return _resampled(decoder, encoded)
    return _followed(decoder, encoded)


def finish(device: str) -> None:
    """Waits for every batch that was enqueued on ``device``; raises the first error."""
    _decoder(device).finish()


@lru_cache(maxsize=16)
def _decoder(device: str) -> Decoder:
    return Decoder(device, verify=False)  # the workers have compared the checksums


def _named(encoded: Encoded) -> Callable[[int, type[DataError], str], DataError]:
    return lambda number, error, reason: encoded.named(number, reason, error)


def _requests(
    encoded: Encoded,
    starts: npt.NDArray[np.int64],
    strides: tuple[npt.NDArray[np.int64] | int, ...],
    *,
    mirrored: bool,
) -> npt.NDArray[np.int64]:
    """A row for each box; ``strides``: distances between rows, columns and channels."""
    records = encoded.records
    rows, columns, channels = (np.broadcast_to(stride, len(encoded)).astype(np.int64) for stride in strides)
    requests = np.zeros((len(encoded), _COLUMNS), np.int64)
    requests[:, 0] = encoded.offsets
    requests[:, 1] = encoded.lengths
    requests[:, 2] = encoded.offsets
    for column, name in ((3, "x"), (4, "y"), (6, "w"), (7, "h")):
        requests[:, column] = records[name]
    requests[:, 8] = 1
    requests[:, 10] = starts
    if mirrored:
        requests[:, 9] = records["flip_x"] != 0
        upside_down = records["flip_y"] != 0
        requests[:, 10] += np.where(upside_down, (records["h"].astype(np.int64) - 1) * rows, 0)
        rows = np.where(upside_down, -rows, rows)
    requests[:, 12], requests[:, 13], requests[:, 14] = rows, columns, channels
    return requests


def _planned(encoded: Encoded, requests: npt.NDArray[np.int64], kind: str, itemsize: int) -> Plan:
    return planned(
        encoded.data, requests, kind, itemsize, name=lambda number: f"sample {int(encoded.ids[number])}"
    )


def _run(decoder: Decoder, encoded: Encoded, plan: Plan, out: Any, factors: Any = None) -> None:
    import torch

    scale, bias = (None, None) if factors is None else factors
    decoder.decode(
        torch.from_numpy(encoded.data),
        plan,
        out,
        scale=scale,
        bias=bias,
        named=_named(encoded),
        pictures=len(encoded),
        keep=(encoded,),
    )


# Stored: the kernels write the result.


def _is_stored(encoded: Encoded) -> bool:
    records, finish = encoded.records, encoded.finish
    if encoded.shape is None or records["interpolation"].any() or not _keeps_channels(encoded):
        return False
    alike = all((records[box] == records[out]).all() for box, out in (("w", "out_w"), ("h", "out_h")))
    whole = (
        alike and (records["window_w"] == records["w"]).all() and (records["window_h"] == records["h"]).all()
    )
    if not whole:
        return False
    factor, offset = finish.affine(encoded.stored(0), int(records["channels"][0]))
    same_values = bool((factor == 1).all() and (offset == 0).all())
    stored = encoded.stored(0)
    if finish.dtype is None or finish.dtype == stored:
        return same_values
    return finish.dtype in NUMBERS


def _keeps_channels(encoded: Encoded) -> bool:
    """Whether every picture has one type and the channels that the mode asks for, without conversion."""
    records, mode = encoded.records, encoded.finish.mode
    if (records["sample_type"] != records["sample_type"][0]).any():
        return False
    if mode == "unchanged":
        return bool((records["channels"] == records["channels"][0]).all())
    wanted = 3 if mode == "rgb" else 1
    return encoded.stored(0) == "uint8" and bool((records["channels"] == wanted).all())


def _stored(decoder: Decoder, encoded: Encoded) -> Any:
    import torch

    shape = encoded.shape
    assert shape is not None  # noqa: S101 - asked for by _is_stored
    planes = encoded.finish.order() == "NCHW"
    channels = int(encoded.records["channels"][0])
    height, width = (shape[2], shape[3]) if planes else (shape[1], shape[2])
    strides = (width, 1, width * height) if planes else (width * channels, channels, 1)
    starts = np.arange(len(encoded), dtype=np.int64) * (channels * height * width)
    stored = encoded.stored(0)
    name = encoded.finish.dtype or stored
    numbers = name in NUMBERS and name != stored
    dtype = getattr(torch, name)
    requests = _requests(encoded, starts, strides, mirrored=True)
    plan = _planned(encoded, requests, name if numbers else "bits", dtype.itemsize)
    out = torch.empty(shape, dtype=dtype, device=decoder.device)
    factors = _on_device(decoder, *encoded.finish.affine(stored, channels)) if numbers else None
    _run(decoder, encoded, plan, out, factors)
    return out


def _on_device(decoder: Decoder, *arrays: npt.NDArray[Any]) -> tuple[Any, ...]:
    """Small arrays in one copy."""
    import torch

    flat = torch.from_numpy(
        np.concatenate([array.astype(np.float32).ravel() for array in arrays])
    ).pin_memory()
    parts = flat.to(decoder.device, non_blocking=True).split([array.size for array in arrays])
    return tuple(part.view(array.shape) for part, array in zip(parts, arrays, strict=True))


# Resampled: two matrix products.


def _is_resampled(encoded: Encoded) -> bool:
    records = encoded.records
    return (
        encoded.shape is not None
        and encoded.stored(0) == "uint8"
        and _keeps_channels(encoded)
        and int(records["channels"][0]) in (1, 3)  # alpha is multiplied in first
        and bool(np.isin(records["interpolation"], (2, 3)).all())
        and bool((records["interpolation"] == records["interpolation"][0]).all())
        and bool(
            (records["window_w"] == records["out_w"]).all()
            and (records["window_h"] == records["out_h"]).all()
        )
        and encoded.finish.dtype in (None, "uint8", *NUMBERS)
    )


def _resampled(decoder: Decoder, encoded: Encoded) -> Any:
    import torch

    records, finish = encoded.records, encoded.finish
    count, channels = len(encoded), int(records["channels"][0])
    high, wide = int(records["h"].max()), -(-int(records["w"].max()) // 8) * 8
    strides = (wide, 1, wide * high)
    starts = np.arange(count, dtype=np.int64) * (channels * high * wide)
    plan = _planned(encoded, _requests(encoded, starts, strides, mirrored=False), "float16", 2)
    # What lies outside of a box is multiplied by 0: it must be a number.
    boxes = torch.zeros((count, channels * high, wide), dtype=torch.float16, device=decoder.device)
    geometry = np.stack([records[name].astype(np.float32) for name in (
        "w", "resized_w", "window_x", "flip_x", "h", "resized_h", "window_y", "flip_y",
    )])  # fmt: skip
    factor, offset = finish.affine("uint8", channels)
    placed, factors, offsets, ones, zeros = _on_device(
        decoder, geometry, factor, offset, np.ones(channels), np.zeros(channels)
    )
    _run(decoder, encoded, plan, boxes, (ones, zeros))
    kind = int(records["interpolation"][0])
    out_h, out_w = int(records["out_h"][0]), int(records["out_w"][0])
    across = _filters(placed[:4], wide, out_w, kind)
    down = _filters(placed[4:], high, out_h, kind)
    boxes = boxes.view(count, channels, high, wide)
    small = _both_ways(boxes, across.transpose(1, 2).unsqueeze(1), down.unsqueeze(1), lowered_first(records))
    if finish.dtype in NUMBERS:
        small = (small.float() * factors.view(-1, 1, 1) + offsets.view(-1, 1, 1)).to(
            getattr(torch, finish.dtype)
        )
    else:
        small = small.to(torch.uint8)
    return small if finish.order() == "NCHW" else small.permute(0, 2, 3, 1).contiguous()


def _both_ways(boxes: Any, across: Any, down: Any, lowered: npt.NDArray[np.bool_]) -> Any:
    """The two products, in each picture's own order, rounded to whole levels at the end."""
    import torch

    def product(one: Any, other: Any) -> Any:
        return torch.matmul(one, other).clamp_(0, 255)

    if lowered.all():
        return product(product(down, boxes), across).round_()
    small = product(down, product(boxes, across)).round_()
    if lowered.any():
        first = torch.from_numpy(lowered).pin_memory().to(boxes.device, non_blocking=True)
        other = product(product(down, boxes), across).round_()
        small = torch.where(first.view(-1, 1, 1, 1), other, small)
    return small


def _filters(placed: Any, inputs: int, outputs: int, kind: int) -> Any:
    """Pillow's filter for each picture: ``[n, outputs, inputs]`` in float16, zero outside of the picture.

    ``placed``: size of the box, size of the result, first output that is kept, and whether outputs are mirrored.
    """
    import torch

    size, resized, first, mirrored = (row.view(-1, 1, 1) for row in placed)
    at = torch.arange(outputs, dtype=torch.float32, device=placed.device).view(1, -1, 1)
    at = torch.where(mirrored > 0, outputs - 1 - at, at) + first
    scale = size / resized
    widen = scale.clamp(min=1.0)
    centre = (at + 0.5) * scale
    place = torch.arange(inputs, dtype=torch.float32, device=placed.device).view(1, 1, -1)
    x = ((place + 0.5 - centre) / widen).abs()
    if kind == 2:
        reach, shape = 1.0, (1 - x).clamp(min=0)
    else:
        reach = 2.0
        near = ((1.5 * x - 2.5) * x) * x + 1
        far = (((x - 5) * x + 8) * x - 4) * -0.5
        shape = torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
    low = (centre - reach * widen + 0.5).floor()
    top = (centre + reach * widen + 0.5).floor()
    kept = (place >= low) & (place < top) & (place < size)
    shape = torch.where(kept, shape, 0.0)
    return (shape / shape.sum(2, keepdim=True)).half()


# Followed: the reference's steps, on the device.


def _followed(decoder: Decoder, encoded: Encoded) -> Any:
    import torch

    from penstock.psi.encoded import SAMPLE_TYPES
    from penstock.psi.reference import followed

    records = encoded.records
    results: list[Any] = [None] * len(encoded)
    for kind in sorted(set(records["sample_type"].tolist())):
        slots = np.flatnonzero(records["sample_type"] == kind)
        some = _part(encoded, slots)
        dtype = getattr(torch, SAMPLE_TYPES[kind])
        width, height, channels = (some.records[name].astype(np.int64) for name in ("w", "h", "channels"))
        counts = -(-(width * height * channels) // 16) * 16
        starts = np.cumsum(counts) - counts
        requests = _requests(some, starts, (width * channels, channels, 1), mirrored=False)
        plan = _planned(some, requests, "bits", dtype.itemsize)
        out = torch.empty(int(counts.sum()), dtype=dtype, device=decoder.device)
        _run(decoder, some, plan, out)
        for slot, start, h, w, c in zip(slots.tolist(), starts, height, width, channels, strict=True):
            box = out[start : start + h * w * c].view(int(h), int(w), int(c))
            results[slot] = followed(box, records[slot], encoded.finish)
    return results if encoded.shape is None else torch.stack(results)


def _part(encoded: Encoded, slots: npt.NDArray[np.int64]) -> Encoded:
    from dataclasses import replace

    def named(slot: int, reason: str, kind: type[DataError]) -> DataError:
        return encoded.named(int(slots[slot]), reason, kind)

    return replace(
        encoded,
        offsets=encoded.offsets[slots],
        lengths=encoded.lengths[slots],
        records=encoded.records[slots],
        ids=encoded.ids[slots],
        named=named,
    )
