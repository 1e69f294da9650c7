"""Writes one shard: blocks of raw rows first, then a tar member for each other field of each sample."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import CatalogError, DataError
from penstock.pack import tar
from penstock.pack.convert import Fetcher, ImageEncoder, Item, RowCopier, RowType, write_member
from penstock.pack.names import member_suffix
from penstock.pack.writer import TarWriter

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.formats import Format, Kind

PARTS = ("offset", "length", "crc32c", "format")
STORED = np.dtype([("offset", "u8"), ("length", "u8"), ("crc32c", "u4"), ("format", "u1")])
"""Where a payload stands in its shard: what a ``Stored`` is, as a row of an array."""

_REPORT_BYTES = 1 << 20
_REPORT_SAMPLES = 256


class Stopped(Exception):
    """The pack was told to stop; what is half written goes away."""


@dataclass(frozen=True)
class FieldWork:
    """One stored field of the source and what becomes of it."""

    name: str
    safe_name: str
    block: RowType | None
    """Set: stored as a block of raw rows."""
    row: RowType | None
    """What the source's raw rows are, where it has them."""
    packed: str
    """What the field is called in the pack."""
    kind: Kind
    """What it is there."""


@dataclass(frozen=True)
class ShardWork:
    """All that is needed to write one shard."""

    number: int
    first_id: int
    fields: tuple[FieldWork, ...]
    items: dict[str, list[Item | None]]
    """For each field the samples of the shard in order; None where a sample does not have the field."""
    skip: bool
    encoder: ImageEncoder | None

    @property
    def count(self) -> int:
        """Samples that the plan gives this shard."""
        return len(self.items[self.fields[0].name])

    def reads(self) -> Iterator[Item]:
        """The items in the order in which they are read: blocks first, then sample by sample."""
        for each in self.fields:
            if each.block is not None:
                yield from (item for item in self.items[each.name] if item is not None)
        columns = [self.items[each.name] for each in self.fields if each.block is None]
        for at in range(self.count):
            yield from (item for items in columns if (item := items[at]) is not None)


@dataclass
class ShardIndex:
    """What stands in a finished shard."""

    bytes: int
    """Of the tar file."""
    good: npt.NDArray[np.bool_]
    """For each planned sample whether it is there."""
    stored: dict[str, npt.NDArray[np.void]]
    """For each field a row of ``STORED`` a sample; zeros where there is none: at 0 is a header, no payload."""
    skipped: list[str] = field(default_factory=list)
    """The errors of those that are not."""

    def save(self, path: Path) -> None:
        """Write it as Parquet."""
        columns = {"good": pa.array(self.good)}
        for name, rows in self.stored.items():
            columns.update({f"@{name}.{part}": pa.array(rows[part]) for part in PARTS})
        about = json.dumps({"bytes": self.bytes, "skipped": self.skipped})
        table = pa.table(columns).replace_schema_metadata({"penstock.shard": about})
        with path.open("wb") as file:  # pyarrow, given a path, keeps the file open where the disk is full
            pq.write_table(table, file, compression="zstd")

    @classmethod
    def load(cls, path: Path, fields: tuple[FieldWork, ...]) -> ShardIndex:
        """Read it again. Raises CatalogError if it is no index of these fields."""
        try:
            table = pq.read_table(path)
            about = json.loads((table.schema.metadata or {})[b"penstock.shard"])
            good = table["good"].to_numpy()
            stored = {work.name: np.zeros(len(good), STORED) for work in fields}
            for name, rows in stored.items():
                for part in PARTS:
                    rows[part] = table[f"@{name}.{part}"].to_numpy()
            return cls(int(about["bytes"]), good, stored, list(about["skipped"]))
        except (pa.ArrowInvalid, KeyError, ValueError, TypeError) as error:
            raise CatalogError(
                f"{path} is no index of a shard ({error}): delete it, its shard will be written again"
            ) from error


