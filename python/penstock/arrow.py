"""Between NumPy, lists and Arrow, over the buffers.

pyarrow's own ``pa.array(list)`` and ``to_numpy()`` import pandas wherever it is installed, which costs a
process more than opening a catalog does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def strings(values: Sequence[str]) -> Any:
    """Return a pyarrow string array, or a large_string array above 2 GiB.

    UnicodeEncodeError where a string is not UTF-8.
    """
    import pyarrow as pa

    encoded = [value.encode() for value in values]
    ends = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=ends[1:])
    data = pa.py_buffer(b"".join(encoded))
    if ends[-1] >= 2**31:
        return pa.LargeStringArray.from_buffers(len(encoded), pa.py_buffer(ends), data)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends.astype(np.int32)), data)


def to_arrow(values: np.ndarray) -> Any:
    """Return a NumPy array of numbers as a pyarrow array over the same memory; bool is copied."""
    import pyarrow as pa

    values = np.ascontiguousarray(values)
    if values.dtype == np.bool_:
        bits = pa.py_buffer(np.packbits(values, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])
    kind = {"i": "int", "u": "uint", "f": "float"}[values.dtype.kind]
    arrow_type = getattr(pa, f"{kind}{8 * values.dtype.itemsize}")()
    return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(values)])


def is_number(arrow_type: Any) -> bool:
    """Whether NumPy has the type as a number or a bool."""
    import pyarrow as pa

    return bool(
        pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type) or pa.types.is_boolean(arrow_type)
    )


def to_numpy(array: Any) -> np.ndarray:
    """Return a pyarrow array as NumPy: numbers over the same memory, gaps as NaN or None, text as objects."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if is_number(kind) and not array.null_count:
        if pa.types.is_boolean(kind):
            return to_numpy(pc.cast(array, pa.uint8())).view(np.bool_)
        dtype = np.dtype(_FLOATS.get(str(kind), str(kind)))
        if not len(array):
            return np.empty(0, dtype)
        return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        holes = to_numpy(pc.is_null(array))
        filled = to_numpy(
            pc.cast(_filled(array), pa.float64() if pa.types.is_integer(kind) else kind, safe=False)
        ).copy()
        filled[holes] = np.nan
        return filled
    if pa.types.is_temporal(kind):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    values = np.empty(len(array), object)
    values[:] = array.to_pylist()
    return values


def _filled(array: Any) -> Any:
    """Return the array with whatever lies under its gaps."""
    import pyarrow as pa

    return pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)


def one_array(chunked: Any) -> Any:
    """Return a ChunkedArray as one Array, text of more than 2 GiB as large_string."""
    import pyarrow as pa

    if chunked.num_chunks == 1:
        return chunked.chunk(0)
    array = chunked.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(chunked.cast(pa.large_string()).chunks)
    return array
