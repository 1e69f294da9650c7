"""Packs into a bucket, in child processes that kill themselves at the n-th thing they do to the store.

    python killed.py SRC URI EVERY

For every EVERY-th n from the first to the last such moment: pack and be killed, look at what is there, pack to the end,
compare all of it with a pack that nobody disturbed. How the store is reached is in the environment. Prints a JSON object:
how many moments there were, and what was not as it should be.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import signal
import sys
import threading

import pyarrow.compute
import pyarrow.parquet  # noqa: F401

import penstock.sources.folder
import penstock.sources.packed  # noqa: F401
from penstock.pack import PackOptions, far_work, pack
from penstock.sources.far import open_store

WRITES = ("put", "begin_upload", "put_parts", "end_upload", "abort_upload", "delete")
OPTIONS = PackOptions(shard_size=12 << 20, threads=2)


class Deadly:
    """A store that kills this process at its n-th write: before it where n is odd, else after it."""

    def __init__(self, store: object, moment: int) -> None:
        self._store = store
        self._moment = moment
        self._count = itertools.count(1)
        self._lock = threading.Lock()

    def __getattr__(self, name: str):
        call = getattr(self._store, name)
        if name not in WRITES:
            return call

        def counted(*args: object, **named: object):
            with self._lock:
                is_now = next(self._count) == self._moment
            if is_now and self._moment % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*args, **named)
            if is_now:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return counted


def packed(source: str, uri: str, moment: int) -> None:
    far_work.PART = 5 << 20
    if moment:
        make = far_work.FarWork.__init__

        def deadly(self, *args: object) -> None:
            make(self, *args)
            self._store = Deadly(self._store, moment)

        far_work.FarWork.__init__ = deadly
    pack(source, uri, OPTIONS)


def digests(uri: str, into) -> None:
    store = open_store(uri, {})
    into.send({key: hashlib.sha256(store.read(key)).hexdigest() for key, _, _ in store.list()})


def there(uri: str) -> dict[str, str]:
    # The parent opens no store: its children are forked.
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.Process(target=digests, args=(uri, theirs))
    child.start()
    found: dict[str, str] = ours.recv()
    child.join()
    return found


def run(source: str, uri: str, moment: int) -> bool:
    """Whether the pack got to its end."""
    child = multiprocessing.Process(target=packed, args=(source, uri, moment))
    child.start()
    child.join(60)
    if child.exitcode not in (0, -signal.SIGKILL):
        raise SystemExit(f"moment {moment}: the pack failed ({child.exitcode})")
    return child.exitcode == 0


def main() -> None:
    multiprocessing.set_start_method("fork")
    source, uri, every = sys.argv[1], sys.argv[2], int(sys.argv[3])
    run(source, f"{uri}/whole", 0)
    whole = there(f"{uri}/whole")
    wrong: list[str] = []
    moments = with_shards = 0
    for moment in itertools.count(1, every):
        dest = f"{uri}/killed-{moment}"
        if run(source, dest, moment):
            break
        moments += 1
        half = {key: digest for key, digest in there(dest).items() if not key.startswith(".pack/")}
        if any(whole.get(key) != digest for key, digest in half.items()):
            wrong.append(f"moment {moment}: something stands there half written")
        with_shards += bool(half)
        run(source, dest, 0)
        if there(dest) != whole:
            wrong.append(f"moment {moment}: the end is another")
    print(json.dumps({"moments": moments, "with_shards": with_shards, "whole": len(whole), "wrong": wrong}))


if __name__ == "__main__":
    main()
