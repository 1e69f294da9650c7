from __future__ import annotations

import io
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CatalogError
from penstock.pack import tar

NAMES = st.text("abcdefghij0123456789._-", min_size=1, max_size=100).filter(lambda name: name.strip("."))


@given(st.lists(st.tuples(NAMES, st.binary(max_size=2000)), max_size=8))
def test_what_is_written_is_read_by_the_standard_library(members: list[tuple[str, bytes]]) -> None:
    data = b"".join(
        tar.header(name.encode(), len(body)) + body + bytes(tar.padding(len(body))) for name, body in members
    )
    with tarfile.open(fileobj=io.BytesIO(data + tar.END)) as archive:
        found = [(entry.name, archive.extractfile(entry).read()) for entry in archive]
        times = [(entry.mtime, entry.uid, entry.gid, entry.uname, entry.mode) for entry in archive]
    assert found == members
    assert all(time == (0, 0, 0, "", 0o644) for time in times)


@pytest.mark.parametrize("size", [0, 511, 512, 8**11 - 1, 8**11, 1 << 40])
def test_sizes_past_eight_gib_are_read_as_well(size: int) -> None:
    entry = tarfile.TarInfo.frombuf(tar.header(b"x.bin", size), "utf-8", "strict")
    assert entry.size == size


def test_the_tar_command_reads_it(tmp_path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(tar.header(b"00000000.txt", 5) + b"hello" + bytes(507) + tar.END)
    listed = subprocess.run(["tar", "xvf", path, "-C", tmp_path], capture_output=True, text=True, check=True)
    assert listed.stdout == "00000000.txt\n"
    assert (tmp_path / "00000000.txt").read_bytes() == b"hello"
    assert listed.stderr == ""


def test_a_name_that_tar_cannot_hold_is_refused() -> None:
    with pytest.raises(CatalogError, match="at most 100 bytes"):
        tar.header(b"x" * 101, 0)
