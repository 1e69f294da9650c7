"""Ctrl-C where it cannot lose anything.

The interpreter looks for signals when a call of C code returns, when a function begins and when a loop turns; not
between two stores. So there are two ways to lose nothing: to hold the signal back over what has to happen
together (`Held`), and to make what counts a plain store at the very end (`Epoch.__next__`).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the functions of `signal`, without a microsecond of enums around each
import threading
from signal import SIGINT
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

_SIGINT = int(SIGINT)


class Held:
    """Holds SIGINT back while the block runs, and delivers it at the block's end or at :meth:`check`.

    Between a message that was read from a pipe and the place where it is kept, an exception out of nowhere would lose the
    message, and whoever goes on after the interrupt would wait for it until the deadline. A sampler's generator that is
    interrupted is over, and the epoch with it. A second Ctrl-C is not held back: whoever insists is heard. Only the main
    thread gets signals; elsewhere, and where SIGINT has no handler of Python's, this does nothing.
    """

    __slots__ = ("_handler", "_noted")

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._noted: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> Self:
        if threading.main_thread().ident == threading.get_ident():
            handler = _signal.getsignal(_SIGINT)
            if callable(handler):
                self._handler = handler
                _signal.signal(_SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        first, self._noted = self._noted is None, (number, frame)
        if not first:
            self.check()

    def check(self) -> None:
        """Delivers what was held back: to be called where nothing can be lost."""
        if self._noted is not None and self._handler is not None:
            noted, self._noted = self._noted, None
            self._handler(*noted)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handler is not None:
            _signal.signal(_SIGINT, self._handler)
            self.check()
