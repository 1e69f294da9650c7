"""The identity of a table: a digest of all that it says, the same wherever and in whatever file it lies."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.arrow import to_numpy
from penstock.table import Ramp, object_array

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.table import Column, Header


def identity_of(header: Header, columns: Mapping[str, Column], objects: Any) -> str:
    """Return the digest of all that a table says: the same wherever and in whatever file it lies."""
    digest = hashlib.sha256(b"penstock table 1\n")
    about = [
        header.rows,
        [[f.name, f.kind, f.dtype, f.shape] for f in header.stored],
        header.batch,
        header.classes,
        header.class_column,
    ]
    digest.update(json.dumps(about, ensure_ascii=False).encode())
    keys = object_array(objects) if isinstance(objects, list) else objects
    _digest_column(digest, "objects", keys)
    for name in sorted(columns):
        _digest_column(digest, name, columns[name])
    return digest.hexdigest()[:32]


def _digest_column(digest: Any, name: str, column: Column) -> None:
    if isinstance(column, Ramp):
        digest.update(f"\n{name} {column.dtype.name} {column.start} + {column.step}\n".encode())
        return
    if isinstance(column, np.ndarray):
        digest.update(f"\n{name} {column.dtype.str} {len(column)}\n".encode())
        digest.update(np.ascontiguousarray(column).data)
        return
    import pyarrow as pa
    import pyarrow.compute as pc

    digest.update(f"\n{name} {column.type} {len(column)}\n".encode())
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        lengths = to_numpy(pc.binary_length(column)).astype("<f8")  # a gap is NaN
        digest.update(np.ascontiguousarray(lengths).data)
        text = pc.fill_null(column, "") if column.null_count else column
        _, offsets, data = text.buffers()
        if data is not None and len(text):
            ends = np.frombuffer(offsets, "<i8" if pa.types.is_large_string(text.type) else "<i4")
            first, last = int(ends[text.offset]), int(ends[text.offset + len(text)])
            digest.update(memoryview(data)[first:last])
        return
    for value in column.to_pylist():
        digest.update(repr(value).encode())
        digest.update(b"\n")
