"""What goes between a DataLoader and its workers: whole messages on a socket pair, memory by descriptor.

A message is one packet, so that it is there or not there, never half of it, whenever a worker dies. It holds
a pickle; the storages of CPU tensors go beside it as shared memory, small ones in it. What a worker sends lies
on its `Shelf`: built there by torch's own collate, else copied there; its descriptor is sent once, after that only
its name. A pickle too long for a packet goes as a memfd, so that a packet always
fits and neither side waits for the other in the middle of one. Both ends of the pair are ours by
inheritance: nothing is ever read from anyone else.
"""

from __future__ import annotations

import array
import errno
import io
import mmap
import os
import pickle
import select
import socket
import struct
import threading
from multiprocessing.reduction import ForkingPickler
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import reduce_storage

from penstock.torch.shelf import Leases

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.torch.shelf import Piece, Shelf

_INLINE = 16 << 10
"""Longest pickle that goes in the packet itself, in bytes."""

_SMALL = 4 << 10
"""Storages up to this many bytes are copied into the pickle: a descriptor costs more."""

_DESCRIPTORS = 60
"""Storages that go by descriptor in one message; the kernel takes 253 and a process has 1,024 open files."""

_HEAD = struct.Struct("<BQ")
_here = threading.local()


class _Pickler(ForkingPickler):
    """Pickles tensors as torch's does, but leaves their storages aside in ``descriptors``."""

    def __init__(self, file: io.BytesIO, shelf: Shelf | None) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.descriptors: list[int] = []
        self.pieces: list[Piece] = []
        self.bytes = 0
        self._shelf = shelf
        self._known: dict[int, Any] = {}
        self.keep: list[Any] = []

    def reducer_override(self, obj: Any) -> Any:
        """Take storages; the rest is left to the reducers that torch and others registered."""
        # Not in the dispatch table: a pickler that refers to itself keeps all it has pickled until it is collected.
        return self._storage(obj) if type(obj) is torch.UntypedStorage else NotImplemented

    def _storage(self, storage: Any) -> Any:
        if storage.device.type != "cpu" or storage.nbytes() == 0:
            return reduce_storage(storage)
        size = storage.nbytes()
        self.bytes += size
        if storage._cdata not in self._known:
            self._known[storage._cdata] = self._reduced(storage, size)
        return self._known[storage._cdata]

    def _reduced(self, storage: Any, size: int) -> Any:
        shelf = self._shelf
        piece = shelf.piece_of(storage) if shelf is not None else None
        full = len(self.descriptors) >= _DESCRIPTORS
        if piece is not None and (piece.descriptor < 0 or not full):
            return self._on_piece(piece, size)
        if size <= _SMALL or full:
            return _from_bytes, (_bytes_of(storage).numpy().tobytes(),)
        room = shelf.room(size) if shelf is not None and not storage.is_shared() else None
        if shelf is not None and room is not None:
            room.copy_(_bytes_of(storage))
            self.keep.append(room)
            piece = shelf.piece_of(room.untyped_storage())
            assert piece is not None  # noqa: S101 - it was put there
            return self._on_piece(piece, size)
        descriptor, _ = storage._share_fd_cpu_()
        self.descriptors.append(descriptor)
        return _from_descriptor, (len(self.descriptors) - 1, size)

    def _on_piece(self, piece: Piece, size: int) -> Any:
        index = None
        if piece.descriptor >= 0:
            index = len(self.descriptors)
            self.descriptors.append(piece.descriptor)
        self.pieces.append(piece)
        return _from_piece, (piece.id, size, index)


def _bytes_of(storage: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def _from_bytes(data: bytes) -> Any:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).untyped_storage()


def _from_descriptor(index: int, size: int) -> Any:
    known: dict[int, Any] = _here.storages
    if index not in known:
        known[index] = torch.UntypedStorage._new_shared_fd_cpu(_here.descriptors[index], size)
    return known[index]


def _from_piece(id: int, size: int, index: int | None) -> Any:
    known: dict[Any, Any] = _here.storages
    if (id,) not in known:
        descriptor = None if index is None else _here.descriptors[index]
        known[id,] = _here.leases.lend(id, size, descriptor)
    return known[id,]


