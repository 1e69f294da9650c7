"""The headers of a tar file: where each member's bytes lie, without reading them.

Reads POSIX ustar and pax and GNU tar as any tool writes them. Every number is checked against the size
of the file before it is used, and every step moves forward, so that no file can hold the reader up.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from penstock.errors import CatalogError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.sources.listing import Read

BLOCK = 512
_ZEROS = bytes(BLOCK)
_LARGEST_NAME = 1 << 16
_LARGEST_PAX = 1 << 20
_AROUND = 3 * BLOCK  # a pax header, its records and the header proper
_NEAR = 32 << 10  # bytes that cost less to read on through than another read does
_AHEAD = 256 << 10
_FAR_NEAR = 64 << 10  # of a far store, before anything was measured
_FAR_AHEAD = 4 << 20
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class Member(NamedTuple):
    """A file in a tar."""

    name: str
    offset: int
    length: int


class Wire:
    """What a read of a far store costs, learnt from the reads of all shards: whether to read on or to ask anew.

    Reading on through a member costs its bytes, asking for the next header costs a round trip.
    """

    def __init__(self) -> None:
        self._latency = 0.0
        self._rate = 0.0

    def near(self) -> int:
        """So many bytes come in the time of a round trip."""
        if not self._latency or not self._rate:
            return _FAR_NEAR
        return int(self._latency * self._rate)

    def read(self, read: Read, offset: int, length: int) -> bytes:
        """Read, and learn from it."""
        begun = time.perf_counter()
        data = read(offset, length)
        seconds = time.perf_counter() - begun
        if len(data) <= _FAR_NEAR:
            self._latency = seconds if not self._latency else 0.8 * self._latency + 0.2 * seconds
        elif seconds > self._latency:
            rate = len(data) / (seconds - self._latency)
            self._rate = rate if not self._rate else 0.8 * self._rate + 0.2 * rate
        return data


class _Ahead:
    """Reads that go forward: a long one while members are small, else just what is needed."""

    def __init__(self, read: Read, wire: Wire | None) -> None:
        self._read = read
        self._wire = wire
        self._start = 0
        self._data = b""

    def get(self, offset: int, length: int) -> bytes:
        start = offset - self._start
        if start < 0 or start + length > len(self._data):
            near, long = (_NEAR, _AHEAD) if self._wire is None else (self._wire.near(), _FAR_AHEAD)
            is_near = 0 <= start - len(self._data) < near and bool(self._data)
            wanted = max(length, long if is_near else _AROUND)
            read = self._read
            self._data = read(offset, wanted) if self._wire is None else self._wire.read(read, offset, wanted)
            self._start = offset
            start = 0
        return self._data[start : start + length]


class TarReader:
    """The members of one tar file of ``size`` bytes; ``where`` names it in errors; ``wire`` for a far store."""

    def __init__(self, read: Read, size: int, where: str, wire: Wire | None = None) -> None:
        self._ahead = _Ahead(read, wire)
        self._size = size
        self._where = where
        self._globals: dict[str, str] = {}

    def content(self, member: Member, limit: int) -> bytes:
        """Return the first bytes of a member: cheap right after its header was read."""
        return self._ahead.get(member.offset, min(limit, member.length))

    def __iter__(self) -> Iterator[Member]:
        """Yield the regular files; folders and devices are passed over.

        `CatalogError` where the file is cut short, damaged or compressed, or holds links or sparse files.
        """
        position = 0
        pax: dict[str, str] = {}
        long_name: str | None = None
        while True:
            block = self._block(position)
            if block == _ZEROS:
                self._check_end(position + BLOCK)
                return
            self._check_sum(block, position)
            kind = block[156:157]
            size = self._number(block[124:136], "size", position)
            data = position + BLOCK
            if kind in b"xgLK":
                limit = _LARGEST_NAME if kind in b"LK" else _LARGEST_PAX
                if size > limit:
                    self._fail(
                        position,
                        f"an extended header of {size:,} bytes, more than the {limit:,} that make sense",
                    )
                content = self._exactly(data, size)
                if kind == b"L":
                    long_name = self._text(content.split(b"\0", 1)[0], position)
                elif kind == b"x":
                    pax = self._records(content, position)
                elif kind == b"g":
                    self._globals.update(self._records(content, position))
                position = data + _padded(size)
                continue
            extended = {**self._globals, **pax} if self._globals else pax
            name = extended.get("path") or long_name or self._name(block, position)
            if "size" in extended:
                size = self._decimal(extended["size"], "size", position)
            sparse = kind == b"S" or any(key.startswith("GNU.sparse") for key in extended)
            pax, long_name = {}, None
            if sparse:
                self._fail(
                    position,
                    f"{name} is a sparse file, whose bytes do not lie together; pack it without --sparse",
                )
            if kind in (b"1", b"2"):
                self._fail(
                    position,
                    f"{name} is a link, which has no bytes of its own; pack with tar --dereference "
                    "--hard-dereference",
                )
            if kind in (b"0", b"\0", b"7"):
                if data + size > self._size:
                    self._cut_short(f"{name} should go on for {size:,} bytes from {data:,}")
                if not name.endswith("/"):
                    yield Member(name.removeprefix("./"), data, size)
                position = data + _padded(size)
            elif kind in (b"3", b"4", b"5", b"6", b"V"):
                position = data
            elif kind == b"D":
                position = data + _padded(size)
            else:
                self._fail(position, f"{name} is a member of the unknown type {kind!r}")

    def _block(self, position: int) -> bytes:
        block = self._ahead.get(position, BLOCK)
        if len(block) == BLOCK:
            return block
        if position == 0 and self._size < BLOCK:
            raise CatalogError(
                f"{self._where} has {self._size} bytes, which is less than any tar file; make it again"
            )
        return self._cut_short(f"a header or the end marker should be at {position:,}")

    def _exactly(self, offset: int, length: int) -> bytes:
        if offset + length > self._size:
            self._cut_short(f"an extended header should go on for {length:,} bytes from {offset:,}")
        data = self._ahead.get(offset, length)
        if len(data) != length:
            self._cut_short(f"{length:,} bytes should be at {offset:,}")
        return data

    def _check_sum(self, block: bytes, position: int) -> None:
        if position == 0:
            for magic, name in _COMPRESSED.items():
                if block.startswith(magic):
                    raise CatalogError(
                        f"{self._where} is compressed with {name}, so that nothing in it can be read by "
                        "its place; "
                        "decompress it first"
                    )
        wanted = self._number(block[148:156], "checksum", position)
        found = sum(block) - sum(block[148:156]) + 8 * 32
        if found != wanted:
            high = 256 * sum(byte > 127 for byte in block[:148] + block[156:])
            if found - high != wanted:  # old tools summed signed bytes
                self._fail(position, "no tar header is there (its checksum does not match)")

    def _check_end(self, position: int) -> None:
        """Check that padding follows the end marker, and not a second tar that would go unread."""
        rest = self._ahead.get(position, max(0, min(self._size - position, 64 << 10)))
        if rest.count(0) != len(rest):
            self._fail(
                position,
                "there is more after the end marker, as when tar files are joined with cat; pack them anew",
            )

    def _number(self, field: bytes, what: str, position: int) -> int:
        if field[0] & 0x80:
            if field[0] & 0x40:
                self._fail(position, f"a negative {what}")
            return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        digits = field.strip(b" \0")
        if not digits:
            return 0
        if not digits.isdigit():
            self._fail(position, f"no tar header is there (its {what} is {digits!r})")
        try:
            return int(digits, 8)
        except ValueError:
            self._fail(position, f"no tar header is there (its {what} is {digits!r})")

    def _decimal(self, text: str, what: str, position: int) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 19:
            self._fail(position, f"an extended header whose {what} is {text[:32]!r}")
        return int(text)

    def _name(self, block: bytes, position: int) -> str:
        name = block[:100].split(b"\0", 1)[0]
        if block[257:263] == b"ustar\0" and block[345]:
            name = block[345:500].split(b"\0", 1)[0] + b"/" + name
        return self._text(name, position)

    def _text(self, raw: bytes, position: int) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self._fail(position, f"the name {raw!r} is not UTF-8; pack the files again under names that are")

    def _records(self, content: bytes, position: int) -> dict[str, str]:
        records: dict[str, str] = {}
        start = 0
        while start < len(content) and content[start]:
            space = content.find(b" ", start, start + 20)
            digits = content[start:space] if space > 0 else b""
            if not digits.isdigit():
                self._fail(position, "an extended header without the length of a record")
            end = start + int(digits)
            equals = content.find(b"=", space, end)
            if end > len(content) or equals < 0 or content[end - 1 : end] != b"\n":
                self._fail(position, "an extended header with a damaged record")
            key = content[space + 1 : equals].decode(errors="replace")
            value = content[equals + 1 : end - 1]
            if key == "path":
                records[key] = self._text(value, position)
            elif key == "size" or key.startswith("GNU.sparse"):
                records[key] = value.decode(errors="replace")
            start = end
        return records

    def _fail(self, position: int, what: str) -> NoReturn:
        raise CatalogError(f"{self._where} at byte {position:,}: {what}")

    def _cut_short(self, what: str) -> NoReturn:
        raise CatalogError(
            f"{self._where} is cut short: {what}, and the file ends at {self._size:,}; get it again"
        )


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
