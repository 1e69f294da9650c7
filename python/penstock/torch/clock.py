"""How long a thread was busy: what lies beyond it, of the time that passed, it spent waiting."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from time import thread_time

_LONGEST = 64
"""Bytes of the kernel's line: three numbers."""


class BusyClock:
    """Seconds in which the calling thread ran, or could have run had a core been free.

    The second part matters where there are more workers than cores: items that compute then take twice their
    CPU time and still do not wait for anything that more fetchers would bring nearer. The kernel counts it in
    ``/proc/thread-self/schedstat``; where that is missing only the running counts.
    """

    def __init__(self) -> None:
        self._thread = -1
        self._file = -1
        self._closer: weakref.finalize[..., BusyClock] | None = None

    def now(self) -> float:
        """Read it; only differences between two readings of one thread mean something."""
        thread = threading.get_native_id()
        if thread != self._thread:
            self._open(thread)
        if self._file < 0:
            return thread_time()
        return thread_time() + int(os.pread(self._file, _LONGEST, 0).split()[1]) / 1e9

    def close(self) -> None:
        """Let the file go."""
        if self._closer is not None:
            self._closer()
        self._thread = self._file = -1

    def _open(self, thread: int) -> None:
        self.close()
        self._thread = thread
        with contextlib.suppress(OSError, IndexError, ValueError):
            file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            self._closer = weakref.finalize(self, os.close, file)
            int(os.pread(file, _LONGEST, 0).split()[1])
            self._file = file
