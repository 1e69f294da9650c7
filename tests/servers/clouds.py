"""Emulators of Google Cloud Storage (fake-gcs-server) and of Azure Blob Storage (Azurite), where ``make clouds`` has put them."""

from __future__ import annotations

import base64
import hmac
import json
import shutil
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from .process import Server, ServerMissing, answers, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

HOME = Path(__file__).resolve().parents[2] / ".toolchain" / "clouds"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own: it is in its documentation, and the same everywhere."""


@dataclass
class Cloud:
    """A running emulator with one bucket or container, ``root``, and what ``storage=`` says of it."""

    server: Server
    root: str
    storage: dict[str, str] = field(repr=False)
    upload: str = ""
    """Where objects are put by another way than the store's own client, if that one's is not served."""

    @property
    def is_writable(self) -> bool:
        """Whether the store's own client can write there."""
        return not self.upload

    def put(self, key: str, data: bytes) -> None:
        """An object, however it gets there."""
        if self.is_writable:
            from penstock import _native

            _native.Store.object(self.root, self.storage).put(key, data)
            return
        request = urllib.request.Request(self.upload + quote(key, safe=""), data=data, method="POST")
        request.add_header("Content-Type", "application/octet-stream")
        urllib.request.urlopen(request, timeout=30.0).close()


@contextmanager
def google(*, folder: Path) -> Iterator[Cloud]:
    """Start fake-gcs-server, its objects in memory. It knows no credentials.

    It serves the XML interface, which the store's client speaks, for reading and listing, and not for writing.
    """
    binary = HOME / "bin" / "fake-gcs-server"
    if not binary.exists():
        raise ServerMissing("fake-gcs-server is not installed: make clouds")
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    command = [str(binary), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    # The addresses that it gives for uploads in parts.
    command += ["-external-url", endpoint, "-public-host", f"127.0.0.1:{port}"]
    log = folder / f"fake-gcs-server-{port}.log"
    with Server("fake-gcs-server", command, log=log, ready=lambda: answers(port), patience=20.0) as server:
        wanted = json.dumps({"name": "tests"}).encode()
        make = urllib.request.Request(f"{endpoint}/storage/v1/b?project=tests", data=wanted, method="POST")
        make.add_header("Content-Type", "application/json")
        urllib.request.urlopen(make, timeout=10.0).close()
        upload = f"{endpoint}/upload/storage/v1/b/tests/o?uploadType=media&name="
        yield Cloud(server, "gs://tests", {"endpoint": endpoint, "anonymous": "true"}, upload)


def _make_container(endpoint: str, name: str) -> None:
    """Ask for a container, signed with the account's key."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in sorted(headers.items()))]
    lines += [f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"]
    signed = hmac.new(base64.b64decode(KEY), "\n".join(lines).encode(), "sha256").digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signed).decode()}"
    make = urllib.request.Request(f"{endpoint}/{name}?restype=container", headers=headers, method="PUT")
    urllib.request.urlopen(make, timeout=10.0).close()


@contextmanager
def azure(*, folder: Path) -> Iterator[Cloud]:
    """Start Azurite's blob service, its objects below ``folder``. Requests are signed with its own account's key."""
    script = HOME / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    node = shutil.which("node")
    if node is None or not script.exists():
        raise ServerMissing("Azurite is not installed: make clouds (needs npm)")
    (port,) = free_ports(1)
    home = folder / f"azurite-{port}"
    home.mkdir()
    command = [node, str(script), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(home)]
    command += ["--disableTelemetry", "--skipApiVersionCheck", "--silent"]
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    with Server("Azurite", command, log=home / "log", ready=lambda: answers(port), patience=30.0) as server:
        _make_container(endpoint, "tests")
        yield Cloud(
            server,
            "az://tests",
            {"account_name": ACCOUNT, "account_key": KEY, "endpoint": endpoint},
        )
