"""gs:// and az:// against emulators: opened, read by range, listed, packed to and from. ``make clouds`` installs them."""

from __future__ import annotations

import hashlib
import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.servers import ServerMissing
from tests.servers.clouds import Cloud, azure, google

import penstock
from penstock import _native
from penstock.errors import MissingError, StoreError
from penstock.pack import PackOptions, pack, verify
from penstock.sources.listing import StoreSpec
from penstock.testing import StoreSuite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module", params=[google, azure], ids=["google", "azure"])
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    try:
        with request.param(folder=tmp_path_factory.mktemp("cloud")) as running:
            yield running
    except ServerMissing as missing:
        pytest.skip(str(missing))


def put_tree(cloud: Cloud, root: Path, prefix: str) -> str:
    for path in root.rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            cloud.put(f"{prefix}/{path.relative_to(root).as_posix()}", path.read_bytes())
    return f"{cloud.root}/{prefix}"


def needs_writing(cloud: Cloud) -> None:
    if not cloud.is_writable:
        pytest.skip("this emulator does not serve the interface that objects are written by")


def digests(objects: dict[str, bytes]) -> dict[str, str]:
    return {key: hashlib.sha256(data).hexdigest() for key, data in objects.items()}


def below(cloud: Cloud, uri: str) -> dict[str, bytes]:
    store = _native.Store.object(uri, cloud.storage)
    return {key: store.read(key) for key, _, _ in store.list()}


def assert_same(far: penstock.Dataset, near: penstock.Dataset) -> None:
    assert len(far) == len(near)
    assert far.columns == near.columns
    with (
        penstock.Loader(far, 8, seed=1, arrays="numpy", timeout=30) as one,
        penstock.Loader(near, 8, seed=1, arrays="numpy") as two,
    ):
        for left, right in zip(one, two, strict=True):
            assert left.ids.tolist() == right.ids.tolist()
            for name in right:
                for mine, theirs in zip(left[name], right[name], strict=True):
                    np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("kind", ["pictures", "tars", "arrays"])
def test_what_lies_there_is_opened_and_loaded(
    cloud: Cloud, picture_folder: Path, tar_folder: Path, array_folder: Path, kind: str
) -> None:
    root = {"pictures": picture_folder, "tars": tar_folder, "arrays": array_folder}[kind]
    uri = put_tree(cloud, root, f"open/{kind}")
    assert_same(penstock.open(uri, storage=cloud.storage), penstock.open(root))


def test_packed_there_and_from_there_in_the_same_bytes(
    cloud: Cloud, picture_folder: Path, tmp_path: Path
) -> None:
    needs_writing(cloud)
    options = PackOptions(shard_size=32 << 10, threads=2, shuffle=1)
    pack(str(picture_folder), tmp_path / "near", options)
    near = {path.name: path.read_bytes() for path in (tmp_path / "near").glob("*.tar")}
    uri = put_tree(cloud, picture_folder, "photos")
    out = f"{cloud.root}/out"
    pack(uri, out, options, storage=cloud.storage, dest_storage=cloud.storage)
    found = below(cloud, out)
    assert digests({name: data for name, data in found.items() if name.endswith(".tar")}) == digests(near)
    assert not [name for name in found if name.startswith(".pack")], "what only the packing needed is gone"
    assert verify(out, storage=cloud.storage).bad == ()
    assert pack(uri, out, options, storage=cloud.storage, dest_storage=cloud.storage).was_complete
    assert_same(penstock.open(out, storage=cloud.storage), penstock.open(tmp_path / "near"))


def test_packed_from_there_to_a_folder_in_the_same_bytes(
    cloud: Cloud, picture_folder: Path, tmp_path: Path
) -> None:
    options = PackOptions(shard_size=32 << 10, threads=2, shuffle=1)
    pack(str(picture_folder), tmp_path / "near", options)
    pack(put_tree(cloud, picture_folder, "from"), tmp_path / "far", options, storage=cloud.storage)
    near, far = (
        digests({path.name: path.read_bytes() for path in (tmp_path / name).glob("*.tar")})
        for name in ("near", "far")
    )
    assert near
    assert near == far
    # And what was packed elsewhere and copied there is opened like any.
    uri = put_tree(cloud, tmp_path / "near", "copied")
    assert_same(penstock.open(uri, storage=cloud.storage), penstock.open(tmp_path / "near"))


def test_a_shard_of_several_parts_is_written_whole(cloud: Cloud, tmp_path: Path) -> None:
    needs_writing(cloud)
    root = tmp_path / "large"
    root.mkdir()
    for number in range(9):
        values = np.random.default_rng(number).integers(0, 255, 4 << 20, np.uint8)
        np.save(root / f"{number}.npy", values)
    pack(str(root), f"{cloud.root}/large", dest_storage=cloud.storage)
    pack(str(root), tmp_path / "near")
    found = below(cloud, f"{cloud.root}/large")
    near = {path.name: path.read_bytes() for path in (tmp_path / "near").glob("*.tar")}
    assert digests({name: data for name, data in found.items() if name.endswith(".tar")}) == digests(near)


def test_what_is_not_there_and_who_is_not_let_in(cloud: Cloud) -> None:
    with pytest.raises((MissingError, StoreError), match=f"{cloud.root}/nothing"):
        penstock.open(f"{cloud.root}/nothing", storage=cloud.storage)
    if "account_key" in cloud.storage:
        wrong = {**cloud.storage, "account_key": "AAAA" + cloud.storage["account_key"][4:]}
        with pytest.raises(penstock.errors.DeniedError, match="credentials") as caught:
            penstock.open(cloud.root, storage=wrong)
        assert wrong["account_key"] not in str(caught.value)


def test_an_emulator_is_found_in_the_environment(
    cloud: Cloud, array_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = put_tree(cloud, array_folder, "environment")
    if "account_key" in cloud.storage:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", cloud.storage["account_name"])
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", cloud.storage["account_key"])
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", cloud.storage["endpoint"])
    else:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.storage["endpoint"].partition("://")[2])
    assert_same(penstock.open(uri), penstock.open(array_folder))


class TestContract(StoreSuite):
    @pytest.fixture(autouse=True)
    def server(self, cloud: Cloud) -> None:
        self.cloud = cloud

    @contextmanager
    def store(self, objects: dict[str, bytes]) -> Iterator[Any]:
        prefix = f"contract-{next(_NUMBERS)}"
        for key, data in objects.items():
            self.cloud.put(f"{prefix}/{key}", data)
        yield StoreSpec(f"{self.cloud.root}/{prefix}", self.cloud.storage)

    @contextmanager
    def stalled(self) -> Iterator[Any]:
        import socket

        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            endpoint = f"http://127.0.0.1:{port}"
            yield StoreSpec(f"{self.cloud.root}/x", {**self.cloud.storage, "endpoint": endpoint})
