"""Data sets on web servers: where the server lists its folders, and where it does not."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.errors import DeniedError, StoreError
from penstock.pack import PackOptions, pack

from .test_open import assert_same

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(picture_folder: Path, tar_folder: Path, array_folder: Path, tmp_path: Path) -> Path:
    """A packed set, tars, class folders and arrays below one folder."""
    import shutil

    top = tmp_path / "www"
    pack(str(picture_folder), top / "packed", PackOptions(shard_size=32 << 10))
    shutil.copytree(tar_folder, top / "tars", ignore=shutil.ignore_patterns(".*"))
    shutil.copytree(picture_folder, top / "photos")
    shutil.copytree(array_folder, top / "arrays")
    return top


@pytest.mark.parametrize("listing", ["json", "html"])
def test_a_server_that_lists_is_like_a_folder(web, root: Path, listing: str) -> None:
    url = web(root, listing=listing).endpoint
    for name in ("packed", "tars", "photos", "arrays"):
        near = penstock.open(root / name)
        assert_same(penstock.open(f"{url}/{name}"), near)
        assert_same(penstock.open(f"{url}/{name}/"), near)


def test_a_server_that_does_not_list_gives_what_is_named(web, root: Path) -> None:
    url = web(root).endpoint
    assert_same(penstock.open(f"{url}/packed/catalog.parquet"), penstock.open(root / "packed"))
    assert_same(penstock.open(f"{url}/packed/"), penstock.open(root / "packed"))
    assert_same(penstock.open(f"{url}/tars/shard-{{0..1}}.tar"), penstock.open(root / "tars"))
    assert len(penstock.open(f"{url}/tars/shard-1.tar")) == 10
    with pytest.raises(DeniedError, match="does not list it .*open what lies there by name"):
        penstock.open(f"{url}/photos/")
    with pytest.raises(StoreError, match="there is nothing at"):
        penstock.open(f"{url}/nowhere.tar")


def test_a_server_that_wants_a_password(root: Path, tmp_path: Path) -> None:
    import http.server
    import threading

    wanted = "Basic " + base64.b64encode(b"me:pass word").decode()

    class Guarded(http.server.SimpleHTTPRequestHandler):
        """Python's own server: lists folders, knows no ranges."""

        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(root))  # type: ignore[arg-type]

        def _refused(self) -> bool:
            if self.headers["Authorization"] == wanted:
                return False
            self.send_error(401)
            return True

        def do_GET(self) -> None:
            self._refused() or super().do_GET()

        def do_HEAD(self) -> None:
            self._refused() or super().do_HEAD()

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            place = f"127.0.0.1:{server.server_address[1]}"
            far = penstock.open(f"http://me:pass%20word@{place}/photos/")
            assert_same(far, penstock.open(root / "photos"))
            assert "pass" not in repr(far)
            with pytest.raises(DeniedError, match="check the credentials"):
                penstock.open(f"http://{place}/photos/")
            with pytest.raises(StoreError, match="parts of objects|range|Range"):
                _ = penstock.open(f"http://me:pass%20word@{place}/tars/shard-0.tar")[0]
        finally:
            server.shutdown()
            thread.join(10)
