"""How one stored field of one sample gets from its source into a shard: as it is, rewrapped, or as a raw row."""

from __future__ import annotations

import errno
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from penstock.errors import (
    ChecksumError,
    DataError,
    DeadlineError,
    DecodeError,
    MissingError,
    StoreError,
    TruncatedError,
)
from penstock.formats import IMAGE_FORMATS, Format
from penstock.pack import npy
from penstock.pack.checksum import combine, crc32c

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.formats import Kind
    from penstock.pack.reader import Reader
    from penstock.pack.writer import TarWriter

_NEVER_EMPTY = IMAGE_FORMATS | {Format.NPY, Format.CLS, Format.JSON, Format.NPY_DEFLATE}


class Item(NamedTuple):
    """One field of one source sample: where its bytes are and what is known of them."""

    id: int
    field: str
    key: str
    offset: int
    size: int
    whole: bool
    """The bytes are all that the object holds; then it must not have grown either."""
    format: Format
    crc32c: int | None
    store: str
    object: int = -1
    """Its row in the catalog's table of objects."""

    def bad(self, kind: type[DataError], reason: str) -> DataError:
        """The error that names this sample."""
        return kind(reason, id=self.id, key=self.key, store=self.store, field=self.field)


class Stored(NamedTuple):
    """Where a payload stands in its shard."""

    offset: int
    length: int
    crc32c: int
    format: Format


@dataclass(frozen=True)
class RowType:
    """What all rows of a raw field are: C order, this machine's byte order."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * math.prod(self.shape)

    def describe(self) -> str:
        """``"float32 3×128×128"``."""
        return npy.describe(self.dtype, self.shape)


class ImageEncoder(Protocol):
    """Turns the bytes of an image into another format's. The seam that PSI comes in through."""

    format: Format

    def takes(self, format: Format, field: str) -> bool:
        """Whether items of that format, in a field of that name, may be encoded."""

    def encode(self, data: memoryview, format: Format, field: str, kind: Kind) -> bytes | None:
        """Encode ``data``; None where it stays as it is. Raises ValueError with the reason if it cannot be read."""

    def becomes(self, data: memoryview, format: Format, field: str) -> tuple[str, Kind] | None:
        """Another name and kind that a field of such items has once it is packed."""


def load_encoder(level: str, *, lossy: bool) -> ImageEncoder:
    """The PSI encoder at a level. ``lossy``: JPEG and lossy WebP are taken too. ValueError for an unknown level."""
    from penstock.psi.packing import PackEncoder

    return PackEncoder(level, lossy=lossy)


