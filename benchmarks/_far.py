"""What the network suite stands on: samples behind a real server, in every form that somebody needs, and a wire before it.

The server is nginx (the S3 server that the tests use carries fewer objects a second than the claims need, and would be
measured in place of its clients); it answers GET and HEAD as S3 does and gives listings of buckets. The wire is
``tests/servers/slowwire``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _data
from peers._environment import PEERS, python_of

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))
from servers import Server, Static, Wire, nginx, slowwire  # noqa: E402 -- found only now

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 110_000
BATCH = 256
TAR = 64
"""Samples a tar, as ``peers/far/convert.py`` has it."""


@dataclass
class Stage:
    """A running server, and where its data are."""

    server: Server
    count: int
    direct: str
    wire: Wire | None
    folder: Path
    buckets: dict[str, str]

    @property
    def endpoint(self) -> str:
        """What clients talk to: the wire where there is one."""
        return self.wire.endpoint if self.wire is not None else self.direct

    def described(self) -> Path:
        """The file that says all this to a measured process."""
        environment = {
            "AWS_ACCESS_KEY_ID": "penstock",
            "AWS_SECRET_ACCESS_KEY": "penstock-secret",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "S3_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
            # What was listed once would hide the listing's cost, and what is fetched once its fetch.
            "PENSTOCK_CACHE": str(self.folder / "cache"),
        }
        path = self.folder / "stage.json"
        told = {
            "endpoint": self.endpoint,
            "count": self.count,
            "size": SIZE,
            "batch": BATCH,
            "tar_count": -(-self.count // TAR),
            "environment": environment,
            "local": str(_data.FOLDER / self.buckets["objects"]),
            **self.buckets,
        }
        path.write_text(json.dumps(told))
        return path


def form(objects: Path, name: str, count: int) -> Path:
    """The same samples as tars or in an opponent's own shards, made by its own writer."""
    script = PEERS / "far" / "convert.py"

    def make(folder: Path) -> None:
        command = [python_of("far"), str(script), str(objects), name, str(folder), str(count), str(SIZE)]
        subprocess.run(command, check=True, capture_output=True, timeout=1200, stdin=subprocess.DEVNULL)

    return _data._whole(_data.FOLDER / f"{name}-{count}-{SIZE}", make)


def packed(objects: Path, count: int) -> Path:
    """The same samples as penstock's shards with checksums."""
    from penstock.pack import pack

    return _data._whole(
        _data.FOLDER / f"packed-{count}-{SIZE}", lambda folder: pack(str(objects), folder / "data")
    )


@contextmanager
def stage(
    folder: Path, count: int, *, forms: tuple[str, ...] = (), wire: bool = True, **settings: Any
) -> Iterator[Stage]:
    """Serve `count` objects; with `wire`, behind one with `settings`."""
    objects = _data.objects(count, SIZE)
    buckets = {"objects": objects.name}
    for name in forms:
        made = packed(objects, count) if name == "packed" else form(objects, name, count)
        buckets[name] = made.name
    with nginx(_data.FOLDER, folder=folder, buckets=tuple(buckets.values())) as server:
        warm(*(_data.FOLDER / bucket for bucket in buckets.values()))
        if not wire:
            yield Stage(server.server, count, server.endpoint, None, folder, buckets)
            return
        with slowwire(server.port, folder=folder, **settings) as between:
            yield Stage(server.server, count, server.endpoint, between, folder, buckets)


def warm(*folders: Path) -> None:
    """Read everything once: no figure shall depend on what the page cache held."""
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                with path.open("rb", buffering=0) as file:
                    while file.read(1 << 22):
                        pass


__all__ = ["BATCH", "SIZE", "Stage", "Static", "form", "packed", "stage", "warm"]
