"""Pictures on their way to a device: the files of a batch in one piece of memory, and what to do with each.

With ``device="cuda"`` a Loader does not decode PSI pictures on the CPU. Its workers read a sample's file, compare its
checksums, draw its geometry from (seed, epoch, id) as ever, and put a record of that and the file side by side into the
step's slab. Python gets them as an :class:`Encoded`; one copy takes all of them to the device, which decodes there.
What comes out is the batch that the CPU makes, but for the last digit of resampled values.

A record is followed in this order: decode the box; bring the channels to ``finish.mode``; resize (rounded back to the
stored integer type); keep the window; put it at (left, top) into an output that is ``fill`` elsewhere; mirror; then
``(value · scale − mean) / std``, type and layout as ``finish`` says. ``crates/codec/src/program/encoded.rs`` writes it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np

from penstock import _native
from penstock.errors import ChecksumError, DataError, DecodeError, TruncatedError
from penstock.formats import Format

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from penstock.batch import Batch
    from penstock.dataset import Dataset
    from penstock.transform import Layout, Mode

Choice: TypeAlias = Literal["auto", "cpu", "device"]
"""Where PSI pictures are decoded."""

RECORD_BYTES = 128
_WORDS = (
    *("version", "width", "height", "channels", "sample_type", "x", "y", "w", "h"),
    *("resized_w", "resized_h", "interpolation", "window_x", "window_y", "window_w", "window_h"),
    *("left", "top", "out_w", "out_h", "flip_x", "flip_y"),
)
RECORD = np.dtype(
    {
        "names": [*_WORDS, "fill"],
        "formats": ["<i4"] * len(_WORDS) + ["<f4"],
        "offsets": [4 * place for place in range(len(_WORDS) + 1)],
        "itemsize": RECORD_BYTES,
    }
)
"""What the engine writes in front of each file.

``width``, ``height``, ``channels``, ``sample_type`` (an index into ``SAMPLE_TYPES``): of the stored picture. ``x``, ``y``, ``w``,
``h``: the box to decode. ``resized_w``, ``resized_h``: what it is resized to; ``interpolation``: 0 where it is not, 1 nearest,
2 bilinear, 3 bicubic. ``window_*``: the part of that which is kept; 0 by 0 where nothing is. ``left``, ``top``: where it lies in
the output of ``out_w`` by ``out_h``; ``flip_x``, ``flip_y``: whether the whole output is mirrored. ``fill``: what is outside
of the window, in units of the stored type.
"""


def lowered_first(records: npt.NDArray[np.void] | np.void) -> npt.NDArray[np.bool_]:
    """Whether rows are resampled before columns: where the filter overshoots it shows, as with Pillow 13."""
    columns = records["w"].astype(np.int64) - records["resized_w"]
    rows = records["h"].astype(np.int64) - records["resized_h"]
    found: npt.NDArray[np.bool_] = (records["interpolation"] == 3) & (rows > 0) & (rows > 2 * columns)
    return found


SAMPLE_TYPES = ("uint8", "int8", "uint16", "int16", "float16", "float32", "uint32", "int32")
_UNITS = {
    "uint8": 255.0,
    "int8": 127.0,
    "uint16": 65535.0,
    "int16": 32767.0,
    "uint32": 2.0**32 - 1,
    "int32": 2.0**31 - 1,
}
_KINDS: dict[str, type[DataError]] = {
    "decode": DecodeError,
    "checksum": ChecksumError,
    "truncated": TruncatedError,
}


@dataclass(frozen=True)
class Finish:
    """What happens to values: the end of a transform."""

    mode: Mode
    dtype: str | None
    """Of the result; None leaves that of the pixels."""
    scale: bool
    """Whether the full range of an integer type becomes [0, 1] of a float, and the other way round."""
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    layout: Layout | None
    """As the user wrote it; see :meth:`order`."""

    @classmethod
    def of(cls, program: str) -> Self:
        """The end of a compiled transform, as ``crates/codec/src/program/ops.rs`` reads it."""
        document = json.loads(program)
        dtype: str | None = None
        scale = False
        mean = std = None
        for op in document["ops"]:
            if op["op"] == "normalize":
                mean, std = tuple(op["mean"]), tuple(op["std"])
                if dtype is None:
                    dtype, scale = "float32", True
            elif op["op"] == "to_dtype" and op["kind"] == "image":
                if mean is None:
                    scale = op["scale"]
                dtype = op["dtype"]
        return cls(document["mode"], dtype, scale, mean, std, document["layout"])

    def order(self) -> Layout:
        """The layout of the result: planes for floats that the transform made, unless the user says otherwise."""
        made_float = self.dtype in ("float16", "bfloat16", "float32", "float64")
        return self.layout or ("NCHW" if made_float else "NHWC")

    def pixels(self, stored: str) -> str:
        """The type of the pixels before the values are finished, of pictures stored as ``stored``."""
        return stored if self.mode == "unchanged" else "uint8"

    def channels(self, stored: int) -> int:
        """Channels of the result, of pictures with ``stored``."""
        return {"rgb": 3, "grey": 1, "unchanged": stored}[self.mode]

    def affine(self, pixels: str, channels: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Factor and offset of each channel: a value becomes ``value * factor + offset``, in float32."""
        to = self.dtype or pixels
        scale = _UNITS.get(to, 1.0) / _UNITS.get(pixels, 1.0) if self.scale else 1.0
        if self.mean is None or self.std is None:
            return np.full(channels, scale, np.float32), np.zeros(channels, np.float32)
        if len(self.mean) not in (1, channels):
            raise DecodeError(f"an image of {channels} channels and a Normalize of {len(self.mean)}")
        mean = np.broadcast_to(np.asarray(self.mean, np.float64), channels)
        std = np.broadcast_to(np.asarray(self.std, np.float64), channels)
        return (scale / std).astype(np.float32), (-mean / std).astype(np.float32)


