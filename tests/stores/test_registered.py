"""A store of one's own under its own scheme: opened, looked at and loaded like any other."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from tests.stores.test_conformance import InMemory

import penstock
from penstock.errors import MissingError, StoreError
from penstock.pack import PackOptions, pack
from penstock.stores import register

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def objects_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def registered(scheme: str, objects: Mapping[str, bytes]) -> None:
    """``scheme://a/b`` holds the objects whose keys begin with ``a/b/``; ``scheme://`` alone all."""

    def store(root: str, options: Mapping[str, str]) -> InMemory:
        below = root.removeprefix(f"{scheme}://").strip("/")
        folder = f"{below}/" if below else ""
        return InMemory(
            {key.removeprefix(folder): data for key, data in objects.items() if key.startswith(folder)}
        )

    register(scheme, store)


def everything(data: penstock.Dataset) -> list[tuple[int, int, bytes]]:
    with penstock.Loader(data, 8, transform=[penstock.Resize((16, 16))], arrays="numpy") as loader:
        return sorted(
            (int(id), int(label), image.tobytes())
            for batch in loader
            for id, label, image in zip(batch.ids, batch["label"], batch["image"], strict=True)
        )


def test_class_folders(picture_folder: Path) -> None:
    registered("vault", {f"photos/{key}": data for key, data in objects_of(picture_folder).items()})
    data = penstock.open("vault://photos")
    local = penstock.open(picture_folder)
    assert data.classes == local.classes
    assert (data[7]["image"] == local[7]["image"]).all()
    assert everything(data) == everything(local)
    assert everything(pickle.loads(pickle.dumps(data))) == everything(local)


def test_tar_shards_with_their_index_in_the_cache(
    tar_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    registered(
        "vault", {f"tars/{key}": data for key, data in objects_of(tar_folder).items() if key.endswith(".tar")}
    )
    data = penstock.open("vault://tars")
    assert len(data) == 20
    assert data[13]["text"] == b"word " * 14


def test_packed_shards(picture_folder: Path, tmp_path: Path) -> None:
    pack(str(picture_folder), tmp_path / "packed", PackOptions(shard_size=24 << 10), quiet=True)
    registered("shards", {f"set/{key}": data for key, data in objects_of(tmp_path / "packed").items()})
    assert everything(penstock.open("shards://set")) == everything(penstock.open(picture_folder))


def test_what_is_not_there_is_an_error(picture_folder: Path) -> None:
    objects = {f"photos/{key}": data for key, data in objects_of(picture_folder).items()}
    registered("vault", objects)
    with pytest.raises(StoreError, match="nothing at vault://photos/zebras"):
        penstock.open("vault://photos/zebras")
    data = penstock.open("vault://photos")
    gone = f"photos/{data.catalog.keys()[3]}"
    del objects[gone]
    with penstock.Loader(data, 8) as loader, pytest.raises(MissingError):
        list(loader)
    with pytest.raises(MissingError):
        data[3]


@pytest.mark.parametrize("scheme", ["s3", "file", "Vault", "", "v", "a b", "v://"])
def test_schemes_that_cannot_be_taken(scheme: str) -> None:
    with pytest.raises(ValueError, match="scheme"):
        register(scheme, lambda root, options: InMemory({}))
