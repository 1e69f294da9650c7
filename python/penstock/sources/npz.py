"""The members of .npz archives: where each array's bytes lie in the zip file, without reading them."""

from __future__ import annotations

import struct
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import CatalogError
from penstock.formats import Format
from penstock.sources.listing import RangeFile, redacted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.sources.listing import Entry, Listing
    from penstock.sources.members import Members

_LOCAL_HEADER = 30
_THREADS = 8


class Stored(NamedTuple):
    """An array inside an archive."""

    name: str
    format: Format
    """NPY where it is stored as it is, NPY_DEFLATE where it is compressed."""
    offset: int
    length: int
    """Bytes in the archive."""


def archive_members(listing: Listing, entry: Entry) -> list[Stored]:
    """Return the arrays of a .npz file in its order; `CatalogError` where it is damaged or has others."""
    where = f"{redacted(listing.spec.uri)}{entry.key}"
    found = []
    try:
        with listing.reader(entry.key) as read, zipfile.ZipFile(RangeFile(read, entry.size)) as archive:
            infos = archive.infolist()
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        ValueError,
        struct.error,
        UnicodeError,
        OverflowError,
        EOFError,
    ) as error:
        raise CatalogError(
            f"{where} cannot be read as .npz ({error}); if it was cut short, make it again"
        ) from error
    with listing.reader(entry.key) as read:
        for info in infos:
            if info.filename.endswith("/"):  # a folder
                continue
            if not info.filename.endswith(".npy"):
                raise CatalogError(
                    f"{where}: its member {info.filename!r} is no .npy array; write it with numpy.savez"
                )
            if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise CatalogError(
                    f"{where}: its member {info.filename!r} is encrypted or compressed by a method that "
                    "NumPy does not "
                    "use; write it with numpy.savez or numpy.savez_compressed"
                )
            header = read(info.header_offset, _LOCAL_HEADER)
            if len(header) < _LOCAL_HEADER or not header.startswith(b"PK\x03\x04"):
                raise CatalogError(
                    f"{where}: there is no header of {info.filename!r} at byte {info.header_offset:,}; "
                    "make it again"
                )
            name_length, extra_length = struct.unpack_from("<HH", header, 26)
            offset = info.header_offset + _LOCAL_HEADER + name_length + extra_length
            if offset + info.compress_size > entry.size:
                raise CatalogError(
                    f"{where} is cut short: {info.filename!r} goes on past its end; make it again"
                )
            stored = info.compress_type == zipfile.ZIP_STORED
            name = info.filename.removesuffix(".npy")
            found.append(
                Stored(name, Format.NPY if stored else Format.NPY_DEFLATE, offset, info.compress_size)
            )
    if not found:
        raise CatalogError(f"{where} holds no arrays")
    return found


def add_archives(listing: Listing, archives: Sequence[tuple[int, int, str]], members: Members) -> None:
    """Add each array of each archive, given as (row, object, key), as a field of that row."""

    def look(archive: tuple[int, int, str]) -> list[Stored]:
        entry = listing.stat(archive[2])
        if entry is None:
            raise CatalogError(
                f"{redacted(listing.spec.uri)}{archive[2]} went away while it was being listed"
            )
        return archive_members(listing, entry)

    if not archives:
        return
    with ThreadPoolExecutor(min(_THREADS, len(archives)), "penstock-npz") as pool:
        for (row, object, _), arrays in zip(archives, pool.map(look, archives), strict=True):
            for array in arrays:
                members.add(row, array.name, array.format, object, array.offset, array.length)
