"""A dataset over any store, made of raw rows: what the suites load through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.catalog import Catalog
from penstock.dataset import Dataset
from penstock.formats import Format
from penstock.loader import Loader
from penstock.table import Field, Header, Table

if TYPE_CHECKING:
    from collections.abc import Mapping


def dataset_over(store: Any, rows: Mapping[str, tuple[int, int]]) -> Dataset:
    """A sample a key, whose field ``x`` is the bytes ``(offset, length)`` of that object."""
    count = len(rows)
    length = next(iter(rows.values()))[1]
    field = Field("x", "array", "stored", "uint8", (length,))
    header = Header(rows=count, identity="", stored=(field,), batch=("x",))
    columns = {
        "@x.object": np.arange(count, dtype=np.uint32),
        "@x.offset": np.array([offset for offset, _ in rows.values()], np.uint64),
        "@x.length": np.array([length for _, length in rows.values()], np.uint64),
        "@x.format": np.full(count, int(Format.RAW), np.uint8),
    }
    return Dataset(Catalog(Table.of(header, columns, list(rows))), store)


def loader_over(store: Any, rows: Mapping[str, tuple[int, int]], **options: Any) -> Loader:
    """A loader of small batches over :func:`dataset_over`."""
    return Loader(
        dataset_over(store, rows), **{"batch_size": 4, "arrays": "numpy", "timeout": 20.0, **options}
    )
