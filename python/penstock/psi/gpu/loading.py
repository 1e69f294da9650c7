"""The device's side of a Loader: fields that arrive as files (``penstock.psi.encoded``) become tensors.

Four ways, picture by picture, by what the records ask for. Those of one way go together, and each is enqueued on the current
stream without waiting:

- **stored**: nothing is resampled, padded or brought to other channels. The kernels write the result itself: region,
  mirror image, type, normalisation and layout in one store.
- **resampled**: 8-bit pictures that are resized. The kernels decode the boxes into one padded tensor; two batched matrix
  products with Pillow's filter weights do the rest, clipped in between as Pillow does. float16 holds a value to an eighth of a
  level, and the products are summed in float32: within a level of the CPU's.
- **followed**: everything else. The boxes are decoded here and finished one by one by the reference's own steps.
- **host**: files whose samples are stored as they are, for which there is no kernel. They are decoded on the CPU and copied.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.psi.encoded import lowered_first
from penstock.psi.gpu.decoder import Decoder, room
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

    if not len(encoded):
        return torch.empty(encoded.shape or (0,), device=device)
    ways = ways_of(encoded)
    kinds = np.unique(ways)
    if len(kinds) == 1:
        return _WAYS[Way(int(kinds[0]) % len(Way))](encoded, device)
    order, parts = [], []
    for kind in kinds.tolist():
        slots = np.flatnonzero(ways == kind)
        order.append(slots)
        parts.append(_WAYS[Way(kind % len(Way))](_part(encoded, slots), device))
    places = np.argsort(np.concatenate(order))
    if encoded.shape is None:
        joined = [sample for part in parts for sample in part]
        return [joined[place] for place in places.tolist()]
    (index,) = _on_device(torch.device(device), places, dtype=np.int64)
    return torch.cat(parts).index_select(0, index)


class Way(IntEnum):
    """How a picture becomes a tensor."""

    STORED = 0
    RESAMPLED = 1
    FOLLOWED = 2
    HOST = 3


_AS_THEY_ARE = 2
"""The flag of a file whose samples are stored as they are, and the byte of the header that holds it."""
_FLAGS = 7


def ways_of(encoded: Encoded) -> npt.NDArray[np.int64]:
    """For each picture its :class:`Way` plus a multiple of their number: those that have one number go together."""
    records, finish = encoded.records, encoded.finish
    ways = np.full(len(encoded), int(Way.FOLLOWED))
    if encoded.shape is not None and (records["sample_type"] == records["sample_type"][0]).all():
        channels = records["channels"]
        if finish.mode == "unchanged":
            kept = np.full(len(encoded), bool((channels == channels[0]).all()))
        else:
            kept = (channels == finish.channels(0)) & (encoded.stored(0) == "uint8")
        whole = (records["interpolation"] == 0) & _same(records, "w", "out_w", "window_w")
        whole &= _same(records, "h", "out_h", "window_h")
        resized, kinds = _resizable(encoded, kept)
        stored = whole & kept & _stores_values(encoded)
        if (resized & (records["interpolation"] != 0)).any():
            # One that happens to have the wanted size goes with the others, by a filter that changes nothing.
            stored &= ~resized
        ways[stored] = Way.STORED
        resized &= ~stored
        ways[resized] = Way.RESAMPLED + len(Way) * (kinds + 4 * channels)[resized]
    starts = encoded.offsets + _FLAGS
    if len(encoded.data):
        ways[encoded.data[starts] & _AS_THEY_ARE != 0] = Way.HOST
    return ways


def _same(records: npt.NDArray[Any], *names: str) -> npt.NDArray[np.bool_]:
    first, second, third = (records[name] for name in names)
    same: npt.NDArray[np.bool_] = (first == second) & (first == third)
    return same


def _stores_values(encoded: Encoded) -> bool:
    """Whether the kernels can write values of the result's type."""
    finish, stored = encoded.finish, encoded.stored(0)
    if finish.dtype is not None and finish.dtype != stored:
        return finish.dtype in NUMBERS
    factor, offset = finish.affine(stored, finish.channels(int(encoded.records["channels"][0])))
    return bool((factor == 1).all() and (offset == 0).all())


