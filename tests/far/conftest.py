"""A real S3 server for the whole run, a bucket for each test, a web server, and an empty cache folder."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from tests.servers import S3, ServerMissing, Static, nginx, seaweed

from penstock import _native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

_NUMBERS = itertools.count(1)


@dataclass
class Bucket:
    """A place of a test's own in a bucket, and how it is opened."""

    name: str
    """The bucket, or the bucket and a prefix."""
    storage: dict[str, str] = field(repr=False)

    @property
    def uri(self) -> str:
        return f"s3://{self.name}"

    def store(self, prefix: str = "") -> _native.Store:
        return _native.Store.object(f"{self.uri}/{prefix}".rstrip("/"), self.storage)

    def put(self, objects: Mapping[str, bytes]) -> None:
        store = self.store()
        for key, data in objects.items():
            store.put(key, data)

    def put_tree(self, root: Path, prefix: str = "") -> str:
        """Upload the files of a folder, but for hidden ones (an index); gives the URI that they lie below."""
        files = {
            path.relative_to(root).as_posix(): path
            for path in root.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        }
        self.put({f"{prefix}{name}": path.read_bytes() for name, path in files.items()})
        return f"{self.uri}/{prefix}".rstrip("/")

    def all_keys(self) -> list[str]:
        return [key for key, _, _ in self.store().list()]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Files of a CA, of a certificate that it gave to localhost, and of that one's key."""
    trustme = pytest.importorskip("trustme", reason="make servers installs it")
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    files = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
    authority.cert_pem.write_to_path(files[0])
    for blob in issued.cert_chain_pems:
        blob.write_to_path(files[1], append=True)
    issued.private_key_pem.write_to_path(files[2])
    return files


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory, certificates: tuple[Path, Path, Path]) -> Iterator[S3]:
    try:
        with seaweed(folder=tmp_path_factory.mktemp("s3"), certificate=certificates[1:]) as server:
            _native.Store.object("s3://tests", server.storage).put("here", b"")
            yield server
    except ServerMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def bucket(s3: S3) -> Bucket:
    # One bucket for all: the server keeps volumes for each.
    return Bucket(f"tests/{next(_NUMBERS)}", s3.storage)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Callable[..., Static]]:
    """Starts nginx over a folder: ``web(root, listing="json")``."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def start(root: Path, **settings: object) -> Static:
            try:
                return stack.enter_context(nginx(root, folder=tmp_path, **settings))  # type: ignore[arg-type]
            except ServerMissing as missing:
                pytest.skip(str(missing))

        yield start


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and no settings of whoever runs the tests."""
    import os

    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "cache"
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    return folder