@dataclass(frozen=True)
class Encoded:
    """One field of a batch, not decoded yet."""

    data: npt.NDArray[np.uint8]
    """The files and their records, in one piece of one slab."""
    offsets: npt.NDArray[np.int64]
    """First byte of each file in ``data``, a multiple of 64."""
    lengths: npt.NDArray[np.int64]
    records: npt.NDArray[Any]
    """``RECORD``, one for each sample."""
    finish: Finish
    ids: npt.NDArray[np.uint64]
    named: Callable[[int, str, type[DataError]], DataError]
    """The error of a sample: its slot, the reason, the class."""

    def __len__(self) -> int:
        return len(self.offsets)

    def file(self, slot: int) -> npt.NDArray[np.uint8]:
        """The bytes of one file."""
        start = int(self.offsets[slot])
        return self.data[start : start + int(self.lengths[slot])]

    def stored(self, slot: int) -> str:
        """The sample type that a picture is stored in."""
        return SAMPLE_TYPES[int(self.records["sample_type"][slot])]

    def sample_shape(self, slot: int) -> tuple[int, int, int]:
        """The shape of a sample in the result."""
        record = self.records[slot]
        channels = self.finish.channels(int(record["channels"]))
        height, width = int(record["out_h"]), int(record["out_w"])
        return (channels, height, width) if self.finish.order() == "NCHW" else (height, width, channels)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of the result; None where the samples differ in shape or type, and come as a list."""
        alike = ["out_w", "out_h"]
        if self.finish.mode == "unchanged":
            alike += ["channels"] + ["sample_type"] * (self.finish.dtype is None)
        for name in alike:
            if (self.records[name] != self.records[name][:1]).any():
                return None
        return (len(self), *self.sample_shape(0)) if len(self) else (0,)

    def error(self, slot: int, kind: Literal["decode", "checksum", "truncated"], reason: str) -> DataError:
        """The usual error of a bad sample, for the device to raise."""
        return self.named(slot, reason, _KINDS[kind])

    def to(self, device: str, *, non_blocking: bool = True) -> Any:
        """The decoded batch on the device: a tensor, or a list of them where ``shape`` is None. As a tensor's ``to``."""
        if device.startswith("cuda") and non_blocking:
            import importlib

            return importlib.import_module("penstock.psi.gpu").decode_encoded(self, device)
        from penstock.psi.reference import decode_on_cpu

        return decode_on_cpu(self)


def on_device(dataset: Dataset, program: str, choice: Choice) -> frozenset[str]:
    """The names of the stored fields that are handed on as files.

    ``"auto"``: pictures that are PSI throughout, where the device can follow the transform. ``"device"``: the same, and
    ValueError where there is none or an obstacle.
    """
    if choice == "cpu":
        return frozenset()
    names = frozenset(
        field.name
        for field in dataset.fields
        if field.source == "stored" and field.kind == "image" and _only_psi(dataset, field.name)
    )
    obstacle: str | None = "no picture of the data set is PSI throughout"
    if names:
        obstacle = _native.psi_obstacle(program)
    if obstacle is None:
        return names
    if choice == "device":
        raise ValueError(f'decode="device": {obstacle}; decode="auto" leaves such pictures to the CPU')
    return frozenset()


def _only_psi(dataset: Dataset, field: str) -> bool:
    formats = dataset.catalog.addresses(field, np.arange(len(dataset))).format
    return bool(len(formats)) and bool((formats == Format.PSI).all())


def decoded_here(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The batches with their encoded fields decoded by the reference, on the CPU."""
    try:
        for batch in batches:
            coded = {name: value for name, value in batch.items() if isinstance(value, Encoded)}
            yield batch.replace({**batch, **{name: value.to("cpu") for name, value in coded.items()}})
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()


def taken_over(
    parts: tuple[_native.Array, bytes, bytes] | Sequence[Any],
    finish: Finish,
    ids: npt.NDArray[np.uint64],
    named: Callable[[int, str, type[DataError]], DataError],
) -> Encoded:
    """What ``Finished.arrays`` gives of an encoded field."""
    if not parts:  # every sample was bad and left out
        none = np.zeros(0, np.int64)
        return Encoded(np.zeros(0, np.uint8), none, none, np.zeros(0, RECORD), finish, ids, named)
    array, starts_bytes, lengths_bytes = parts
    data = np.asarray(array)
    starts = np.frombuffer(starts_bytes, np.int64)
    places = starts[:, None] + np.arange(RECORD_BYTES)
    records = data[places].view(RECORD).reshape(-1)
    lengths = np.frombuffer(lengths_bytes, np.int64)
    return Encoded(data, starts + RECORD_BYTES, lengths, records, finish, ids, named)
