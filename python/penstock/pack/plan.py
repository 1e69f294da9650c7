"""The plan: which samples stand in which shard. A pure function of the source's catalog and the settings.

It is made anew by every run and never read back; what an interrupted run leaves in ``.pack/plan.json`` is
only its identity, so that a run with another plan notices and stops.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.errors import CatalogError, DataError, DecodeError, PenstockError
from penstock.formats import Format
from penstock.pack import npy, tar
from penstock.pack.convert import Fetcher, ImageEncoder, RowType, load_encoder
from penstock.pack.names import safe_names
from penstock.pack.options import OnError, PackFormat, PackOptions
from penstock.pack.shard import FieldWork, ShardWork, planned_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.formats import Kind
    from penstock.pack.source import Source

VERSION = 1
_ARRAYS = frozenset({Format.RAW, Format.NPY, Format.NPY_DEFLATE})


@dataclass(frozen=True)
class Plan:
    """Which samples of ``source`` stand where."""

    source: Source
    fields: tuple[FieldWork, ...]
    rows: npt.NDArray[np.int64]
    """Rows of the source in packed order, those that were bad from the start left out."""
    sizes: dict[str, npt.NDArray[np.uint64]]
    """Source bytes of each field, aligned with ``rows``."""
    bounds: npt.NDArray[np.int64]
    """Shard ``i`` holds ``rows[bounds[i]:bounds[i + 1]]``."""
    weights: npt.NDArray[np.uint64]
    """Bytes that each sample is expected to take in its shard."""
    skipped: tuple[str, ...]
    """The errors of the samples that were left out."""
    identity: dict[str, Any]
    """What makes this plan this plan, as JSON."""
    skip: bool
    encoder: ImageEncoder | None

    def content_identity(self) -> dict[str, Any]:
        """The identity without where the source lay and when it was written: what a finished pack keeps."""
        source = {
            name: value for name, value in self.identity["source"].items() if name not in ("uri", "written")
        }
        return {**self.identity, "source": source}

    @property
    def shards(self) -> int:
        """How many there are."""
        return len(self.bounds) - 1

    def samples_in(self, shard: int) -> int:
        """Samples planned for a shard."""
        return int(self.bounds[shard + 1] - self.bounds[shard])

    def source_bytes(self, shard: int | None = None) -> int:
        """Bytes that are read for a shard, or for all."""
        part = slice(None) if shard is None else slice(self.bounds[shard], self.bounds[shard + 1])
        return sum(int(sizes[part].sum()) for sizes in self.sizes.values())

    def shard_bytes(self, shard: int) -> int:
        """Bytes that the shard will take on the disk, more or less."""
        return int(self.weights[self.bounds[shard] : self.bounds[shard + 1]].sum()) + 1024

    def work(self, shard: int) -> ShardWork:
        """What a thread needs to write a shard."""
        first, last = int(self.bounds[shard]), int(self.bounds[shard + 1])
        rows = self.rows[first:last]
        items = {
            each.name: self.source.items(each.name, rows, self.sizes[each.name][first:last])
            for each in self.fields
        }
        return ShardWork(shard, first, self.fields, items, skip=self.skip, encoder=self.encoder)


def make_plan(source: Source, options: PackOptions) -> Plan:
    """Look at every sample's size and cut the samples into shards.

    Raises DataError for the first sample that is missing or shorter than the catalog says, unless such are
    skipped; CatalogError where there is nothing to pack.
    """
    names = [field.name for field in source.catalog.stored]
    if not names:
        raise CatalogError(f"{source.name} stores no bytes to pack: it has columns only")
    encoder = None
    if options.format is PackFormat.PSI:
        encoder = load_encoder(options.level, lossy=options.lossy)
    rows = packed_order(len(source), options.shuffle)
    threads = options.worker_count()
    sizes: dict[str, npt.NDArray[np.uint64]] = {}
    states: list[npt.NDArray[np.int64]] = []
    bad: dict[int, DataError] = {}
    for name in names:
        sizes[name], state, wrong = source.measure(name, rows, threads)
        states.append(state)
        bad.update(wrong)
    if bad and options.on_error is OnError.RAISE:
        raise bad[min(bad)]
    keep = np.ones(len(rows), bool)
    keep[list(bad)] = False
    rows, sizes = rows[keep], {name: values[keep] for name, values in sizes.items()}
    if not len(rows):
        raise CatalogError(
            f"{source.name} has no sample to pack" + (f": all {len(bad):,} are bad" if bad else "")
        )
    fields = _fields(source, names, rows, sizes, options, encoder)
    weights = np.zeros(len(rows), np.uint64)
    for each in fields:
        if each.block is None:
            weights += planned_bytes(sizes[each.name])
        else:
            weights += np.uint64(each.block.row_bytes)
    overhead = len(tar.END) + sum(2 * tar.BLOCK for each in fields if each.block is not None)
    identity = {
        "version": VERSION,
        "settings": options.identity(),
        "source": {
            "uri": source.name,
            "samples": len(source),
            "catalog": source.catalog.fingerprint(names),
            "sizes": _digest(rows, *sizes.values()),
            "written": _digest(*states),
        },
    }
    return Plan(
        source,
        fields,
        rows,
        sizes,
        cut(weights, max(1, options.shard_size - overhead)),
        weights,
        tuple(str(bad[row]) for row in sorted(bad)),
        identity,
        skip=options.on_error is OnError.SKIP,
        encoder=encoder,
    )


def packed_order(count: int, seed: int | None) -> npt.NDArray[np.int64]:
    """The rows in the order they are packed in; the same on every machine and in every NumPy."""
    rows = np.arange(count, dtype=np.int64)
    if seed is None:
        return rows
    with np.errstate(over="ignore"):
        start = _mix(np.array([seed], np.uint64) + np.uint64(0x9E3779B97F4A7C15))
        draws = _mix(start + (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    return np.argsort(draws, kind="stable").astype(np.int64)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64, a bijection of 64 bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def cut(weights: npt.NDArray[np.uint64], shard_size: int) -> npt.NDArray[np.int64]:
    """Where shards begin and end: as many samples as fit in ``shard_size``, at least one."""
    ends = np.concatenate([np.zeros(1, np.uint64), np.cumsum(weights, dtype=np.uint64)])
    bounds = [0]
    while bounds[-1] < len(weights):
        at = bounds[-1]
        limit = ends[at] + np.uint64(shard_size)
        after = int(np.searchsorted(ends, limit, side="right")) - 1
        bounds.append(max(at + 1, after))
    return np.array(bounds, np.int64)


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """In words, how the plan of an earlier run differs from this one; empty where it does not."""
    if theirs.get("version") != ours["version"]:
        return "it was made by another version of penstock pack"
    said = []
    old, new = theirs.get("settings") or {}, ours["settings"]
    for name, value in new.items():
        if old.get(name) != value:
            was, now = (
                f"{x:,} bytes" if isinstance(x, int) and name == "shard_size" else x
                for x in (old.get(name), value)
            )
            said.append(f"--{name.replace('_', '-')} was {was} and is {now}")
    old, new = theirs.get("source") or {}, ours["source"]
    words = {
        "uri": f"the source was {old.get('uri')} and is {new.get('uri')}",
        "samples": f"the source had {old.get('samples')} samples and has {new['samples']}",
        "catalog": "the source has other samples, names or columns",
        "sizes": "samples of the source have other sizes",
        "written": "files of the source have been written to",
    }
    for name, text in words.items():
        if name in new and name in old and old.get(name) != new[name]:
            said.append(text)
            break
    return "; ".join(said)


def _fields(
    source: Source,
    names: list[str],
    rows: npt.NDArray[np.int64],
    sizes: dict[str, npt.NDArray[np.uint64]],
    options: PackOptions,
    encoder: ImageEncoder | None,
) -> tuple[FieldWork, ...]:
    packed = {field.name: (field.name, field.kind) for field in source.catalog.stored}
    if encoder is not None:
        for name in names:
            new = _becomes(source, name, rows, sizes[name], options, encoder)
            if new is not None:
                taken = {other for other, _ in packed.values()}
                packed[name] = (name, new[1]) if new[0] in taken else new
    safe = safe_names([packed[name][0] for name in names])
    works = []
    for field in source.catalog.stored:
        row = None
        if field.dtype is not None and field.shape is not None:
            row = RowType(np.dtype(field.dtype), tuple(field.shape))
        block = None
        if options.format is PackFormat.RAW:
            formats = set(np.unique(source.catalog.addresses(field.name, rows).format).tolist())
            if formats <= _ARRAYS:
                block = row or _row_type(source, field.name, rows, sizes[field.name], options)
        name, kind = packed[field.name]
        works.append(FieldWork(field.name, safe[name], block, row, name, kind))
    if options.format is PackFormat.RAW and not any(work.block for work in works):
        raise PenstockError(
            f"--format raw stores arrays, and no field of {source.name} is one ({', '.join(names)}): use --format keep"
        )
    return tuple(works)


def _becomes(
    source: Source,
    name: str,
    rows: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.uint64],
    options: PackOptions,
    encoder: ImageEncoder,
) -> tuple[str, Kind] | None:
    """What a field becomes, as the first sample that can be read says."""
    fetcher = Fetcher(source.reader())
    try:
        for item in _one_by_one(source, name, rows, sizes):
            if item is None:
                continue
            if not encoder.takes(item.format, name):
                return None
            try:
                return encoder.becomes(fetcher.whole(item), item.format, name)
            except (DataError, ValueError) as error:
                if options.on_error is OnError.SKIP:
                    continue
                raise error if isinstance(error, DataError) else item.bad(DecodeError, str(error)) from error
    finally:
        fetcher.close()
    return None


def _row_type(
    source: Source,
    name: str,
    rows: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.uint64],
    options: PackOptions,
) -> RowType:
    """What the first sample that can be read says that all are."""
    fetcher = Fetcher(source.reader())
    try:
        for item in _one_by_one(source, name, rows, sizes):
            if item is None:
                continue
            try:
                data = fetcher.whole(item)
                header = npy.read_header(npy.inflate(data) if item.format is Format.NPY_DEFLATE else data)
            except (DataError, ValueError) as error:
                if options.on_error is OnError.SKIP:
                    continue
                raise error if isinstance(error, DataError) else item.bad(DataError, str(error)) from error
            return RowType(header.dtype, header.shape)
    finally:
        fetcher.close()
    raise CatalogError(f"no sample of {source.name} has a field {name!r} that can be read")


def _one_by_one(
    source: Source, name: str, rows: npt.NDArray[np.int64], sizes: npt.NDArray[np.uint64]
) -> Iterator[Any]:
    for at in range(len(rows)):
        yield source.items(name, rows[at : at + 1], sizes[at : at + 1])[0]


def _digest(*arrays: npt.NDArray[Any]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        stream = io.BytesIO()
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(array))
        digest.update(stream.getvalue())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
