"""Writes one tar file through one buffer: samples are read straight into it, and it leaves in large writes."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.pack import tar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUFFER_BYTES = 4 << 20
SYNC_BYTES = 64 << 20
"""After so many bytes they are brought to the disk: no fsync at the end that takes longer than Ctrl-C may."""


class WriteError(Exception):
    """The file cannot be written; kept apart from errors of reading, which are the samples'."""

    def __init__(self, path: Path, error: OSError) -> None:
        self.path = path
        self.error = error
        super().__init__(f"{path}: {error.strerror}")


class TarWriter:
    """A tar file being written.

    A member is ``begin(name, size)``, then views from ``room(size)`` filled and acknowledged with ``filled(n)`` until
    ``size`` bytes are there, then ``end(size)``. ``mark()`` before a sample and ``rewind(mark)`` after a failure
    take it out again, flushed or not. Nothing is allocated per member.
    """

    def __init__(self, path: Path, buffer: memoryview) -> None:
        self.path = path
        self._buffer = buffer
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._flushed = 0
        self._used = 0
        self._synced = 0

    @property
    def offset(self) -> int:
        """Where in the file the next byte goes."""
        return self._flushed + self._used

    def begin(self, name: bytes, size: int) -> int:
        """Write a member's header; gives the offset of its payload."""
        self._append(tar.header(name, size))
        return self.offset

    def end(self, size: int) -> None:
        """Pad a member of ``size`` bytes to whole blocks."""
        pad = tar.padding(size)
        if pad:
            self._append(bytes(pad))

    def whole(self, size: int) -> memoryview | None:
        """``size`` bytes of the buffer in one piece, or None if the buffer is smaller than that."""
        if size > len(self._buffer):
            return None
        if self._used + size > len(self._buffer):
            self._flush()
        return self._buffer[self._used : self._used + size]

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Views that together hold ``size`` bytes; each must be full before the next is asked for."""
        left = size
        while left:
            if self._used == len(self._buffer):
                self._flush()
            view = self._buffer[self._used : self._used + left]
            yield view
            self._used += len(view)
            left -= len(view)

    def filled(self, count: int) -> None:
        """The first ``count`` bytes of what ``whole`` gave are there."""
        self._used += count

    def append(self, data: bytes | memoryview) -> None:
        """Copy ``data`` into the file."""
        self._append(data)

    def mark(self) -> int:
        """A place to come back to."""
        return self.offset

    def rewind(self, mark: int) -> None:
        """Forget everything after ``mark``."""
        if mark >= self._flushed:
            self._used = mark - self._flushed
        else:
            os.ftruncate(self._fd, mark)
            os.lseek(self._fd, mark, os.SEEK_SET)
            self._flushed, self._used = mark, 0

    def finish(self) -> int:
        """End the tar, bring it to the disk, close it; gives the bytes of the file."""
        self._append(tar.END)
        self._flush()
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise WriteError(self.path, error) from error
        os.close(self._fd)
        self._fd = -1
        return self._flushed

    def abandon(self) -> None:
        """Close and remove the file; for every way out that is not ``finish``."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with suppress(FileNotFoundError):
            self.path.unlink()

    def _append(self, data: bytes | memoryview) -> None:
        at, size = 0, len(data)
        while at < size:
            if self._used == len(self._buffer):
                self._flush()
            count = min(size - at, len(self._buffer) - self._used)
            self._buffer[self._used : self._used + count] = data[at : at + count]
            self._used += count
            at += count

    def _flush(self) -> None:
        view = self._buffer[: self._used]
        try:
            while view:
                count = os.write(self._fd, view)
                view = view[count:]
                self._flushed += count
            if self._flushed - self._synced >= SYNC_BYTES:
                os.fdatasync(self._fd)
                self._synced = self._flushed
        except OSError as error:
            raise WriteError(self.path, error) from error
        self._used = 0
