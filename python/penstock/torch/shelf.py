"""Shared memory that a worker builds batches in, and gets back when the consumer has dropped them.

Making shared memory costs more than filling it: every page is a fault that the kernel answers with a page of
zeros. So a worker's `Shelf` lends out the same few pieces again and again. The parent maps each piece once
(`Leases`) and hands out storages on it; when the last tensor on one is gone, the piece is named in the next
request to the worker, which only then uses it again.

**Who holds a piece.** In the worker, a tensor of its own on it (it may keep one); in the parent, one storage for
each time that it was sent. It is idle when nobody does. A process that is forked from the parent has every
tensor that the parent had, and nobody says when it is done with them: pieces that are lent out at a fork are
never used again (`Leases.retire`). One that is sent on to another process is copied by torch.

**How much.** Idle pieces are kept up to `_IDLE` batches of the latest size; what is beyond is given back to the
system, in the worker and, by name in its next reply, in the parent.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

_IDLE = 4
"""Batches of the latest size that idle pieces may hold: as many as are usually under way in one worker."""

_LEAST = 16 << 20
"""Bytes that idle pieces may hold in any case."""

_PIECES = 128
"""Pieces of one worker: each is an open file here and in the parent."""


class Piece:
    """One piece of shared memory, in the worker. ``descriptor``: its memfd until the parent has it."""

    __slots__ = ("address", "capacity", "descriptor", "held", "id", "memory", "retired", "sent")

    def __init__(self, id: int, capacity: int) -> None:
        self.id = id
        self.capacity = capacity
        self.descriptor = os.memfd_create("penstock-batch", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.descriptor, capacity)
            self.memory = mmap.mmap(self.descriptor, capacity)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.address = torch.frombuffer(self.memory, dtype=torch.uint8).data_ptr()
        self.held: weakref.ref[Any] | None = None
        self.sent = 0
        self.retired = False

    @property
    def idle(self) -> bool:
        """Whether nobody holds it."""
        return self.sent == 0 and (self.held is None or self.held() is None)

    def known(self) -> None:
        """Take in that the parent has it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Shelf:
    """The pieces of one worker."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._pieces: dict[int, Piece] = {}
        self._at: dict[int, Piece] = {}
        self._gone: list[int] = []
        self._lock = threading.Lock()  # a dataset may collate in its own items, in fetchers

    def room(self, size: int) -> torch.Tensor | None:
        """Give ``size`` bytes of shared memory, with whatever is in them; None: there are pieces enough."""
        with self._lock:
            piece = self._fitting(size)
            if piece is None:
                if len(self._pieces) >= _PIECES:
                    return None
                piece = Piece(next(self._numbers), _rounded(size))
                self._pieces[piece.id] = self._at[piece.address] = piece
            # torch holds this view for as long as there is a tensor on the memory.
            view = memoryview(piece.memory)
            piece.held = weakref.ref(view)
        return torch.frombuffer(view, dtype=torch.uint8, count=size)

    def _fitting(self, size: int) -> Piece | None:
        """Give the smallest idle piece that is large enough, and not far too large."""
        best = None
        for piece in self._pieces.values():
            if size <= piece.capacity <= 2 * size + _LEAST // 16 and (
                best is None or piece.capacity < best.capacity
            ):
                best = piece if piece.idle and not piece.retired else best
        return best

    def piece_of(self, storage: torch.UntypedStorage) -> Piece | None:
        """Give the piece that ``storage`` is on; None: it is on other memory."""
        return self._at.get(storage.data_ptr())

    def take_back(self, returned: Iterable[int], retired: Iterable[int], latest: int) -> None:
        """Take in which pieces the parent dropped; ``latest``: bytes of the batch that was sent last."""
        with self._lock:
            for id in (*returned, *retired):
                self._pieces[id].sent -= 1
            for id in retired:
                self._pieces[id].retired = True
            idle = [piece for piece in self._pieces.values() if piece.idle]
            left = sum(piece.capacity for piece in idle)
            for piece in sorted(idle, key=lambda one: not one.retired):
                if not piece.retired and left <= max(_IDLE * latest, _LEAST):
                    break
                left -= piece.capacity
                self._drop(piece)

    def _drop(self, piece: Piece) -> None:
        piece.known()
        del self._pieces[piece.id], self._at[piece.address]
        self._gone.append(piece.id)

    def gone(self) -> tuple[int, ...]:
        """Give the pieces that were given back to the system since the last call."""
        gone, self._gone = tuple(self._gone), []
        return gone


def _rounded(size: int) -> int:
    """Round up to an eighth of a power of two, so that batches of nearly the same size share pieces."""
    step = max(mmap.PAGESIZE, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


class _Lease(weakref.ref):  # type: ignore[type-arg]
    """A storage of the parent on a piece: says when it is gone."""

    __slots__ = ("id", "retired", "returned")
    __hash__ = object.__hash__  # not its memory's, which has none
    __eq__ = object.__eq__

    id: int
    retired: bool
    returned: deque[_Lease]


def _enter(lease: _Lease) -> None:
    """Note that the storage of ``lease`` is gone: in any thread, in the middle of anything, so without a lock."""
    lease.returned.append(lease)


class Leases:
    """The parent's side of one worker's shelf."""

    def __init__(self) -> None:
        self._memory: dict[int, mmap.mmap] = {}
        self._alive: set[_Lease] = set()
        self._returned: deque[_Lease] = deque()
        _all.add(self)

    def lend(self, id: int, size: int, descriptor: int | None) -> torch.UntypedStorage:
        """Give a storage on the first ``size`` bytes of piece ``id``; ``descriptor``: its memfd, the first time."""
        if descriptor is not None:
            self._memory[id] = mmap.mmap(descriptor, 0)
        memory = self._memory.get(id)
        if memory is None:
            raise OSError(errno.EMFILE, "memory of a worker was not received earlier, for want of open files")
        view = memoryview(memory)
        storage: torch.UntypedStorage = torch.frombuffer(
            view, dtype=torch.uint8, count=size
        ).untyped_storage()
        lease = _Lease(view, _enter)
        lease.id, lease.retired, lease.returned = id, False, self._returned
        self._alive.add(lease)
        return storage

    def returned(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Give the pieces whose storages are gone since the last call: those to use again, and those not to."""
        back: list[int] = []
        retired: list[int] = []
        while self._returned:
            lease = self._returned.popleft()
            self._alive.discard(lease)
            (retired if lease.retired else back).append(lease.id)
        return tuple(back), tuple(retired)

    def forget(self, ids: Iterable[int]) -> None:
        """Give up the mappings of pieces that the worker gave up."""
        for id in ids:
            self._memory.pop(id, None)

    def forget_all(self) -> None:
        """Give up all mappings: no more will be lent."""
        self._memory.clear()

    def retire(self) -> None:
        """Have none of what is lent out now ever used again: a child that is being forked has it too."""
        for lease in list(self._alive):
            lease.retired = True


_all: weakref.WeakSet[Leases] = weakref.WeakSet()


def _retire_all() -> None:
    for leases in list(_all):
        leases.retire()


os.register_at_fork(before=_retire_all)
