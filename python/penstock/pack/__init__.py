"""Packing: any dataset into tar shards and a catalog, and reading them back to see that they are sound.

``options`` what can be said → ``plan`` which sample stands in which shard → ``run`` threads, each with a ``shard``
writer over ``convert`` (a field's bytes) and ``writer`` (a tar file) → ``finish`` the catalog. ``work`` keeps what makes
an interrupted run go on. ``verify`` reads all back.
"""

from penstock.pack.options import OnError, PackFormat, PackOptions, parse_size
from penstock.pack.run import PackSummary, pack
from penstock.pack.verify import VerifySummary, verify

__all__ = [
    "OnError",
    "PackFormat",
    "PackOptions",
    "PackSummary",
    "VerifySummary",
    "pack",
    "parse_size",
    "verify",
]
