"""The contract of a store that is written in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable


@runtime_checkable
class Store(Protocol):
    """Where bytes lie: three methods, called from several threads at once.

    Errors are Python's own: ``FileNotFoundError`` for a key that is not there, ``EOFError`` for a range that goes past
    the end, ``PermissionError``, ``ConnectionError``, ``TimeoutError`` when ``timeout`` seconds have passed. Each call ends
    by its timeout, one way or the other.
    """

    def read(self, key: str, offset: int, length: int, timeout: float) -> bytes:
        """Exactly ``length`` bytes of ``key`` from ``offset`` on."""
        ...

    def size(self, key: str, timeout: float) -> int:
        """Size of ``key`` in bytes."""
        ...

    def list(self, prefix: str, timeout: float) -> Iterable[tuple[str, int, str]]:
        """``(key, size, version)`` of every object below ``prefix``, sorted by key."""
        ...
