"""From the slab to the GPU: one copy, ahead of the training step, on a stream of its own."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock import _native
    from penstock.batch import Batch


class Pins:
    """Slabs that are registered with CUDA, so that copies from them run beside the training step.

    Each slab is registered once and stays so until :meth:`close`.
    """

    def __init__(self) -> None:
        self._pinned: dict[int, int] = {}

    def pin(self, array: _native.Array) -> None:
        """Registers the slab under ``array``, if that has not been done."""
        place = array.slab
        if place is None or place[0] in self._pinned:
            return
        import torch

        slab, address, length = place
        status = torch.cuda.cudart().cudaHostRegister(address, length, 0)
        # Unpinned memory works as well, only slower: not worth ending a training over.
        self._pinned[slab] = address if int(status) == 0 else 0

    def close(self) -> None:
        """Takes every registration back."""
        if not self._pinned:
            return
        import torch

        for address in self._pinned.values():
            if address:
                torch.cuda.cudart().cudaHostUnregister(address)
        self._pinned.clear()


def ahead(batches: Iterator[Batch], device: str) -> Iterator[Batch]:
    """The batches on ``device``, the next one always under way while the caller trains on this one.

    The host memory of a batch is kept until its copy has ended, which an event says.
    """
    import torch

    stream = torch.cuda.Stream(device)
    under_way: deque[tuple[Batch, Batch, Any]] = deque()
    held: deque[tuple[Batch, Any]] = deque()
    for batch in batches:
        with torch.cuda.stream(stream):
            copied = batch.replace({name: _moved(value, device) for name, value in batch.items()})
            event = torch.cuda.Event()
            event.record(stream)
        under_way.append((batch, copied, event))
        while held and held[0][1].query():
            held.popleft()
        if len(under_way) > 1:
            yield _handed_over(under_way, held)
    while under_way:
        yield _handed_over(under_way, held)
    for _, event in held:
        event.synchronize()
    if "penstock.psi.gpu" in sys.modules:
        # What the kernels refused in the last batches is known now.
        sys.modules["penstock.psi.gpu"].finish(device)


def _handed_over(under_way: deque[tuple[Batch, Batch, Any]], held: deque[tuple[Batch, Any]]) -> Batch:
    import torch

    batch, copied, event = under_way.popleft()
    current = torch.cuda.current_stream()
    current.wait_event(event)
    for value in copied.values():
        for tensor in value if isinstance(value, list) else (value,):
            if isinstance(tensor, torch.Tensor):
                # Its memory came from the side stream's pool and is now used on this one.
                tensor.record_stream(current)
    held.append((batch, event))
    return copied


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, list):
        return [_moved(item, device) for item in value]
    return value.to(device, non_blocking=True) if hasattr(value, "to") else value
