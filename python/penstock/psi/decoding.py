"""From files to arrays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock import _native
from penstock.errors import DecodeError
from penstock.psi.axes import Region, as_array, box, checked, four_axes, natural, shape_in
from penstock.psi.encoding import threads_for
from penstock.psi.failures import translated
from penstock.psi.header import from_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from typing_extensions import Buffer

    from penstock.psi.header import Info

LIMIT = 1 << 32
"""Bytes. What a header may promise before decoding refuses to allocate it, unless ``max_bytes`` says otherwise."""


def decode(
    file: Buffer,
    *,
    region: Region | None = None,
    out: Any = None,
    layout: str | None = None,
    dtype: npt.DTypeLike | None = None,
    arrays: Literal["numpy", "torch"] = "numpy",
    threads: int | None = None,
    verify: bool = True,
    max_bytes: int = LIMIT,
) -> Any:
    """Decodes a file, or a region of it, into a NumPy array or a torch tensor.

    - ``file``: bytes, a mapping of a file, or any other buffer that lies in one piece.
    - ``region``: a tuple of slices over rows and columns, for volumes slices before them: ``np.s_[0:224, 100:324]``. Only
      the tiles that it touches are read.
    - ``layout``: the order of the axes, such as ``"CHW"``. Default: ``info(file).layout``.
    - ``dtype``: another type for the result, converted as ``astype`` does; values are not scaled.
    - ``out``: an array or tensor to decode into, in ``layout``, in any memory order; it is returned.
    - ``arrays``: ``"torch"`` gives a tensor.
    - ``threads``: at most so many; default: as many as the process may use cores, fewer for small images.
    - ``verify``: check each tile's checksum.
    - ``max_bytes``: a result above this is refused before it is allocated.

    Raises DecodeError, TruncatedError or ChecksumError for a bad file, ValueError for a bad request.

    >>> decode(file, region=np.s_[0:224, 0:224], layout="CHW").shape  # doctest: +SKIP
    (3, 224, 224)
    """
    work = _Work(
        file, None, region=region, out=out, layout=layout, dtype=dtype, arrays=arrays, max_bytes=max_bytes
    )
    with translated():
        _native.psi_decode([work.job], threads_for(work.samples.nbytes, threads), verify)
    return work.result()


def decode_batch(
    files: Sequence[Buffer],
    *,
    regions: Sequence[Region | None] | None = None,
    layout: str | None = None,
    dtype: npt.DTypeLike | None = None,
    arrays: Literal["numpy", "torch"] = "numpy",
    device: str = "cpu",
    threads: int | None = None,
    verify: bool = True,
    max_bytes: int = LIMIT,
    **options: Any,
) -> Any:
    """Decodes many files at once: one array ``[N, …]`` where all come out alike, else a list of arrays.

    ``regions`` has a region for each file, or None for the whole of it; the other arguments are those of ``decode``.
    A bad file is named by its number. ``device="cuda"`` decodes on the GPU and takes further ``options``: see
    ``penstock.psi.gpu.decode_batch``.

    >>> decode_batch([file, file]).shape  # doctest: +SKIP
    (2, 480, 640, 3)
    """
    if regions is not None and len(regions) != len(files):
        raise ValueError(f"{len(regions)} regions for {len(files)} files")
    if device.startswith("cuda"):
        from penstock.psi import gpu

        return gpu.decode_batch(
            files, regions=regions, layout=layout, dtype=dtype, device=device, verify=verify, **options
        )
    if device != "cpu" or options:
        what = f"device {device!r}" if device != "cpu" else f"options {', '.join(options)}"
        raise ValueError(f"{what}: files decode on 'cpu', or on 'cuda' with further options")
    if not files:
        return []
    chosen = regions or [None] * len(files)
    wanted = {"layout": layout, "dtype": dtype, "arrays": arrays, "max_bytes": max_bytes}
    works = [
        _Work(file, f"file {number} of {len(files)}", region=region, out=None, **wanted)  # type: ignore[arg-type]
        for number, (file, region) in enumerate(zip(files, chosen, strict=True))
    ]
    alike = len({(work.shape, work.info.dtype) for work in works}) == 1
    together = None
    if alike:
        together = np.empty((len(works), *works[0].shape), works[0].info.dtype)
        for work, place in zip(works, together, strict=True):
            work.samples = place
    with translated(lambda number: f"file {number} of {len(files)}"):
        nbytes = sum(work.samples.nbytes for work in works)
        _native.psi_decode([work.job for work in works], threads_for(nbytes, threads), verify)
    if together is None:
        return [work.result() for work in works]
    if dtype is not None:
        together = together.astype(dtype, copy=False)
    return _as_torch(together) if arrays == "torch" else together


class _Work:
    """One file on its way: where it is decoded to, and what happens to it then."""

    def __init__(
        self,
        file: Buffer,
        name: str | None,
        *,
        region: Region | None,
        out: Any,
        layout: str | None,
        dtype: npt.DTypeLike | None,
        arrays: str,
        max_bytes: int,
    ) -> None:
        if arrays not in ("numpy", "torch"):
            raise ValueError(f'arrays is {arrays!r}; it is "numpy" or "torch"')
        with translated(lambda _: name):
            row = _native.psi_info(file)
        self.info: Info = from_row(row, memoryview(file).nbytes)
        self.file = file
        self.start, size = box(region, self.info)
        self.layout = natural(self.info) if layout is None else checked(layout)
        self.shape = shape_in(self.layout, size, self.info.channels)
        nbytes = math.prod(self.shape) * self.info.dtype.itemsize
        if nbytes > max_bytes:
            raise DecodeError(f"it decodes to {nbytes:,} bytes, and max_bytes allows {max_bytes:,}", key=name)
        self.out = out
        self.dtype = dtype
        self.arrays = arrays
        self.target: np.ndarray[Any, Any] | None = None
        if out is not None:
            self.target = as_array(out)
            if self.target.shape != self.shape:
                raise ValueError(f"out has the shape {self.target.shape}; it takes {self.shape}")
            if not self.target.flags.writeable:
                raise ValueError("out cannot be written to")
            if dtype is not None and np.dtype(dtype) != self.target.dtype:
                raise ValueError(f"out is {self.target.dtype} and dtype {np.dtype(dtype)}")
        fits = (
            self.target is not None
            and self.target.dtype == self.info.dtype
            and all(stride > 0 for stride in self.target.strides)
        )
        self.samples: np.ndarray[Any, Any]
        if self.target is not None and fits:
            self.samples = self.target
        else:
            self.samples = np.empty(self.shape, self.info.dtype) if nbytes else np.empty(self.shape)

    @property
    def job(self) -> tuple[Any, tuple[int, int, int], Any]:
        return self.file, self.start, four_axes(self.samples, self.layout)[0]

    def result(self) -> Any:
        if self.target is not None:
            if self.samples is not self.target:
                np.copyto(self.target, self.samples, casting="unsafe")
            return self.out
        made = self.samples if self.dtype is None else self.samples.astype(self.dtype, copy=False)
        return _as_torch(made) if self.arrays == "torch" else made


def _as_torch(array: np.ndarray[Any, Any]) -> Any:
    import torch

    return torch.from_numpy(array)
