"""Batches of files on their way through a GPU: enqueued, never waited for inside a step.

**Who waits for whom.** :meth:`Decoder.decode` enqueues the copy, the launches and the copy of the status back on torch's
current stream and returns; nothing on the host waits. What is wrong with a picture is known once the batch has passed:
:meth:`Pending.check` waits for that and raises. :meth:`Decoder.decode` itself raises what it already knows of earlier
batches that nobody checked.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ChecksumError, DataError, DecodeError
from penstock.psi.gpu.driver import JobRecord, kernel
from penstock.psi.gpu.plan import PADDING, readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.psi.gpu.plan import Plan

STATUS: dict[int, tuple[type[DataError], str]] = {
    1: (DecodeError, "a tile's place is outside of the file"),
    2: (DecodeError, "the head of a tile makes no sense"),
    3: (DecodeError, "a tile's stream does not end where it should"),
    4: (ChecksumError, "the bytes of a tile are not those that were written"),
}
"""What the codes of kernels/picture.cuh mean."""


def room(count: int) -> int:
    """``count`` or up to an eighth more: batches of nearly one size take the same memory again."""
    step = 1 << max(count.bit_length() - 4, 12)
    return -(-count // step) * step


def unnamed(number: int, error: type[DataError], reason: str) -> DataError:
    """The error of a file that has no name but its number in the batch."""
    return error(reason, key=f"file {number}")


@dataclass(slots=True)
class Pending:
    """A batch that was enqueued. ``event`` is recorded behind it."""

    event: Any
    status: Any  # a pinned tensor
    named: Callable[[int, type[DataError], str], DataError]
    kept: tuple[Any, ...] = field(default=())  # host memory that the copy reads

    def check(self) -> None:
        """Waits until the batch has passed and raises the error of its first bad picture, if there is one."""
        self.event.synchronize()
        self.kept = ()
        for number in np.flatnonzero(self.status.numpy()).tolist():
            error, reason = STATUS.get(int(self.status[number]), (DecodeError, "the kernel refuses it"))
            raise self.named(number, error, reason)


class Decoder:
    """Decodes batches on one device, in the current stream of whoever calls.

    Host memory of a batch is let go once its event has passed. Not to be used from several threads at once.
    """

    def __init__(self, device: str | int = "cuda", *, verify: bool = True) -> None:
        import torch

        self.device = torch.device(device)
        self.index = torch.cuda.current_device() if self.device.index is None else self.device.index
        self.verify = verify
        self._pending: deque[Pending] = deque()

    def decode(
        self,
        blob: Any,
        plan: Plan,
        out: Any,
        *,
        scale: Any = None,
        bias: Any = None,
        named: Callable[[int, type[DataError], str], DataError] = unnamed,
        pictures: int,
        keep: tuple[Any, ...] = (),
    ) -> Pending:
        """Enqueues a batch: files go from ``blob`` through ``plan`` into ``out``.

        ``blob``: a uint8 tensor on the host, best pinned, or on the device with PADDING bytes more. ``scale`` and ``bias``:
        float32 tensors on the device, by channel. ``keep``: what must live until the copy is over.

        Raises the error of an earlier batch where one is known by now.
        """
        import torch

        self.collect()
        manifest = torch.empty(len(plan.manifest) + 4 * pictures, dtype=torch.uint8, pin_memory=True)
        np_manifest = manifest.numpy()
        np_manifest[: len(plan.manifest)] = np.frombuffer(plan.manifest, np.uint8)
        np_manifest[len(plan.manifest) :] = 0
        on_device = manifest.to(self.device, non_blocking=True)
        if blob.is_cuda:
            files = blob
        else:
            # Kernels may read a little past the last file.
            files = torch.empty(room(blob.numel() + PADDING), dtype=torch.uint8, device=self.device)
            files = files[: blob.numel() + PADDING]
            files[: blob.numel()].copy_(blob, non_blocking=True)
        stream = torch.cuda.current_stream(self.device).cuda_stream
        base = on_device.data_ptr()
        job = JobRecord(
            blob=files.data_ptr(),
            blob_bytes=readable(files.numel() - PADDING),
            manifest=base,
            pictures=base,
            blocks=0,
            out=out.data_ptr(),
            status=base + len(plan.manifest),
            scale=0 if scale is None else scale.data_ptr(),
            bias=0 if bias is None else bias.data_ptr(),
            verify=int(self.verify),
        )
        for launch in plan.launches:
            job.blocks = base + plan.blocks_at + 8 * launch.first_block
            kernel(launch.variant, self.index).launch(job, launch.blocks, stream)
        status = torch.empty(pictures, dtype=torch.int32, pin_memory=True)
        status.copy_(on_device[len(plan.manifest) :].view(torch.int32), non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        pending = Pending(event, status, named, (manifest, blob, *keep))
        self._pending.append(pending)
        return pending

    def collect(self) -> None:
        """Raises the first error of the batches that have passed; lets their host memory go."""
        while self._pending and self._pending[0].event.query():
            self._pending.popleft().check()

    def finish(self) -> None:
        """Waits for every batch; raises the first error."""
        while self._pending:
            self._pending.popleft().check()
