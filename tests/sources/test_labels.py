"""Tables of labels: which column names the files, how its values find them, what becomes of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pytest

from penstock.dataset import open_dataset
from penstock.errors import CatalogError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for n in range(5):
        (tmp_path / f"{n}.txt").write_text(str(n))
    return tmp_path


def table(names: list[str], column: str = "file") -> pd.DataFrame:
    return pd.DataFrame(
        {
            column: names,
            "label": [f"class {n % 2}" for n in range(len(names))],
            "age": [n * 10 for n in range(len(names))],
        }
    )


def save(frame: pd.DataFrame, path: Path) -> None:
    match path.suffix:
        case ".csv":
            frame.to_csv(path, index=False)
        case ".tsv":
            frame.to_csv(path, index=False, sep="\t")
        case ".parquet":
            frame.to_parquet(path, index=False)
        case ".jsonl":
            frame.to_json(path, orient="records", lines=True)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".jsonl"])
def test_each_kind_of_table_labels_the_files(folder: Path, suffix: str) -> None:
    save(table([f"{n}.txt" for n in (3, 0, 4, 1, 2)]), folder / f"labels{suffix}")
    for uri in (folder, folder / f"labels{suffix}"):
        data = open_dataset(uri)
        assert data.catalog.keys() == [f"{n}.txt" for n in range(5)]
        assert data.catalog.column("age").tolist() == [10, 30, 40, 0, 20]
        assert data.classes == ("class 0", "class 1")
        assert data.catalog.column("label").tolist() == [1, 1, 0, 0, 0]
        assert [f.name for f in data.fields] == ["text", "label"]
        assert data.select("text", "age")[4]["age"] == 20


@pytest.mark.parametrize("column", ["file", "Filename", "path", "image", "KEY", "id"])
def test_the_column_that_names_files_is_found(folder: Path, column: str) -> None:
    save(table([f"{n}.txt" for n in range(5)], column), folder / "l.csv")
    assert open_dataset(folder).columns == ("label", "age")


def test_a_table_without_such_a_column_says_which_were_looked_for(folder: Path) -> None:
    save(table([f"{n}.txt" for n in range(5)], "scan"), folder / "l.csv")
    with pytest.raises(CatalogError, match=r"looked for file, filename.*it has scan, label, age: rename"):
        open_dataset(folder)


@pytest.mark.parametrize(
    "shape", ["{folder}/sub/{n}.txt", "./sub/{n}.txt", "sub/{n}.txt", "sub/{n}", "{n}.txt", "{n}"]
)
def test_files_are_found_by_path_stem_or_name(tmp_path: Path, shape: str) -> None:
    (tmp_path / "sub").mkdir()
    for n in "abc":
        (tmp_path / "sub" / f"{n}.txt").write_text(n)
    save(table([shape.format(folder=tmp_path, n=n) for n in "cab"]), tmp_path / "l.csv")
    assert open_dataset(tmp_path).catalog.column("age").tolist() == [10, 20, 0]


def test_names_that_several_folders_have_are_unclear(tmp_path: Path) -> None:
    for sub in ("x", "y"):
        (tmp_path / sub).mkdir()
        (tmp_path / sub / "a.txt").write_text("a")
    save(table(["a.txt"]), tmp_path / "l.csv")
    with pytest.raises(CatalogError, match=r"1 rows name files of which there are several: a.txt"):
        open_dataset(tmp_path)


def test_rows_without_files_are_an_error(folder: Path) -> None:
    save(table(["0.txt", "9.txt", "7.txt"]), folder / "l.csv")
    with pytest.raises(
        CatalogError, match=r"2 of 3 rows name files that are not in .*: 9.txt, 7.txt; add the files"
    ):
        open_dataset(folder)


def test_a_file_named_twice_is_an_error(folder: Path) -> None:
    save(table(["0.txt", "1.txt", "0"]), folder / "l.csv")
    with pytest.raises(CatalogError, match=r"1 samples are named twice, such as 0;"):
        open_dataset(folder)


def test_files_without_rows_are_left_out_and_said_so(folder: Path) -> None:
    (folder / "3.json").write_text("{}")
    save(table(["4.txt", "3.txt", "1.txt"]), folder / "l.csv")
    with pytest.warns(UserWarning, match="2 of 5 samples have no row there"):
        data = open_dataset(folder)
    assert [s["text"] for s in data.select("text")] == [b"1", b"3", b"4"]
    assert data.where("json is not null")[0]["json"] == b"{}"
    assert data.catalog.column("age").tolist() == [20, 10, 0]
    assert data.catalog.objects.to_pylist() == ["1.txt", "3.json", "3.txt", "4.txt"]


def test_a_column_named_as_what_the_files_hold_does_not_hide_it(folder: Path) -> None:
    (folder / "l.csv").write_text("file,label,text\n" + "".join(f"{n}.txt,{n},{n + 10}\n" for n in range(5)))
    data = open_dataset(folder)
    assert data.columns == ("label", "original_text")
    assert [data[n]["text"] for n in range(2)] == [b"0", b"1"]
    assert data.catalog.column("original_text").tolist() == [10, 11, 12, 13, 14]


def test_numbers_stay_numbers_and_gaps_stay_gaps(folder: Path) -> None:
    (folder / "l.csv").write_text(
        "file,label,age,id\n" + "".join(f"{n}.txt,{n * 7},{'' if n == 2 else n},{n}\n" for n in range(5))
    )
    data = open_dataset(folder)
    assert data.classes == ()
    assert data.catalog.column("label").tolist() == [0, 7, 14, 21, 28]
    assert data.columns == ("label", "age", "original_id")
    assert data.where("age is null").catalog.ids().tolist() == [2]
    with pytest.raises(
        CatalogError, match="'age' holds int64 and is empty in 1 rows, which a tensor cannot hold"
    ):
        data.select("age")
    assert data.where("age is not null").select("age").fields[0].dtype == "int64"


def test_an_empty_label_is_an_error_that_names_the_row(folder: Path) -> None:
    (folder / "l.csv").write_text("file,label\n2.txt,3\n0.txt,1\n1.txt,\n")
    with (
        pytest.warns(UserWarning, match="label"),
        pytest.raises(CatalogError, match=r"'label' is empty in 1 rows \(row 3\)"),
    ):
        open_dataset(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\n", "has no rows"),
        ("file,label\n0.txt,1\n1.txt\n", "cannot be read as a table"),
        ("file,file\n0.txt,1\n", "two columns named 'file'"),
        ("file,@x\n0.txt,1\n1.txt,1\n2.txt,1\n3.txt,1\n4.txt,1\n", "begins with @"),
        ("file,label\n,1\n0.txt,2\n", "'file' is empty in row 1"),
    ],
)
def test_tables_that_make_no_sense_are_errors(folder: Path, text: str, message: str) -> None:
    (folder / "l.csv").write_text(text)
    with pytest.raises(CatalogError, match=message):
        open_dataset(folder)


def test_several_tables_are_an_error_that_says_how_to_choose(folder: Path) -> None:
    save(table([f"{n}.txt" for n in range(5)]), folder / "a.csv")
    save(table([f"{n}.txt" for n in range(5)]), folder / "b.csv")
    with pytest.raises(CatalogError, match=r"2 tables \(a.csv, b.csv\).*open it by its own name"):
        open_dataset(folder)


def test_a_table_of_very_many_columns_is_read_in_a_moment(folder: Path) -> None:
    names = [f"c{n}" for n in range(30_000)]
    (folder / "labels.csv").write_text(",".join(["file", *names]) + "\n1.txt" + ",1" * len(names) + "\n")
    with pytest.warns(UserWarning, match="left out"):
        assert len(open_dataset(folder / "labels.csv").columns) == 30_000