def _resizable(
    encoded: Encoded, kept: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Which pictures the products can resize, and by which filter; grey ones become rgb at the end."""
    records, finish = encoded.records, encoded.finish
    kinds = records["interpolation"].astype(np.int64)
    same_size = (records["resized_w"] == records["w"]) & (records["resized_h"] == records["h"])
    kinds[(kinds == 0) & same_size] = max(2, int(kinds.max()))
    channels = records["channels"]
    fits = (kept & np.isin(channels, (1, 3))) | (
        (channels == 1) & (finish.mode == "rgb")
    )  # alpha comes first
    fits &= np.isin(kinds, (2, 3)) & (encoded.stored(0) == "uint8")
    fits &= (records["window_w"] == records["out_w"]) & (records["window_h"] == records["out_h"])
    return fits & (finish.dtype in (None, "uint8", *NUMBERS)), kinds


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


def _stored(encoded: Encoded, device: str) -> Any:
    import torch

    decoder = _decoder(device)
    shape = encoded.shape
    assert shape is not None  # noqa: S101 - asked for by ways_of
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
    factors = _on_device(decoder.device, *encoded.finish.affine(stored, channels)) if numbers else None
    _run(decoder, encoded, plan, out, factors)
    return out


def _on_device(
    device: Any, *arrays: npt.NDArray[Any], dtype: type[np.generic] = np.float32
) -> tuple[Any, ...]:
    """Small arrays in one copy, which nobody waits for."""
    import torch

    flat = torch.from_numpy(np.concatenate([array.astype(dtype).ravel() for array in arrays]))
    if device.type == "cuda":
        flat = flat.pin_memory().to(device, non_blocking=True)
    parts = flat.split([array.size for array in arrays])
    return tuple(part.view(array.shape) for part, array in zip(parts, arrays, strict=True))


# Resampled: two matrix products.


def _resampled(encoded: Encoded, device: str) -> Any:
    import torch

    decoder = _decoder(device)
    records = encoded.records
    count, channels = len(encoded), int(records["channels"][0])
    high, wide = int(records["h"].max()), -(-int(records["w"].max()) // 8) * 8
    strides = (wide, 1, wide * high)
    starts = np.arange(count, dtype=np.int64) * (channels * high * wide)
    plan = _planned(encoded, _requests(encoded, starts, strides, mirrored=False), "float16", 2)
    # What lies outside of a box is multiplied by 0: it must be a number.
    elements = count * channels * high * wide
    boxes = torch.empty(room(elements), dtype=torch.float16, device=decoder.device)[:elements].zero_()
    boxes = boxes.view(count, channels, high, wide)
    _run(decoder, encoded, plan, boxes, _on_device(decoder.device, np.ones(channels), np.zeros(channels)))
    return _products(encoded, boxes)


def _products(encoded: Encoded, boxes: Any) -> Any:
    """The result from decoded boxes ``[n, channels, height, width]``, zeros around them."""
    import torch

    records, finish = encoded.records, encoded.finish
    channels, high, wide = boxes.shape[1:]
    wanted = finish.channels(channels)
    geometry = np.stack([records[name].astype(np.float32) for name in (
        "w", "resized_w", "window_x", "flip_x", "h", "resized_h", "window_y", "flip_y",
    )])  # fmt: skip
    placed, factors, offsets = _on_device(boxes.device, geometry, *finish.affine("uint8", wanted))
    kind = max(2, int(records["interpolation"].max()))
    out_h, out_w = int(records["out_h"][0]), int(records["out_w"][0])
    across = _filters(placed[:4], wide, out_w, kind).to(boxes.dtype).transpose(1, 2)
    down = _filters(placed[4:], high, out_h, kind).to(boxes.dtype)
    small = _both_ways(boxes, across, down, lowered_first(records)).expand(-1, wanted, -1, -1)
    if finish.dtype in NUMBERS:
        small = small.float() * factors.view(-1, 1, 1) + offsets.view(-1, 1, 1)
        small = small.to(getattr(torch, finish.dtype))
    else:
        small = small.to(torch.uint8)
    return (small if finish.order() == "NCHW" else small.permute(0, 2, 3, 1)).contiguous()


def _both_ways(boxes: Any, across: Any, down: Any, lowered: npt.NDArray[np.bool_]) -> Any:
    """The two products, in each picture's own order, rounded to whole levels at the end."""
    import torch

    def narrowed(values: Any) -> Any:
        # One product a picture, whatever its channels: their rows stand one below the other.
        return torch.bmm(values.flatten(1, 2), across).view(*values.shape[:3], -1).clamp_(0, 255)

    def lowered_to(values: Any) -> Any:
        return torch.matmul(down.unsqueeze(1), values).clamp_(0, 255)

    if lowered.all():
        return narrowed(lowered_to(boxes)).round_()
    small = lowered_to(narrowed(boxes)).round_()
    if lowered.any():
        (first,) = _on_device(boxes.device, lowered, dtype=np.bool_)
        other = narrowed(lowered_to(boxes)).round_()
        small = torch.where(first.view(-1, 1, 1, 1), other, small)
    return small


def _filters(placed: Any, inputs: int, outputs: int, kind: int) -> Any:
    """Pillow's filter for each picture: ``[n, outputs, inputs]``, zero outside of the picture.

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
    return shape / shape.sum(2, keepdim=True)


# Followed: the reference's steps, on the device.


def _followed(encoded: Encoded, device: str) -> Any:
    import torch

    from penstock.psi.encoded import SAMPLE_TYPES
    from penstock.psi.reference import followed

    decoder = _decoder(device)
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


# Host: there is no kernel for it.


def _on_host(encoded: Encoded, device: str) -> Any:
    from penstock.psi.reference import decode_on_cpu

    made = decode_on_cpu(encoded)
    if isinstance(made, list):
        return [_copied(sample, device) for sample in made]
    return _copied(made, device)


def _copied(tensor: Any, device: str) -> Any:
    return (
        tensor.pin_memory().to(device, non_blocking=True) if device.startswith("cuda") else tensor.to(device)
    )


_WAYS: dict[Way, Callable[[Encoded, str], Any]] = {
    Way.STORED: _stored,
    Way.RESAMPLED: _resampled,
    Way.FOLLOWED: _followed,
    Way.HOST: _on_host,
}