class Fetcher:
    """Reads items for one thread and checks what it reads. ``close`` it."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._extra = memoryview(bytearray(1))
        self._scratch = memoryview(bytearray(1 << 16))

    def close(self) -> None:
        """Let go of what is open."""
        self._reader.close()

    def expect(self, items: Iterable[Item]) -> None:
        """Say what will be read, in which order: a reader of a far store fetches it ahead."""
        self._reader.expect(items)

    def into(self, item: Item, view: memoryview) -> int:
        """Fill ``view`` with all of the item; gives its checksum."""
        self.parts(item, (view,))
        checksum = crc32c(view)
        self.compare(item, checksum)
        return checksum

    def parts(self, item: Item, views: tuple[memoryview, ...]) -> None:
        """Fill ``views`` with all of the item, its checksum not compared."""
        got = self._read(item, item.offset, (*views, self._extra) if item.whole else views)
        if got < item.size:
            raise self._short(item, got)
        if got > item.size:
            raise item.bad(
                TruncatedError, f"has grown past the {item.size:,} bytes that it had when the pack began"
            )

    def whole(self, item: Item) -> memoryview:
        """All of the item, in memory that the next call uses again."""
        if len(self._scratch) < item.size:
            self._scratch = memoryview(bytearray(item.size))
        view = self._scratch[: item.size]
        self.into(item, view)
        return view

    def stream(self, item: Item, pieces: Iterable[memoryview]) -> int:
        """Fill ``pieces``, one after the other, with an item of any size; gives its checksum."""
        checksum, done = 0, 0
        for piece in pieces:
            got = self._read(item, item.offset + done, (piece,))
            if got < len(piece):
                raise self._short(item, done + got)
            checksum = combine(checksum, crc32c(piece), len(piece)) if done else crc32c(piece)
            done += len(piece)
        if item.whole and self._read(item, item.offset + item.size, (self._extra,)):
            raise item.bad(
                TruncatedError, f"has grown past the {item.size:,} bytes that it had when the pack began"
            )
        self.compare(item, checksum)
        return checksum

    @staticmethod
    def compare(item: Item, checksum: int) -> None:
        """Raise ChecksumError if the source knows a checksum and this is another."""
        if item.crc32c is not None and item.crc32c != checksum:
            raise item.bad(
                ChecksumError,
                f"its crc32c is {checksum:08x}, the catalog says {item.crc32c:08x}: the bytes have changed",
            )

    def _read(self, item: Item, offset: int, views: tuple[memoryview, ...]) -> int:
        try:
            return self._reader.read_into(item.key, offset, views)
        except FileNotFoundError as error:
            raise item.bad(MissingError, "there is no such object") from error
        except (StoreError, DeadlineError) as error:
            if error.errno == errno.ENOENT:
                raise item.bad(MissingError, "there is no such object") from error
            raise  # the store as a whole, and not this sample
        except OSError as error:
            raise item.bad(DataError, f"cannot be read: {error.strerror}") from error

    @staticmethod
    def _short(item: Item, got: int) -> DataError:
        if item.whole:
            return item.bad(TruncatedError, f"has {got:,} bytes and had {item.size:,} when the pack began")
        return item.bad(
            TruncatedError,
            f"ends after {got:,} of {item.size:,} bytes: the object is shorter than its index says",
        )


def write_member(
    item: Item,
    named: Callable[[Format], str],
    writer: TarWriter,
    fetcher: Fetcher,
    *,
    row: RowType | None = None,
    encoder: ImageEncoder | None = None,
    kind: Kind = "image",
) -> Stored:
    """Write an item as a tar member, whose name ``named`` makes from its format. Raises DataError.

    ``row``: what a raw source row is. ``kind``: what the field is once it is packed.
    """
    if item.size == 0 and item.format in _NEVER_EMPTY:
        raise item.bad(TruncatedError, f"is empty, which no {item.format.name.lower()} can be")
    if encoder is not None and encoder.takes(item.format, item.field):
        try:
            data = encoder.encode(fetcher.whole(item), item.format, item.field, kind)
        except ValueError as error:
            raise item.bad(DecodeError, str(error)) from error
        if data is not None:
            return _write_bytes(data, named(encoder.format), writer, encoder.format)
    if item.format is Format.NPY_DEFLATE:
        try:
            data = npy.inflate(fetcher.whole(item))
        except ValueError as error:
            raise item.bad(DecodeError, str(error)) from error
        return _write_bytes(data, named(Format.NPY), writer, Format.NPY)
    if item.format is Format.RAW:
        if row is None:
            raise item.bad(DataError, "is a raw row and the catalog does not say of what type and shape")
        head = npy.header_bytes(row.dtype, row.shape)
        return _write_bytes(b"".join((head, fetcher.whole(item))), named(Format.NPY), writer, Format.NPY)
    at = writer.begin(named(item.format).encode(), item.size)
    view = writer.whole(item.size)
    if view is None:
        checksum = fetcher.stream(item, writer.pieces(item.size))
    else:
        checksum = fetcher.into(item, view)
        writer.filled(item.size)
    writer.end(item.size)
    return Stored(at, item.size, checksum, item.format)


def _write_bytes(data: bytes, name: str, writer: TarWriter, format: Format) -> Stored:
    at = writer.begin(name.encode(), len(data))
    writer.append(data)
    writer.end(len(data))
    return Stored(at, len(data), crc32c(data), format)


class RowCopier:
    """Writes items as bare rows of one type. A header seen once and found right is compared as bytes from then on."""

    def __init__(self, type: RowType) -> None:
        self.type = type
        self._size = type.row_bytes
        self._good = npy.header_bytes(type.dtype, type.shape)
        self._head = memoryview(bytearray(len(self._good)))

    def write(self, item: Item, writer: TarWriter, fetcher: Fetcher) -> Stored:
        """Write the row; gives where it stands. Raises DataError."""
        at = writer.offset
        view = writer.whole(self._size)
        if view is not None and item.format is Format.RAW and item.size == self._size:
            checksum = fetcher.into(item, view)
            writer.filled(self._size)
            return Stored(at, self._size, checksum, Format.RAW)
        if (
            view is not None
            and item.format is Format.NPY
            and item.crc32c is None
            and item.size == self._size + len(self._head)
        ):
            fetcher.parts(item, (self._head, view))
            if bytes(self._head) == self._good:
                writer.filled(self._size)
                return Stored(at, self._size, crc32c(view), Format.RAW)
        row = self._parse(item, fetcher)
        writer.append(row)
        return Stored(at, self._size, crc32c(row), Format.RAW)

    def _parse(self, item: Item, fetcher: Fetcher) -> memoryview:
        data = fetcher.whole(item)
        if item.format is Format.RAW:
            if item.size != self._size:
                raise item.bad(
                    DataError,
                    f"has {item.size:,} bytes where a row of {self.type.describe()} has {self._size:,}",
                )
            return data
        try:
            if item.format is Format.NPY_DEFLATE:
                data = memoryview(npy.inflate(data))
            header = npy.read_header(data)
        except ValueError as error:
            raise item.bad(DecodeError, str(error)) from error
        if (header.dtype, header.shape) != (self.type.dtype, self.type.shape):
            raise item.bad(
                DataError,
                f"is {npy.describe(header.dtype, header.shape)} where the first sample is {self.type.describe()}: "
                "rows of one block are alike; pack with --format keep",
            )
        if len(data) < header.start + header.nbytes:
            raise item.bad(
                TruncatedError,
                f"has {len(data) - header.start:,} of the {header.nbytes:,} bytes that its header promises",
            )
        return npy.c_order(data, header).reshape(-1).view(np.uint8).data
