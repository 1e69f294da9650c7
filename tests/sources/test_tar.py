"""Tar headers are read as tarfile reads them, and no damaged file does worse than a clear error."""

from __future__ import annotations

import gzip
import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CatalogError
from penstock.sources.tar import BLOCK, Member, TarReader

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def make_tar(files: list[tuple[str, bytes]], format: int = tarfile.GNU_FORMAT) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=format) as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mtime = 1.5 if format == tarfile.PAX_FORMAT else 1  # a fraction makes a pax header
            tar.addfile(info, io.BytesIO(content))
    return sink.getvalue()


def members_of(data: bytes) -> list[Member]:
    def read(offset: int, length: int | None = None) -> bytes:
        assert offset >= 0
        assert length is None or length <= (1 << 20) + BLOCK
        return data[offset : offset + (len(data) if length is None else length)]

    return list(TarReader(read, len(data), "set.tar"))


def by_tarfile(data: bytes) -> list[Member]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [Member(m.name, m.offset_data, m.size) for m in tar if m.isreg()]


names = st.lists(
    st.text(
        st.characters(codec="utf-8", exclude_characters="/\0\\", exclude_categories=["C", "Z"]),
        min_size=1,
        max_size=90,
    ).filter(lambda part: part not in (".", "..")),
    min_size=1,
    max_size=4,
).map("/".join)


@given(
    st.lists(st.tuples(names, st.integers(0, 3000)), max_size=8),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
@settings(deadline=None)
def test_it_finds_what_tarfile_finds(files: list[tuple[str, int]], format: int) -> None:
    data = make_tar([(name, b"x" * size) for name, size in files], format)

    found = members_of(data)

    assert found == by_tarfile(data)
    assert all(data[m.offset : m.offset + m.length] == b"x" * m.length for m in found)


def test_ustar_prefixes_are_joined_to_names() -> None:
    long = "/".join(["folder" * 10] * 3) + "/x.jpg"
    data = make_tar([(long, b"abc")], tarfile.USTAR_FORMAT)
    assert members_of(data) == [Member(long, BLOCK, 3)]


def test_small_members_in_great_number_are_found_across_reads() -> None:
    data = make_tar([(f"{n:05}.cls", b"%d" % n) for n in range(2000)])
    assert members_of(data) == by_tarfile(data)


def test_folders_are_passed_over_and_leading_dots_dropped() -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        folder = tarfile.TarInfo("./a")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        file = tarfile.TarInfo("./a/1.txt")
        file.size = 2
        tar.addfile(file, io.BytesIO(b"hi"))
    assert [m.name for m in members_of(sink.getvalue())] == ["a/1.txt"]


def test_base_256_sizes_are_read() -> None:
    data = bytearray(make_tar([("x.bin", b"abcd")]))
    data[124:136] = b"\x80" + (4).to_bytes(11, "big")
    repair_checksum(data, 0)
    assert members_of(bytes(data)) == [Member("x.bin", BLOCK, 4)]


def repair_checksum(data: bytearray, at: int) -> None:
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + BLOCK])


@pytest.mark.parametrize("keep", [1, 100, 511])
def test_a_file_shorter_than_a_header_is_no_tar(keep: int) -> None:
    with pytest.raises(CatalogError, match=rf"set.tar has {keep} bytes"):
        members_of(make_tar([("a.jpg", b"x")])[:keep])


@pytest.mark.parametrize("keep", [BLOCK, BLOCK + 100, 3 * BLOCK - 1, 3 * BLOCK])
def test_a_tar_cut_short_says_where_it_ends(keep: int) -> None:
    data = make_tar([("a.jpg", b"x" * 600)])
    with pytest.raises(CatalogError, match=rf"cut short.* ends at {keep:,}"):
        members_of(data[:keep])


def test_a_size_beyond_the_file_names_the_member() -> None:
    data = bytearray(make_tar([("a.jpg", b"x")]))
    data[124:136] = b"77777777777\0"
    repair_checksum(data, 0)
    with pytest.raises(CatalogError, match=r"a.jpg should go on for 8,589,934,591 bytes"):
        members_of(bytes(data))


