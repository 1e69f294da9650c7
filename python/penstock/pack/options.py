"""What a pack can be told, checked when it is said."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Bytes from ``"256MiB"``, ``"1.5 GB"``, ``"4096"``; ``KiB`` is 1024 and ``KB`` is 1000 bytes.

    Raises ValueError with what would be right.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no size: write 256MiB, 1.5GB or a number of bytes")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** _POWER[match[2].lower()])


class PackFormat(Enum):
    """In which form samples are stored."""

    KEEP = "keep"
    """As they are, one tar member a field; rows of a big array become .npy members."""

    RAW = "raw"
    """Arrays of one shape and dtype lose their npy header and stand as one block of rows a shard."""

    PSI = "psi"
    """Images, masks and arrays become PSI, losslessly; what PSI cannot hold stays as it is."""


class OnError(Enum):
    """What a bad source sample does to the pack."""

    RAISE = "raise"
    SKIP = "skip"


@dataclass(frozen=True)
class PackOptions:
    """All that ``pack`` can be told.

    ``shard_size``: bytes after which a shard is closed; a sample that is larger has a shard of its own.
    ``threads``: shards written at the same time; None means the CPUs that this process may use, at most 16.
    ``where``: keep only these samples, as ``Dataset.where`` takes it.
    ``shuffle``: a seed that the packed order is drawn from; None keeps the order of the source.
    ``level``: of the PSI encoder; ``lossy``: it takes JPEG and lossy WebP as well.
    ``on_error``: ``"skip"`` leaves bad samples out and counts them.
    ``deadline``: seconds without any progress after which the pack gives up and says what it waited for.
    """

    shard_size: int = 256 << 20
    threads: int | None = None
    where: str | None = None
    shuffle: int | None = None
    format: PackFormat = PackFormat.KEEP
    level: str = "dense"
    lossy: bool = False
    on_error: OnError = OnError.RAISE
    deadline: float = 300.0

    def __post_init__(self) -> None:
        if self.shard_size < 1:
            raise ValueError(f"shard_size is {self.shard_size}: it must be at least 1 byte")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads is {self.threads}: it must be at least 1")
        if self.shuffle is not None and not 0 <= self.shuffle < 2**64:
            raise ValueError(f"shuffle is {self.shuffle}: a seed is from 0 to 2**64 - 1")
        if not self.deadline > 0:
            raise ValueError(f"deadline is {self.deadline}: it must be more than 0 seconds")

    def worker_count(self) -> int:
        """Threads to start when there is work for all of them."""
        return self.threads or min(16, len(os.sched_getaffinity(0)))

    def identity(self) -> dict[str, Any]:
        """The settings that decide which bytes are written, in a form for JSON.

        ``on_error`` is not among them: a pack that has met a bad sample may be gone on with by skipping it.
        """
        return {
            "shard_size": self.shard_size,
            "where": self.where,
            "shuffle": self.shuffle,
            "format": self.format.value,
            "level": self.level if self.format is PackFormat.PSI else None,
            **({"lossy": True} if self.lossy else {}),
        }
