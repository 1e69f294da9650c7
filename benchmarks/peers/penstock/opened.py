"""The samples behind the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import penstock
from penstock.sources.listing import StoreSpec


def opened(place: dict[str, Any], source: str) -> penstock.Dataset:
    """The samples of a bucket, by S3.

    The catalog is made from the copy on the disk, which has the same names and sizes: listing is not what is measured, and
    nobody else lists either.
    """
    near = penstock.open(Path(place["local"]).parent / source)
    return penstock.Dataset(near.catalog, StoreSpec(f"s3://{source}"))