class ShardWriter:
    """Writes shards, one after the other, on one thread with one buffer.

    ``report(samples, bytes)`` hears of progress; ``stop`` ends the work between two samples with ``Stopped``.
    ``current`` is the item being read, for who waits and wants to know on what.
    """

    def __init__(
        self, fetcher: Fetcher, buffer: memoryview, stop: threading.Event, report: Callable[[int, int], None]
    ) -> None:
        self._fetcher = fetcher
        self._buffer = buffer
        self._stop = stop
        self._report = report
        self._samples = 0
        self._bytes = 0
        self.current: Item | None = None

    def write(self, work: ShardWork, path: Path) -> ShardIndex:
        """Write the shard to ``path``, to the disk. Raises DataError, WriteError, Stopped; then there is no file."""
        count = work.count
        index = ShardIndex(
            0, np.ones(count, dtype=np.bool_), {each.name: np.zeros(count, STORED) for each in work.fields}
        )
        writer = TarWriter(path, self._buffer)
        try:
            self._fetcher.expect(work.reads())
            for each in work.fields:
                if each.block is not None:
                    self._block(work, each, each.block, writer, index)
            self._members(work, writer, index)
            index.bytes = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        finally:
            self.current = None
            self._tell()
        return index

    def _block(
        self, work: ShardWork, each: FieldWork, type: RowType, writer: TarWriter, index: ShardIndex
    ) -> None:
        last_id = work.first_id + work.count - 1
        name = f"{work.first_id:08d}-{last_id:08d}.{each.safe_name}.raw"
        writer.begin(name.encode(), work.count * type.row_bytes)
        copier = RowCopier(type)
        rows = index.stored[each.name]
        for at, item in enumerate(work.items[each.name]):
            mark = writer.mark()
            try:
                if item is not None and index.good[at]:
                    self._next(item)
                    rows[at] = copier.write(item, writer, self._fetcher)
            except DataError as error:
                self._skip(work, index, at, error)
                writer.rewind(mark)
            if writer.offset == mark:
                writer.append(bytes(type.row_bytes))
            self._count(0, 0 if item is None else item.size)
        writer.end(work.count * type.row_bytes)

    def _members(self, work: ShardWork, writer: TarWriter, index: ShardIndex) -> None:
        columns = [
            (each, index.stored[each.name], work.items[each.name])
            for each in work.fields
            if each.block is None
        ]
        for at in range(work.count):
            size = 0
            mark = writer.mark()
            stem = f"{work.first_id + at:08d}."
            try:
                for each, rows, items in columns:
                    item = items[at]
                    if item is None:
                        continue
                    size += item.size
                    if not index.good[at]:
                        continue
                    self._next(item)
                    rows[at] = write_member(
                        item,
                        partial(_member_name, stem, each.safe_name),
                        writer,
                        self._fetcher,
                        row=each.row,
                        encoder=work.encoder,
                        kind=each.kind,
                    )
            except DataError as error:
                self._skip(work, index, at, error)
                writer.rewind(mark)
                size = sum(item.size for _, _, items in columns if (item := items[at]) is not None)
            self._count(1, size)

    def _next(self, item: Item) -> None:
        self.current = item
        if self._stop.is_set():
            raise Stopped

    def _skip(self, work: ShardWork, index: ShardIndex, at: int, error: DataError) -> None:
        if not work.skip:
            raise error
        index.good[at] = False
        index.skipped.append(str(error))

    def _count(self, samples: int, bytes: int) -> None:
        self._samples += samples
        self._bytes += bytes
        if self._bytes >= _REPORT_BYTES or self._samples >= _REPORT_SAMPLES:
            self._tell()

    def _tell(self) -> None:
        self._report(self._samples, self._bytes)
        self._samples = self._bytes = 0


def _member_name(stem: str, name: str, format: Format) -> str:
    return stem + _suffix(name, format)


@cache
def _suffix(name: str, format: Format) -> str:
    return member_suffix(name, format)


def planned_bytes(sizes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the bytes that members of these sizes take in a shard."""
    block = np.uint64(tar.BLOCK)
    return block + (sizes + block - np.uint64(1)) // block * block
