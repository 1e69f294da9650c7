"""What shards and their members are called."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.formats import EXTENSIONS, Format, split_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")

CATALOG = "catalog.parquet"
SUMMARY = "pack.json"
"""Beside the catalog: which settings and which source made these shards, and what was left out."""
WORK_FOLDER = ".pack"
"""Below DEST while it is being packed: plan, lock, indexes of finished shards, files in the making."""


def shard_name(number: int) -> str:
    """``shard-000007.tar``."""
    return f"shard-{number:06d}.tar"


def safe_names(fields: Sequence[str]) -> dict[str, str]:
    """A name for each field that can stand in a file name, no two the same."""
    names: dict[str, str] = {}
    for field in fields:
        base = name = _UNSAFE.sub("_", field) or "field"
        count = 1
        while name in names.values():
            count += 1
            name = f"{base}-{count}"
        names[field] = name
    return names


def member_suffix(name: str, format: Format) -> str:
    """What follows the id in a member's name, so that ``split_name`` reads field and format from it again.

    >>> member_suffix("image", Format.JPEG), member_suffix("mask", Format.PNG)
    ('jpg', 'mask.png')
    """
    extension = EXTENSIONS[format][0]
    for suffix in (extension, name, f"{name}.{extension}"):
        parts = split_name(f"0.{suffix}")
        if parts is not None and parts.field == name and parts.format is format:
            return suffix
    return f"{name}.{extension}"