@pytest.mark.parametrize(
    ("field", "message"), [(b"-0000000001\0", "size"), (b"\xff" * 12, "negative size"), (b"9" * 12, "size")]
)
def test_a_senseless_size_is_an_error(field: bytes, message: str) -> None:
    data = bytearray(make_tar([("a.jpg", b"x")]))
    data[124:136] = field
    repair_checksum(data, 0)
    with pytest.raises(CatalogError, match=message):
        members_of(bytes(data))


def test_a_wrong_checksum_is_an_error() -> None:
    data = bytearray(make_tar([("a.jpg", b"x")]))
    data[0] ^= 1
    with pytest.raises(CatalogError, match="checksum"):
        members_of(bytes(data))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_are_an_error_that_says_how_to_pack(kind: bytes) -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        link = tarfile.TarInfo("a.jpg")
        link.type, link.linkname = kind, "b.jpg"
        tar.addfile(link)
    with pytest.raises(CatalogError, match=r"a.jpg is a link.*--dereference"):
        members_of(sink.getvalue())


def test_sparse_files_are_an_error() -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a.npy")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
        tar.addfile(info)
    with pytest.raises(CatalogError, match="sparse"):
        members_of(sink.getvalue())


def test_compressed_tars_are_named_as_such() -> None:
    data = gzip.compress(make_tar([(f"{n}.jpg", bytes(range(256))) for n in range(64)]), 0)
    with pytest.raises(CatalogError, match="compressed with gzip"):
        members_of(data)


def test_names_that_are_not_utf8_are_an_error() -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.GNU_FORMAT, encoding="latin-1") as tar:
        tar.addfile(tarfile.TarInfo("n\xe4me.jpg"))
    with pytest.raises(CatalogError, match="not UTF-8"):
        members_of(sink.getvalue())


def test_joined_tars_are_an_error_and_not_half_read() -> None:
    one = make_tar([("a.jpg", b"x")])
    with pytest.raises(CatalogError, match="after the end marker"):
        members_of(one + one)


SEEDS = [
    make_tar([("a/1.jpg", b"j" * 700), ("a/" + "n" * 150 + ".jpg", b"l" * 10), ("ü.cls", b"7")], f)
    for f in FORMATS[1:]
]


@st.composite
def damaged_tars(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 6))):
        header = draw(st.integers(0, len(data) // BLOCK - 1)) * BLOCK
        match draw(st.sampled_from(["byte", "field", "cut", "move", "size"])):
            case "byte":
                data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
            case "field":
                at = draw(st.sampled_from([0, 100, 124, 136, 148, 156, 157, 257, 345]))
                junk = draw(st.binary(max_size=16))
                data[header + at : header + at + len(junk)] = junk
            case "size":
                data[header + 124 : header + 136] = draw(
                    st.sampled_from([b"00000177777\0", b"77777777777\0", b"\x80" + b"\xff" * 11, b"\0" * 12])
                )
            case "cut":
                del data[draw(st.integers(BLOCK, max(BLOCK, len(data)))) :]
            case "move":
                data[header:header] = data[: draw(st.integers(0, 3)) * BLOCK]
        data.extend(b"\0" * (-len(data) % BLOCK if draw(st.booleans()) else 0))
        if draw(st.booleans()) and header + BLOCK <= len(data):
            repair_checksum(data, header)
    return bytes(data)


@given(damaged_tars())
@settings(max_examples=1500, deadline=None)
def test_damaged_tars_give_bounded_members_or_a_clear_error(data: bytes) -> None:
    try:
        found = members_of(data)
    except CatalogError as error:
        assert str(error).startswith("set.tar")
        return
    assert all(m.offset > 0 and m.offset + m.length <= len(data) for m in found)
    assert [m.offset for m in found] == sorted({m.offset for m in found})
