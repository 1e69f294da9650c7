"""A catalog that somebody made by hand: an error with a name, and never another file, a crash or a sample twice."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import CatalogError, DataError
from penstock.pack import pack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    for number in range(6):
        (tmp_path / "source").mkdir(exist_ok=True)
        (tmp_path / "source" / f"{number}.txt").write_bytes(b"%d" % number)
    (tmp_path / "secret").write_bytes(b"secret" * 1000)
    pack(tmp_path / "source", tmp_path / "packed", quiet=True)
    return tmp_path / "packed"


def forge(
    packed: Path, about: dict[str, Any] | str, change: Callable[[pa.Table], pa.Table] | None = None
) -> None:
    """Writes the catalog anew with another footer and table, and the right checksum of it."""
    path = packed / "catalog.parquet"
    table = pq.read_table(path)
    old = json.loads(table.schema.metadata[b"penstock"])
    if change is not None:
        table = change(table)
    text = (about if isinstance(about, str) else json.dumps({**old, **about})).encode()
    digest = hashlib.sha256(text).hexdigest().encode()
    pq.write_table(
        table.replace_schema_metadata({b"penstock": text, b"penstock.check": digest}),
        path,
        write_page_checksum=True,
    )


def with_column(name: str, values: Any, kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        column = pa.array(values, kind)
        at = table.column_names.index(name) if name in table.column_names else -1
        return table.set_column(at, name, column) if at >= 0 else table.add_column(0, name, column)

    return change


@pytest.mark.parametrize(
    "about",
    [
        "[" * 100_000,
        "[]",
        {"objects": "shard-000000.tar"},
        {"objects": [7]},
        {"objects": None},
        {"objects": []},
        {"objects": ["../secret"], "sizes": [6000]},
        {"objects": ["/etc/passwd"], "sizes": [1]},
        {"sizes": []},
        {"sizes": [-1]},
        {"sizes": ["10240"]},
        {"sizes": [2**70]},
        {"rows": 10**15},
        {"rows": -1},
        {"stored": [{"name": 3, "kind": "bytes", "dtype": None, "shape": None}]},
        {"stored": [{"name": "text", "kind": "code", "dtype": None, "shape": None}]},
        {"stored": [{"name": "text", "kind": "array", "dtype": "O", "shape": [1]}]},
        {"stored": [{"name": "text", "kind": "array", "dtype": "int8", "shape": [-1]}]},
        {"stored": [{"name": "text", "kind": "array", "dtype": "int8", "shape": "1"}]},
        {"batch": [["text"]]},
        {"batch": ["nothing"]},
        {"classes": 5},
        {"class_column": ["label"]},
        {"columns": [["key"]]},
    ],
)
def test_a_footer_that_lies_is_a_catalog_error(packed: Path, about: dict[str, Any] | str) -> None:
    forge(packed, about)
    with pytest.raises(CatalogError), penstock.Loader(penstock.open(packed), 2) as loader:
        list(loader)


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("@text.offset", [2**64 - 1] * 6, pa.uint64()),
        ("@text.offset", [2**63] * 6, pa.uint64()),
        ("@text.offset", [10**12] * 6, pa.uint64()),
        ("@text.length", [2**64 - 2] * 6, pa.uint64()),
        ("@text.length", [2**63] * 6, pa.uint64()),
        ("@text.length", [10**11] * 6, pa.uint64()),
        ("@text.object", [2**32 - 1] * 6, pa.uint32()),
        ("@text.object", [1] * 6, pa.uint32()),
        ("@text.format", [200] * 6, pa.uint8()),
        ("@text.crc32c", [0] * 6, pa.uint32()),
        ("id", [0, 1, 2, 3, 4, 4], pa.uint64()),
    ],
)
def test_addresses_that_lie_are_errors_with_a_name(
    packed: Path, name: str, values: Any, kind: pa.DataType
) -> None:
    about = {}
    if name == "id":
        table = pq.read_table(packed / "catalog.parquet")
        about = {
            "columns": [["id", "uint64"], *([n, str(table.schema.field(n).type)] for n in table.column_names)]
        }
    forge(packed, about, with_column(name, values, kind))
    with pytest.raises((CatalogError, DataError)), penstock.Loader(penstock.open(packed), 2) as loader:
        list(loader)
    with pytest.raises((CatalogError, DataError)):
        _ = penstock.open(packed)[5]
