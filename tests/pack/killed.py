"""Packs in child processes that kill themselves with SIGKILL at the n-th thing they do to the disk.

    python killed.py SRC FOLDER MODE EVERY

For every EVERY-th n from the first to the last such moment: pack and be killed, look at what is there, pack again (killed a
second time at another moment if MODE is "twice"), pack to the end, compare all of it with a pack that nobody disturbed. Prints
a JSON object: how many moments there were, and what was not as it should be.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
from pathlib import Path

import pyarrow.compute
import pyarrow.parquet  # noqa: F401
from pack_makers import tree

import penstock.sources.folder
import penstock.sources.npz
import penstock.sources.packed
import penstock.sources.tar  # noqa: F401
from penstock.pack import PackFormat, PackOptions, pack

OPERATIONS = ("open", "write", "fsync", "fdatasync", "replace", "unlink", "mkdir", "rmdir")


def die_at(moment: int) -> None:
    """Kill this process just before its n-th operation on the disk."""
    count = itertools.count(1)
    lock = threading.Lock()

    def counted(name: str):
        real = getattr(os, name)

        def call(*args, **kwargs):
            reads = name == "open" and not args[1] & (os.O_WRONLY | os.O_RDWR)
            with lock:
                if not reads and next(count) == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in OPERATIONS:
        setattr(os, name, counted(name))


def packed(source: str, dest: Path, options: PackOptions, moment: int) -> bool:
    """Pack in a child that dies at ``moment`` (0: never); whether it got to its end."""
    child = os.fork()
    if child == 0:
        if moment:
            die_at(moment)
        try:
            pack(source, dest, options)
        except BaseException as error:
            sys.stderr.write(f"moment {moment}: {error!r}\n")
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    if os.WEXITSTATUS(status) != 0:
        raise SystemExit(f"the pack failed instead of going on (moment {moment})")
    return True


def main() -> None:
    source, folder, mode, every = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    options = PackOptions(
        shard_size=24 << 10,
        threads=2,
        shuffle=1,
        format=PackFormat.RAW if mode == "raw" else PackFormat.KEEP,
    )
    packed(source, folder / "whole", options, 0)
    whole = tree(folder / "whole")
    wrong: list[str] = []
    moments = finished = 0
    for moment in itertools.count(1, every):
        dest = folder / f"killed-{moment}"
        if packed(source, dest, options, moment):
            break
        moments += 1
        there = {name: digest for name, digest in tree(dest).items() if not name.startswith(".pack/")}
        half = [name for name, digest in there.items() if whole.get(name) != digest]
        if half:
            wrong.append(f"moment {moment}: {half} stand there half written")
        finished += len(there) > 0
        if mode == "twice":
            packed(source, dest, options, 5 + moment * 7 % 60)
        packed(source, dest, options, 0)
        if tree(dest) != whole:
            wrong.append(
                f"moment {moment}: the end is another: {sorted(set(tree(dest).items()) ^ set(whole.items()))}"
            )
    print(json.dumps({"moments": moments, "with_files": finished, "shards": len(whole) - 2, "wrong": wrong}))


if __name__ == "__main__":
    main()
