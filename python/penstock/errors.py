"""The errors of penstock, as one tree.

PenstockError
├── DataError            a sample is bad; ``on_error`` applies
│   ├── DecodeError      (also ValueError) its bytes are not what the format says
│   ├── TruncatedError   (also ValueError) fewer bytes than the catalog or the header promises
│   ├── ChecksumError    its bytes are not the bytes that were packed
│   └── MissingError     (also FileNotFoundError) its object is not in the store
├── TransformError       a callable of the user's raised; the original is the ``__cause__``
├── StoreError           (also OSError) the store as a whole cannot be used
│   └── DeniedError      (also PermissionError) it refuses: credentials or permissions
├── CatalogError         (also ValueError) the table of samples does not make sense
├── DeadlineError        (also TimeoutError) a wait ended without what was awaited
├── StateError           (also ValueError) a saved state does not fit this loader
└── ClosedError          (also RuntimeError) used after ``close()`` or in a forked child
"""

from __future__ import annotations


class PenstockError(Exception):
    """Base of everything that penstock raises on purpose."""


class DataError(PenstockError):
    """One sample is bad.

    ``id``: its stable id; ``key``: its name in the store; ``store``: where; ``field``: which of its
    fields; ``reason``: what is wrong with it. All but ``reason`` may be None where they are not known.
    """

    def __init__(
        self,
        reason: str,
        *,
        id: int | None = None,
        key: str | None = None,
        store: str | None = None,
        field: str | None = None,
    ) -> None:
        self.reason = reason
        self.id = id
        self.key = key
        self.store = store
        self.field = field
        super().__init__(self._text())

    def _text(self) -> str:
        place = f" in {self.store}" if self.store else ""
        name = f" ({self.key}{place})" if self.key else (f" ({place.strip()})" if place else "")
        sample = f"sample {self.id}" if self.id is not None else "a sample"
        field = f", field {self.field!r}" if self.field else ""
        return f"{sample}{name}{field}: {self.reason}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.reason, self.id, self.key, self.store, self.field))


def _rebuild(
    kind: type[DataError],
    reason: str,
    id: int | None,
    key: str | None,
    store: str | None,
    field: str | None,
) -> DataError:
    return kind(reason, id=id, key=key, store=store, field=field)


class DecodeError(DataError, ValueError):
    """The sample's bytes are not what its format says."""


class TruncatedError(DataError, ValueError):
    """The sample has fewer bytes than the catalog or its own header promises."""


class ChecksumError(DataError):
    """The sample's bytes are not the bytes that were packed."""


class MissingError(DataError, FileNotFoundError):
    """The object that should hold the sample is not in the store."""

    def __str__(self) -> str:
        return self._text()


class TransformError(PenstockError):
    """A callable of the user's raised; the original exception is the ``__cause__``."""


class StoreError(PenstockError, OSError):
    """The store as a whole cannot be used: unreachable, denied, not there."""


class DeniedError(StoreError, PermissionError):
    """The store refuses: no credentials, wrong ones, or no permission."""


class CatalogError(PenstockError, ValueError):
    """The table of samples does not make sense, or does not match its store."""


class DeadlineError(PenstockError, TimeoutError):
    """A wait ended without what was awaited; the text says what it was and who owes it."""


class StateError(PenstockError, ValueError):
    """A saved state does not fit this loader: another dataset, order or version."""


class ClosedError(PenstockError, RuntimeError):
    """The object was used after ``close()``, or in a child process forked after it was made."""
