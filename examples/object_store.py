"""Pack a folder into an object store and train from there.

    python examples/object_store.py photos/ s3://bucket/packed [NAME=VALUE of a storage option]…

Credentials come from the environment or the usual configuration files; see docs/far-storage.md.
"""

from __future__ import annotations

import sys

import penstock
from penstock.pack import PackOptions, pack


def main() -> None:
    source, dest, *rest = sys.argv[1:]
    storage = dict(text.split("=", 1) for text in rest)
    # Killed and started again, this goes on where it was.
    done = pack(source, dest, PackOptions(shard_size=64 << 20), quiet=False, dest_storage=storage)
    print(f"{done.samples:,} samples in {done.shards} shards at {done.dest}")

    data = penstock.open(dest, storage=storage)
    crop = [penstock.RandomResizedCrop(64), penstock.Flip()]
    with penstock.Loader(data, batch_size=16, seed=7, transform=crop) as loader:
        for batch in loader:
            print(batch.step, batch["image"].shape, batch.ids[:4])


if __name__ == "__main__":
    main()