class Parcel:
    """A message ready to be sent. ``bytes``: what it holds, storages included."""

    __slots__ = ("_descriptors", "_keep", "_own", "_packet", "_pieces", "bytes")

    def __init__(self, message: Any, shelf: Shelf | None = None) -> None:
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, shelf)
        pickler.dump(message)
        payload = buffer.getbuffer()
        # The descriptors are its storages', and pieces of the shelf are idle once nobody holds them.
        self._keep: Any = (message, pickler.keep)
        self._own: int | None = None
        self._descriptors = pickler.descriptors
        self._pieces = pickler.pieces
        self.bytes = len(payload) + pickler.bytes
        if len(payload) <= _INLINE:
            self._packet = _HEAD.pack(0, len(payload)) + payload
            return
        self._own = os.memfd_create("penstock-parcel", os.MFD_CLOEXEC)
        _write_all(self._own, payload)
        self._packet = _HEAD.pack(1, len(payload))
        self._descriptors = [self._own, *self._descriptors]

    def post(self, sock: socket.socket) -> bool:
        """Send it without waiting; False if the other side has to read first."""
        try:
            if self._descriptors:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", self._descriptors))
                sock.sendmsg([self._packet], [rights], socket.MSG_DONTWAIT)
            else:
                sock.send(self._packet, socket.MSG_DONTWAIT)
        except OSError as error:
            # ETOOMANYREFS: the kernel carries as many descriptors as this user may have in flight
            if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS, errno.ETOOMANYREFS):
                return False
            raise
        for piece in self._pieces:
            piece.sent += 1
            piece.known()
        self.drop()
        return True

    def drop(self) -> None:
        """Let go of what it holds."""
        self._keep = None
        if self._own is not None:
            os.close(self._own)
            self._own = None

    def __del__(self) -> None:
        if getattr(self, "_own", None) is not None:
            self.drop()


def _write_all(descriptor: int, payload: memoryview) -> None:
    while payload:
        payload = payload[os.write(descriptor, payload) :]


class Closed(Exception):
    """The other side of a channel is gone."""


class Channel:
    """One end of the pair: the parent's, with ``leases``, or a worker's, with a ``shelf``."""

    def __init__(self, sock: socket.socket, shelf: Shelf | None = None) -> None:
        self.sock = sock
        self.shelf = shelf
        self.leases = Leases()
        self.sent = 0
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, 4 << 20)

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Make both ends: the one to keep, and the socket of the other for a worker."""
        mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(mine), other

    def fileno(self) -> int:
        """Give the descriptor to poll."""
        return self.sock.fileno()

    def receive(self) -> tuple[Any, int] | None:
        """Give the next message and its bytes; None: there is none now. Closed: the other side is gone."""
        try:
            packet, ancillary, flags, _ = self.sock.recvmsg(
                _INLINE + _HEAD.size,
                socket.CMSG_SPACE(4 * (_DESCRIPTORS + 1)),
                socket.MSG_DONTWAIT | _CLOEXEC,
            )
        except (BlockingIOError, InterruptedError):
            return None
        except ConnectionError as error:
            raise Closed from error
        descriptors: list[int] = []
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors += array.array("i", data[: len(data) - len(data) % 4])
        try:
            if not packet:
                raise Closed
            if flags & socket.MSG_CTRUNC:
                raise OSError(
                    errno.EMFILE,
                    "the tensors of a batch could not be received: this process has too many open files; "
                    "raise the limit (ulimit -n) or keep fewer batches",
                )
            return _open(packet, descriptors, self.leases)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def send(self, message: Any, alive: Callable[[], bool]) -> None:
        """Send ``message``, waiting while the other side is ``alive`` but does not read; else Closed."""
        parcel = Parcel(message, self.shelf)
        self.sent = parcel.bytes
        try:
            while not parcel.post(self.sock):
                poll = select.poll()
                poll.register(self.sock, select.POLLOUT)
                start = monotonic()
                if poll.poll(_LOOK_S * 1000) and monotonic() - start < 0.001:
                    threading.Event().wait(
                        0.01
                    )  # room for the packet but not for its descriptors: others must take theirs
                if not alive():
                    raise Closed
        except ConnectionError as error:
            raise Closed from error
        finally:
            parcel.drop()

    def close(self) -> None:
        """Close this end; memory stays for as long as there is a tensor on it."""
        self.sock.close()
        self.leases.forget_all()


_LOOK_S = 5
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def _open(packet: bytes, descriptors: list[int], leases: Leases) -> tuple[Any, int]:
    apart, length = _HEAD.unpack_from(packet)
    _here.storages, _here.leases = {}, leases
    try:
        if not apart:
            _here.descriptors = descriptors
            message = pickle.loads(memoryview(packet)[_HEAD.size :])  # noqa: S301 - from our own worker
        else:
            _here.descriptors = descriptors[1:]
            with mmap.mmap(descriptors[0], length, prot=mmap.PROT_READ) as payload:
                message = pickle.loads(payload)  # noqa: S301 - from our own worker
        return message, length + sum(storage.nbytes() for storage in _here.storages.values())
    finally:
        _here.storages = _here.descriptors = _here.leases = None
