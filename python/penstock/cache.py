"""A cache of far samples on a local disk."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from penstock.units import parse_bytes


@dataclass(frozen=True)
class Cache:
    """Keeps the bytes of far samples in the folder ``path``, at most ``size`` of them (``"64GiB"`` or a number).

    Compressed as they came, and checked at each read. It fills up and then stays as it is: every epoch reads each sample
    once, and no cache of that size saves more reads. Samples of other data sets, which this run does not use, make room
    first. Several processes may share a folder, and a kill costs no more than the sample that was being written. The folder
    belongs to penstock; nothing outside it is touched.

    >>> Cache("/scratch/penstock", "64GiB").bytes
    68719476736
    """

    path: str | os.PathLike[str]
    size: int | str

    @property
    def bytes(self) -> int:
        """``size`` in bytes."""
        return parse_bytes(self.size)

    @classmethod
    def of(cls, cache: Cache | int | str) -> Cache:
        """A cache as given, or one of that size in ``samples`` of the cache folder (``$PENSTOCK_CACHE`` or the user's)."""
        if isinstance(cache, Cache):
            return cache
        from penstock.sources.cache import cache_folder

        return cls(cache_folder() / "samples", cache)

    def native(self, store: str, fingerprint: str) -> tuple[str, str, int]:
        """What the engine needs: folder, the data set's part of it, bytes."""
        space = hashlib.sha256(f"{store}\n{fingerprint}".encode()).hexdigest()[:16]
        return os.fspath(Path(self.path).expanduser()), space, self.bytes
