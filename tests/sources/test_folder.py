"""Folders: which files are samples, what labels them, and what is said of what is not understood."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock.dataset import open_dataset
from penstock.errors import CatalogError, DataError, StoreError
from penstock.loader import Loader

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return folder


def test_class_folders_are_labels_in_sorted_order(tmp_path: Path) -> None:
    data = open_dataset(write(tmp_path, "dog/2.txt", "cat/deep/er/1.txt", "cat/9.txt", "ant/1.txt"))

    assert data.classes == ("ant", "cat", "dog")
    assert data.catalog.keys() == ["ant/1.txt", "cat/9.txt", "cat/deep/er/1.txt", "dog/2.txt"]
    assert data.catalog.column("label").tolist() == [0, 1, 1, 2]
    assert data.where("label == 'cat'").catalog.ids().tolist() == [1, 2]
    assert data[3]["text"] == b"dog/2.txt"
    assert [f.name for f in data.fields] == ["text", "label"]


def test_splits_above_the_classes_become_a_column(tmp_path: Path) -> None:
    data = open_dataset(write(tmp_path, "train/a/1.txt", "train/b/2.txt", "val/a/3.txt"))
    assert data.classes == ("a", "b")
    assert data.where(split="val").catalog.keys() == ["val/a/3.txt"]


def test_a_class_called_test_is_a_class_where_it_holds_files(tmp_path: Path) -> None:
    assert open_dataset(write(tmp_path, "test/1.txt", "train/2.txt")).classes == ("test", "train")


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    data = open_dataset(write(tmp_path, "b.txt", "a.txt"))
    assert (data.catalog.keys(), data.columns, data.classes) == (["a.txt", "b.txt"], (), ())


def test_files_of_one_stem_are_one_sample(tmp_path: Path) -> None:
    data = open_dataset(
        write(
            tmp_path,
            "x/a.png",
            "x/a.mask.png",
            "x/a-b.png",
            "x/a-b.mask.png",
            "x/a.b/c.png",
            "x/a.b/c.mask.png",
        )
    )
    assert len(data) == 3
    assert [(f.name, f.kind) for f in data.fields] == [
        ("image", "image"),
        ("mask", "mask"),
        ("label", "scalar"),
    ]
    at = data.catalog.addresses("mask", np.arange(3))
    assert [data.catalog.objects[i].as_py() for i in at.object.tolist()] == [
        "x/a.mask.png",
        "x/a-b.mask.png",
        "x/a.b/c.mask.png",
    ]


def test_numbers_in_cls_files_are_the_label(tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / f"{n}.txt").write_text("x")
        (tmp_path / f"{n}.cls").write_text(f"{n * 10}\n")
    data = open_dataset(tmp_path)
    assert data.catalog.column("label").tolist() == [0, 10, 20]
    assert data.columns == ("label",)


def test_links_are_followed_and_loops_are_not(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", "1.txt")
    root = write(tmp_path / "root", "a/0.txt")
    (root / "b").symlink_to(tmp_path / "elsewhere")
    (root / "a" / "again").symlink_to(root)
    assert open_dataset(root).catalog.keys() == ["a/0.txt", "b/1.txt"]


def test_a_link_to_nothing_is_an_error_of_its_sample(tmp_path: Path) -> None:
    write(tmp_path, "a.txt")
    (tmp_path / "b.txt").symlink_to(tmp_path / "gone")
    data = open_dataset(tmp_path)
    assert data[0]["text"] == b"a.txt"
    with pytest.raises(FileNotFoundError, match=r"sample 1 \(b.txt in .*b.txt is not there"):
        data[1]


def test_hidden_files_and_readmes_are_no_samples(tmp_path: Path) -> None:
    assert (
        len(
            open_dataset(
                write(tmp_path, "a/1.txt", "a/.2.txt", ".git/3.txt", "README.md", "a/Thumbs.db", "LICENSE")
            )
        )
        == 1
    )


def test_unknown_extensions_are_said_to_be_left_out(tmp_path: Path) -> None:
    write(tmp_path, "a/1.txt", "a/2.heic", "a/3.heic", "a/4.dcm")
    with pytest.warns(UserWarning, match=r"3 files .* left out: 2 × .heic, 1 × .dcm"):
        data = open_dataset(tmp_path)
    assert len(data) == 1
    assert "2 × .heic" in data.notes[0]


def test_only_unknown_extensions_are_an_error_that_lists_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"only 2 × .heic; known are .*\.jpg.*\.npz"):
        open_dataset(write(tmp_path, "1.heic", "2.heic"))


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="holds no files; check the path"):
        open_dataset(tmp_path)


def test_a_place_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is nothing at .*/nowhere; check the path"):
        open_dataset(tmp_path / "nowhere")


def test_a_file_of_no_known_kind_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"x.jpg is no data set"):
        open_dataset(write(tmp_path, "x.jpg") / "x.jpg")


def test_names_with_inner_dots_that_make_too_many_fields_are_explained(tmp_path: Path) -> None:
    write(tmp_path, *[f"photo.n{n}.jpg" for n in range(70)])
    with pytest.raises(CatalogError, match="lose their inner dots"):
        open_dataset(tmp_path)


def test_a_field_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="has the field 'image' twice"):
        open_dataset(write(tmp_path, "a.jpg", "a.png"))


def test_a_field_of_two_kinds_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"'left' is array \(npy\) and image \(jpeg\)"):
        open_dataset(write(tmp_path, "a.left.jpg", "b.left.npy"))


def test_names_that_are_not_utf8_are_an_error_that_says_how_to_rename(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"n\xe4me.txt")).write_bytes(b"")
    with pytest.raises(CatalogError, match=r"b'n\\xe4me.txt' .* is not UTF-8; rename it"):
        open_dataset(tmp_path)


def test_a_path_may_be_a_file_uri_with_escapes(tmp_path: Path) -> None:
    folder = write(tmp_path / "with space#?%", "a.txt")
    for uri in (folder, str(folder), folder.as_uri()):
        data = open_dataset(uri)
        assert data[0]["text"] == b"a.txt"
        assert data.store.uri == folder.as_uri() + "/"


def test_other_hosts_and_unknown_schemes_are_errors() -> None:
    with pytest.raises(StoreError, match="a file:// URI is local"):
        open_dataset("file://host/x")
    with pytest.raises(StoreError, match=r"no store is known for ftp:// \(ftp://•••@host/x"):
        open_dataset("ftp://user:secret@host/x/y")


def test_folders_of_npy_are_a_file_a_sample(tmp_path: Path) -> None:
    for n in range(3):
        np.save(tmp_path / f"{n}.npy", np.full((2, n + 1), n, np.float32))
    data = open_dataset(tmp_path)
    assert [f.kind for f in data.fields] == ["array"]
    assert data[2]["array"].tolist() == [[2, 2, 2], [2, 2, 2]]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_each_array_of_a_folder_of_npz_is_a_field(tmp_path: Path, save: object) -> None:
    for n in range(5):
        save(
            tmp_path / f"{n}.npz",
            x=np.full((3, 4), n, np.int16),
            y=np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        )
    data = open_dataset(tmp_path)

    assert [(f.name, f.kind) for f in data.fields] == [("x", "array"), ("y", "array")]
    assert data.catalog.keys() == [f"{n}.npz" for n in range(5)]
    for n in range(5):
        assert np.array_equal(data[n]["x"], np.full((3, 4), n, np.int16))
        assert np.array_equal(data[n]["y"], np.arange(6.0).reshape(2, 3))


def test_an_npz_lies_about_its_size_without_taking_memory(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "0.npz", x=np.zeros(1 << 22, np.uint8))
    data = open_dataset(tmp_path)
    raw = (tmp_path / "0.npz").read_bytes()
    at = data.catalog.addresses("x", np.array([0]))
    assert int(at.length[0]) < len(raw) < 10_000
    assert data[0]["x"].nbytes == 1 << 22


def test_a_damaged_array_is_an_error_that_names_the_sample(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.arange(100))
    os.truncate(tmp_path / "0.npy", 500)
    with pytest.raises(
        DataError, match=r"sample 0 \(0.npy in .*\), field 'array': as npy: it ends after 372 of 800 bytes"
    ):
        open_dataset(tmp_path)[0]


def test_a_sample_without_the_first_field_is_named_by_another_of_its_files(tmp_path: Path) -> None:
    write(tmp_path, "1.txt", "2.json")
    data = open_dataset(tmp_path)
    assert data.catalog.keys() == ["1.txt", "2.json"]
    with pytest.raises(DataError, match="is not null"):
        data[1]
    with Loader(data, 2) as loader, pytest.raises(DataError, match="is not null"):
        list(loader)


def test_a_named_pipe_is_no_sample_and_nothing_waits_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(write(tmp_path, "1.txt") / "2.txt")
    data = open_dataset(tmp_path)
    assert data[0]["text"] == b"1.txt"
    with pytest.raises(StoreError, match="not a file"):
        data[1]


def test_a_link_to_itself_is_as_a_link_to_nothing(tmp_path: Path) -> None:
    (write(tmp_path, "a/1.txt") / "a" / "2.txt").symlink_to("2.txt")
    data = open_dataset(tmp_path)
    assert data[0]["text"] == b"a/1.txt"
    with pytest.raises(StoreError):
        data[1]


def test_two_dots_in_a_row_are_no_field_without_a_name(tmp_path: Path) -> None:
    assert open_dataset(write(tmp_path, "a..txt"))[0]["text"] == b"a..txt"
