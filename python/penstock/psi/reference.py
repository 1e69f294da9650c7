"""What a device does with encoded pictures, in torch, step by step: to compare with, and where there is no kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.psi.decoding import decode
from penstock.psi.encoded import lowered_first

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from penstock.psi.encoded import Encoded, Finish

_SUPPORT = {1: 0.5, 2: 1.0, 3: 2.0}


def decode_on_cpu(encoded: Encoded) -> torch.Tensor | list[torch.Tensor]:
    """Decodes and finishes an encoded field; gives what the CPU path of a Loader gives."""
    made = []
    for slot, record in enumerate(encoded.records):
        x, y, w, h = (int(record[name]) for name in ("x", "y", "w", "h"))
        box = decode(encoded.file(slot).data, region=(slice(y, y + h), slice(x, x + w)), layout="HWC")
        made.append(followed(torch.from_numpy(box), record, encoded.finish))
    if encoded.shape is None or not made:
        return made
    return torch.stack(made)


def followed(box: torch.Tensor, record: np.void, finish: Finish) -> torch.Tensor:
    """Everything after decoding: from the box ``[h, w, channels]`` to the sample."""
    pixels = with_mode(box, finish)
    stored = str(pixels.dtype).removeprefix("torch.")
    if record["interpolation"]:
        pixels = resized(pixels, record)
    x, y, w, h = (int(record[f"window_{name}"]) for name in "xywh")
    pixels = pixels[y : y + h, x : x + w]
    out_w, out_h = int(record["out_w"]), int(record["out_h"])
    if (w, h) != (out_w, out_h):
        fill = float(record["fill"])
        canvas = torch.full((out_h, out_w, pixels.shape[2]), fill, dtype=torch.float64, device=pixels.device)
        canvas = canvas.to(pixels.dtype) if pixels.is_floating_point() else canvas.round().to(pixels.dtype)
        left, top = int(record["left"]), int(record["top"])
        canvas[top : top + h, left : left + w] = pixels
        pixels = canvas
    mirrored = [axis for axis, name in enumerate(("flip_y", "flip_x")) if record[name]]
    finished = with_values(pixels.flip(mirrored) if mirrored else pixels, stored, finish)
    return finished.permute(2, 0, 1).contiguous() if finish.order() == "NCHW" else finished.contiguous()


def with_mode(pixels: torch.Tensor, finish: Finish) -> torch.Tensor:
    """Channels and depth as the mode says."""
    if finish.mode == "unchanged":
        return pixels
    if pixels.dtype == torch.uint16:
        pixels = (pixels.to(torch.int32) >> 8).to(torch.uint8)
    channels = pixels.shape[2]
    if channels < 3:
        return pixels[..., :1].expand(-1, -1, 3 if finish.mode == "rgb" else 1)
    if finish.mode == "rgb":
        return pixels[..., :3]
    red, green, blue = pixels[..., :3].to(torch.int32).split(1, -1)
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).to(torch.uint8)


def with_values(pixels: torch.Tensor, stored: str, finish: Finish) -> torch.Tensor:
    """Scaled, normalised and cast."""
    to: torch.dtype = pixels.dtype if finish.dtype is None else getattr(torch, finish.dtype)
    factor, offset = finish.affine(stored, pixels.shape[2])
    if finish.mean is None and (factor == 1).all():
        return pixels.to(to)
    both = (_moved(values, pixels.device) for values in (factor, offset))
    values = pixels.to(torch.float32) * next(both) + next(both)
    if to.is_floating_point or to == torch.bool:
        return values.to(to)
    rounded = values.abs().add(0.5).floor().mul(values.sign())
    limits = torch.iinfo(to)
    return rounded.clamp(limits.min, limits.max).to(to)


def resized(pixels: torch.Tensor, record: np.void) -> torch.Tensor:
    """The whole box at its new size, of the pixels' own type."""
    kind = int(record["interpolation"])
    height, width = int(record["resized_h"]), int(record["resized_w"])
    if kind == 1:
        rows = (2 * torch.arange(height, device=pixels.device) + 1) * pixels.shape[0] // (2 * height)
        columns = (2 * torch.arange(width, device=pixels.device) + 1) * pixels.shape[1] // (2 * width)
        return pixels[rows][:, columns]
    values = pixels.to(torch.float64)
    with_alpha = pixels.shape[2] in (2, 4)
    if with_alpha:
        full = 1.0 if pixels.is_floating_point() else float(torch.iinfo(pixels.dtype).max)
        alpha = values[..., -1:] / full
        values = rounded_to(torch.cat((values[..., :-1] * alpha, values[..., -1:]), -1), pixels.dtype)
    across = weights(pixels.shape[1], width, kind, pixels.device)
    down = weights(pixels.shape[0], height, kind, pixels.device)
    passes = [("ow,hwc->hoc", across), ("oh,hwc->owc", down)]
    for way, taps in reversed(passes) if lowered_first(record) else passes:
        values = clipped(torch.einsum(way, taps, values), pixels.dtype)
    values = rounded_to(values, pixels.dtype)
    if with_alpha:
        alpha = values[..., -1:] / full
        colour = torch.where(alpha > 0, values[..., :-1] / alpha, 0.0)
        values = rounded_to(torch.cat((colour, values[..., -1:]), -1), pixels.dtype)
    return values.to(pixels.dtype)


def _moved(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """A small array on the device. From memory that is not pinned the copy would wait for the whole stream."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def clipped(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Clipped to what an integer type holds; floats stay."""
    if dtype.is_floating_point:
        return values
    limits = torch.iinfo(dtype)
    return values.clamp(limits.min, limits.max)


def rounded_to(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounded and clipped to what an integer type holds; floats stay."""
    return values if dtype.is_floating_point else clipped(values.round(), dtype)


def weights(inputs: int, outputs: int, kind: int, device: Any = "cpu") -> Any:
    """Pillow's filter along one axis: ``[outputs, inputs]``, each row summing to one."""
    scale = inputs / outputs
    widen = max(scale, 1.0)
    reach = _SUPPORT[kind] * widen
    centre = ((torch.arange(outputs, dtype=torch.float64, device=device) + 0.5) * scale)[:, None]
    place = torch.arange(inputs, dtype=torch.float64, device=device)[None, :]
    first = (centre - reach + 0.5).clamp(min=0).floor()
    last = (centre + reach + 0.5).floor()
    x = ((place + 0.5 - centre) / widen).abs()
    if kind == 2:
        shape = (1 - x).clamp(min=0)
    else:
        near = ((1.5 * x - 2.5) * x) * x + 1
        far = (((x - 5) * x + 8) * x - 4) * -0.5
        shape = torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
    shape = torch.where((place >= first) & (place < last), shape, torch.zeros_like(shape))
    return shape / shape.sum(1, keepdim=True)
