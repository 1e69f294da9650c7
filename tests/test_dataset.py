"""The Dataset: samples one by one, and cut to what is wanted, without a copy of anything."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.support import encoded, open_files, picture

import penstock
from penstock.errors import CatalogError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def pictures(picture_folder: Path) -> penstock.Dataset:
    return penstock.open(picture_folder)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> penstock.Dataset:
    """24 pictures with a CSV of label, age (two are missing) and site."""
    root = tmp_path_factory.mktemp("table")
    lines = ["file,label,age,site"]
    for number in range(24):
        (root / f"{number:02}.png").write_bytes(encoded(picture(number), "PNG"))
        age = "" if number in (5, 6) else str(20 + number)
        lines.append(f"{number:02}.png,{('cat', 'dog', 'cow')[number % 3]},{age},s{number // 8}")
    (root / "labels.csv").write_text("\n".join(lines))
    return penstock.open(root)


@pytest.mark.parametrize(
    ("mode", "kind", "shape", "dtype"),
    [
        ("RGB", "PNG", (40, 48, 3), np.uint8),
        ("L", "PNG", (40, 48, 1), np.uint8),
        ("RGBA", "PNG", (40, 48, 4), np.uint8),
        ("I;16", "PNG", (40, 48, 1), np.uint16),
        ("RGB", "WEBP", (40, 48, 3), np.uint8),
    ],
)
def test_a_sample_is_a_picture_as_it_is_stored(
    tmp_path: Path, mode: str, kind: str, shape: tuple[int, ...], dtype: type
) -> None:
    if mode == "I;16":
        image = Image.fromarray(np.arange(48 * 40, dtype=np.uint16).reshape(40, 48) * 33)
    else:
        image = picture(3).convert(mode)
    options = {"lossless": True} if kind == "WEBP" else {}
    (tmp_path / f"one.{kind.lower()}").write_bytes(encoded(image, kind, **options))
    sample = penstock.open(tmp_path)[0]
    assert sample["image"].dtype == dtype
    assert sample["image"].shape == shape
    assert (sample["image"].squeeze() == np.asarray(image)).all()
    assert (sample.id, sample.key) == (0, f"one.{kind.lower()}")


def test_samples_of_the_dataset_are_those_of_the_loader(pictures: penstock.Dataset) -> None:
    with penstock.Loader(pictures, 7, layout="NHWC", arrays="numpy") as loader:
        for batch in loader:
            for id, image, label in zip(batch.ids, batch["image"], batch["label"], strict=True):
                sample = pictures[int(id)]
                assert (sample["image"] == image).all()
                assert sample["label"] == label


def test_every_field_of_a_sample_in_a_tar(tar_folder: Path) -> None:
    data = penstock.open(tar_folder)
    sample = data[13]
    assert sample["image"].shape == (40, 48, 3)
    assert set(np.unique(sample["mask"])) <= {0, 7}
    assert sample["label"] == 13 % 4
    assert sample["text"] == b"word " * 14
    with pytest.raises(KeyError, match="image, mask, text, label"):
        sample["segmentation"]


def test_positions_count_from_either_end(pictures: penstock.Dataset) -> None:
    assert pictures[-1].id == 59
    assert [sample.id for sample in pictures[10:4:-2]] == [10, 8, 6]
    assert pictures.take([3, -1, 3]).catalog.ids().tolist() == [3, 59, 3]
    for wrong in (60, -61):
        with pytest.raises(IndexError):
            pictures[wrong]
    with pytest.raises(IndexError):
        pictures.take([60])


def test_columns_select_and_classes(table: penstock.Dataset) -> None:
    assert set(table.columns) == {"label", "age", "site"}
    assert [field.name for field in table.fields] == ["image", "label"]
    with pytest.raises(CatalogError, match=r"empty in 2 rows.*where\('age is not null'\)"):
        table.select("age", "image")
    chosen = table.where("age is not null").select("age", "image")
    assert [field.name for field in chosen.fields] == ["age", "image"]
    assert list(chosen[0]) == ["age", "image"]
    with pytest.raises(CatalogError, match="weight"):
        table.select("weight")
    assert table.classes == ("cat", "cow", "dog")
    assert table[1]["label"] == 2


def test_the_catalog_as_a_data_frame(table: penstock.Dataset) -> None:
    frame = table.catalog.to_pandas()
    assert len(frame) == 24
    assert {"id", "key", "label", "age", "site"} <= set(frame.columns)
    assert frame["age"].isna().sum() == 2
    assert frame["key"].tolist() == [f"{number:02}.png" for number in range(24)]
    few = table.where("site == 's1'").catalog.to_pandas(["id", "site"])
    assert few["id"].tolist() == list(range(8, 16))
    assert list(few.columns) == ["id", "site"]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("label == 'dog'", [n for n in range(24) if n % 3 == 1]),
        ("label != 'dog'", [n for n in range(24) if n % 3 != 1]),
        ("label in ('cat', 'cow') and site == 's2'", [n for n in range(16, 24) if n % 3 != 1]),
        ("age >= 40", list(range(20, 24))),
        ("20 < age < 24", [1, 2, 3]),
        ("age is null", [5, 6]),
        ("age is not null and not (age < 42)", [22, 23]),
        ("not age < 42", [22, 23]),
        ("id in (3, 4) or key == '07.png'", [3, 4, 7]),
        ("site not in ('s0', 's1') and label == 'cat'", [18, 21]),
        ("`age` == 20 or age == 2.1e1", [0, 1]),
    ],
)
def test_conditions(table: penstock.Dataset, condition: str, expected: list[int]) -> None:
    assert table.where(condition).catalog.ids().tolist() == expected


def test_conditions_by_keyword_list_and_arrow(table: penstock.Dataset) -> None:
    assert table.where(label="dog", site="s0").catalog.ids().tolist() == [1, 4, 7]
    assert table.where(site=["s0", "s2"]).where(label="cat").catalog.ids().tolist() == [0, 3, 6, 18, 21]
    assert table.where(age=None).catalog.ids().tolist() == [5, 6]
    assert table.where(pc.field("age") > 41).catalog.ids().tolist() == [22, 23]
    with pytest.raises(CatalogError, match="no class 'horse'; there are cat, cow, dog"):
        table.where(label="horse")


@pytest.mark.parametrize(
    ("condition", "word"),
    [
        ("weight > 3", "weight"),
        ("age >", "age >"),
        ("age > 'three'", "age"),
        ("label == 'dog", "dog"),
        ("__import__('os').system('true')", "__import__"),
        ("(" * 500 + "age > 3" + ")" * 500, "deep"),
        ("", "condition"),
    ],
)
def test_conditions_that_make_no_sense_are_errors(table: penstock.Dataset, condition: str, word: str) -> None:
    with pytest.raises(CatalogError, match=word.replace("(", r"\(")):
        table.where(condition)


@given(text=st.text(alphabet="age labelsite=<>!'\"()and or not in is null 0123456789.`,-", max_size=40))
def test_any_text_is_a_condition_or_an_error(text: str) -> None:
    from penstock.condition import parse

    try:
        parse(text)
    except CatalogError as error:
        assert str(error)


def test_narrowing_keeps_ids_and_what_is_in_a_batch(table: penstock.Dataset) -> None:
    data = table.where("age is not null").select("image", "age").sample(10, seed=4)
    assert len(data) == 10
    assert [field.name for field in data.fields] == ["image", "age"]
    with penstock.Loader(data, 4, seed=1) as loader:
        for batch in loader:
            assert (batch["age"].numpy() == batch.ids + 20).all()


@pytest.mark.parametrize("kind", ["pictures", "table", "tar"])
def test_a_dataset_sent_to_another_process_is_the_same(
    kind: str, pictures: penstock.Dataset, table: penstock.Dataset, tar_folder: Path
) -> None:
    data = {"pictures": pictures, "table": table, "tar": penstock.open(tar_folder)}[kind]
    part = data[3:17:2]
    sent = pickle.dumps(part)
    assert len(sent) < 20_000, "a dataset sends its catalog's address and not its samples"
    again = pickle.loads(sent)
    assert again.fingerprint() == part.fingerprint()
    code = (
        "import pickle, sys; data = pickle.loads(sys.stdin.buffer.read()); "
        "print(data.fingerprint(), data[2].id, data[2]['image'].sum())"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], input=sent, capture_output=True, check=True, timeout=60
    ).stdout.decode()
    assert told.split() == [part.fingerprint(), "7", str(part[2]["image"].sum())]


def test_the_fingerprint_is_that_of_the_samples(table: penstock.Dataset, picture_folder: Path) -> None:
    assert penstock.open(picture_folder).fingerprint() == penstock.open(picture_folder).fingerprint()
    prints = {
        data.fingerprint()
        for data in (table, table[:23], table.take(range(23, -1, -1)), table.select("image"))
    }
    assert len(prints) == 4


def test_looking_at_samples_leaves_no_file_open(pictures: penstock.Dataset) -> None:
    pictures[0]
    before = open_files()
    for number in range(30):
        pictures[number]
    assert open_files() == before


def test_a_dataset_says_what_it_is(table: penstock.Dataset) -> None:
    assert "24 samples of image, label" in repr(table)
    assert "Sample(id=0" in repr(table[0])
