"""The end of a pack: the indexes of all shards become the catalog, and ``pack.json`` says how it came about."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.catalog import NO_OBJECT, Field, write_catalog
from penstock.errors import CatalogError
from penstock.pack.names import shard_name
from penstock.pack.shard import PARTS, ShardIndex

if TYPE_CHECKING:
    from penstock.pack.far_work import FarWork
    from penstock.pack.plan import Plan
    from penstock.pack.work import WorkFolder


def write_finish(plan: Plan, work: WorkFolder | FarWork, indexes: list[ShardIndex]) -> int:
    """Write ``pack.json``, then the catalog, whose appearance is what completes the pack; gives the samples in it."""
    good = np.concatenate([index.good for index in indexes])
    samples = int(good.sum())
    if samples == 0:
        raise CatalogError(f"every one of the {len(good):,} samples is bad: {indexes[0].skipped[0]}")
    catalog = plan.source.catalog.take(plan.rows[good])
    header = catalog.header
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    if samples != len(good):
        columns["id"] = pa.array(np.flatnonzero(good).astype(np.uint64))
    of_user = catalog.to_arrow(["key", *header.columns])
    columns.update(zip(of_user.column_names, of_user.columns, strict=True))
    shard_of = np.repeat(np.arange(len(indexes), dtype=np.uint32), [len(index.good) for index in indexes])[
        good
    ]
    for each in plan.fields:
        columns.update(_addresses(each.name, each.packed, shard_of, indexes))
    works = {each.name: each for each in plan.fields}
    stored = []
    for field in header.stored:
        work_of = works[field.name]
        block = work_of.block
        dtype, shape = (block.dtype.name, block.shape) if block is not None else (None, None)
        stored.append(Field(work_of.packed, work_of.kind, "stored", dtype, shape))
    shards = [(shard_name(number), index) for number, index in enumerate(indexes)]
    summary = {
        **plan.content_identity(),
        "samples": samples,
        "shards": [
            {"name": name, "bytes": index.bytes, "samples": int(index.good.sum())} for name, index in shards
        ],
        "skipped": [*plan.skipped, *(text for index in indexes for text in index.skipped)],
    }
    text = json.dumps(summary, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    work.write_summary(text.encode())
    write_catalog(
        work.catalog_path(),
        pa.table(columns),
        objects=[name for name, _ in shards],
        sizes=[index.bytes for _, index in shards],
        stored=stored,
        batch=[works[name].packed if name in works else name for name in header.batch],
        classes=header.classes,
        class_column=header.class_column,
    )
    work.keep_catalog()
    return samples


def _addresses(
    name: str, packed: str, shard_of: npt.NDArray[np.uint32], indexes: list[ShardIndex]
) -> dict[str, pa.Array]:
    stored = np.concatenate([index.stored[name][index.good] for index in indexes])
    objects = np.where(stored["offset"] == 0, np.uint32(NO_OBJECT), shard_of)
    columns = {f"@{packed}.object": pa.array(objects)}
    columns.update({f"@{packed}.{part}": pa.array(np.ascontiguousarray(stored[part])) for part in PARTS})
    return columns
