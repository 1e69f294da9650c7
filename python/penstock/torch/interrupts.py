"""Ctrl-C where it cannot lose anything."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType


class Held:
    """Holds SIGINT back while the block runs, and delivers it at the block's end or at :meth:`check`.

    Between a message that was read from a pipe and the place where it is kept, an exception out of nowhere would lose the
    message, and whoever goes on after the interrupt would wait for it until the deadline. Only the main thread gets
    signals; elsewhere, and where SIGINT has no handler of Python's, this does nothing.
    """

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._noted: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = (number, frame)

    def check(self) -> None:
        """Delivers what was held back: to be called where nothing can be lost."""
        if self._noted is not None and self._handler is not None:
            noted, self._noted = self._noted, None
            self._handler(*noted)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            self.check()
