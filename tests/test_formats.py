"""The table of formats, and that Rust's is the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.formats import EXTENSIONS, FORMAT_NAMES, Format, format_of_extension, kind_of, split_name

RUST_TABLE = Path(__file__).parents[1] / "crates" / "codec" / "src" / "format.rs"


def test_rust_and_python_have_the_same_table() -> None:
    source = RUST_TABLE.read_text()
    table = source[source.index("const TABLE") :]
    table = table[table.index("= [") : table.index("];")]
    rows = re.findall(r'\(\s*Format::(\w+),\s*"([\w.]+)",\s*&\[([^\]]*)\]', table)
    rust = [(name, tuple(re.findall(r'"(\w+)"', extensions))) for _, name, extensions in rows]
    assert rust == [(FORMAT_NAMES[format], EXTENSIONS[format]) for format in sorted(Format)]
    assert [format.value for format in sorted(Format)] == list(range(len(rust)))


@pytest.mark.parametrize(
    ("name", "field", "format"),
    [
        ("a/b/1.jpg", "image", Format.JPEG),
        ("1.JPEG", "image", Format.JPEG),
        ("1.mask.png", "mask", Format.PNG),
        ("1.seg.png", "seg", Format.PNG),
        ("1.npy", "array", Format.NPY),
        ("1.cls", "label", Format.CLS),
        ("1.txt", "text", Format.BYTES),
        ("1.json", "json", Format.JSON),
        ("1.xyz", "xyz", Format.BYTES),
    ],
)
def test_a_name_says_field_and_format(name: str, field: str, format: Format) -> None:
    parts = split_name(name)
    assert parts is not None
    assert (parts.field, parts.format) == (field, format)


def test_names_without_stem_or_extension_say_nothing() -> None:
    assert [split_name(name) for name in ("README", ".hidden", "a.b/README", "x.")] == [None] * 4


def test_masks_are_images_by_name_only() -> None:
    assert kind_of("mask", Format.PNG) == "mask"
    assert kind_of("image", Format.PNG) == "image"
    assert kind_of("mask", Format.CLS) == "scalar"
    assert format_of_extension("exe") is None
