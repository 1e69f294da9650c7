"""What the codec says is wrong with a file, as penstock's errors."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock import _native
from penstock.errors import ChecksumError, DataError, DecodeError, TruncatedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_KINDS: dict[str, type[DataError]] = {
    "truncated": TruncatedError,
    "checksum": ChecksumError,
    "decode": DecodeError,
}


@contextmanager
def translated(name: Callable[[int], str | None] = lambda _: None) -> Iterator[None]:
    """Raises the codec's complaints as DecodeError, TruncatedError, ChecksumError or, for bad requests, ValueError.

    ``name`` says what the file of that number is called.
    """
    try:
        yield
    except _native.CodecFailure as failure:
        kind, text, number = failure.args
        if kind == "request":
            raise ValueError(text) from None
        raise _KINDS[kind](text, key=name(number)) from None
