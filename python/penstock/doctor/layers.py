"""Measures the layers, each alone, from the bottom up.

Each layer reads other samples than the ones before as long as there are any, so that no layer finds in a cache what
another has fetched. Nothing is written anywhere, and nothing of the store is changed.
"""

from __future__ import annotations

import dataclasses
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _native
from penstock.dataset import Dataset
from penstock.doctor.diagnosis import Diagnosis, Layer, Level
from penstock.errors import StoreError
from penstock.feed import key_table
from penstock.loader import Loader
from penstock.stores import native_store
from penstock.transform import RandomResizedCrop, compile_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.trace import Span

LEVELS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Reads in flight."""
DECODED = 256
"""Samples that are decoded over and over."""
DECODED_BYTES = 256 << 20
WARM = 2
"""Batches that fill the window, and are not counted."""
READY = 2e-3
"""Seconds: a batch that came sooner was there already."""
READS = 4_096
"""Samples that one level of the raw store reads before it begins again."""


def examine(
    source: str | Dataset,
    *,
    batch_size: int = 256,
    seconds: float = 1.0,
    crop: int = 224,
    step: float | None = None,
    levels: Sequence[int] = LEVELS,
    timeout: float = 60.0,
    say: Callable[[str], object] = lambda _: None,
) -> Diagnosis:
    """Measure every layer of ``source`` and say what limits.

    - ``source``: a dataset, or what `penstock.open` takes.
    - ``seconds``: for each level of the raw store; the layers above get three times as much.
    - ``crop``: pictures are decoded to crops of this side, as training does it; 0: as they are stored.
    - ``step``: seconds of the synthetic training step; None: as long as the loader takes for a batch, so that one that
      prepares batches ahead would hide all of it.
    - ``timeout``: seconds that a read or a batch may take.
    - ``say``: is told what is being measured.

    StoreError where the store gives nothing at all.
    """
    from penstock.dataset import open_dataset

    dataset = source if isinstance(source, Dataset) else open_dataset(source)
    if not len(dataset):
        raise ValueError(f"{dataset!r} has no samples to measure with")
    batch_size = min(batch_size, len(dataset))
    picks = _Picks(len(dataset))
    plain = _Plain(dataset)
    measured = []
    for in_flight in levels:
        say(f"raw store, {in_flight} in flight")
        measured.append(_raw(dataset, picks.take(READS), in_flight, seconds, timeout))
    if not any(level.samples_per_s for level in measured):
        raise StoreError(f"the store gave nothing: {measured[0].error}")
    sample_bytes = _mean_bytes(measured)
    transform = _transform(dataset, crop)
    layers, load = [], partial(Loader, batch_size=batch_size, timeout=timeout, drop_last=True)

    say("window")
    with load(plain, arrays="numpy", seed=1) as loader:
        rate = _rate(loader, 3 * seconds)
    layers.append(Layer("window", rate, rate * sample_bytes, "samples as bytes, in batches"))
    if (decoded := _decode(dataset, picks, transform, 3 * seconds, timeout, say)) is not None:
        layers.append(Layer("decode", decoded, decoded * sample_bytes, f"from memory, {_cores()} threads"))
    say("loader")
    with load(dataset, transform=transform, seed=2) as loader:
        rate = _rate(loader, 3 * seconds)
    layers.append(Layer("loader", rate, rate * sample_bytes, "as in training, without a trainer"))
    step = batch_size / rate if step is None else step
    say("loader with a step")
    with load(dataset, transform=transform, seed=3) as loader:
        stepped, waited, spans = _stepped(loader, step, 3 * seconds)
    layers.append(
        Layer("loader + step", stepped, stepped * sample_bytes, f"a step of {step * 1e3:.0f} ms a batch")
    )
    return Diagnosis(
        uri=str(getattr(dataset.store, "uri", source)),
        samples=len(dataset),
        sample_bytes=sample_bytes,
        batch_size=batch_size,
        cores=_cores(),
        levels=tuple(measured),
        layers=tuple(layers),
        step_seconds=step,
        waited_share=waited,
        spans=tuple(spans),
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0))


class _Plain(Dataset):
    """The same samples, each stored field given byte by byte."""

    __slots__ = ()

    def __init__(self, dataset: Dataset) -> None:
        stored = [field.name for field in dataset.fields if field.source == "stored"]
        super().__init__(dataset.catalog, dataset.store, stored)
        fields = super().fields
        self._fields = tuple(
            dataclasses.replace(field, kind="bytes", dtype=None, shape=None) for field in fields
        )


class _Picks:
    """Rows in random order, each once before any comes again."""

    def __init__(self, count: int) -> None:
        self._order, self._at = np.random.default_rng(0).permutation(count), 0

    def take(self, count: int) -> np.ndarray:
        count = min(count, len(self._order))
        places = np.arange(self._at, self._at + count) % len(self._order)
        self._at = int(places[-1]) + 1
        return np.ascontiguousarray(self._order[places])


def _raw(dataset: Dataset, rows: np.ndarray, in_flight: int, seconds: float, timeout: float) -> Level:
    catalog = dataset.catalog
    stored = [field.name for field in dataset.fields if field.source == "stored"]
    columns = [catalog.addresses(name, rows) for name in stored]
    # Sample by sample, as a batch asks for them.
    reads = [
        read
        for sample in zip(
            *(zip(c.object.tolist(), c.offset.tolist(), c.length.tolist(), strict=True) for c in columns),
            strict=True,
        )
        for read in sample
    ]
    objects = catalog.objects
    store = native_store(dataset.store, len(objects))
    took, size, latencies, failed, error = _native.probe(
        store, key_table(objects), reads, in_flight, seconds, timeout
    )
    times = np.array(latencies) if latencies else np.full(1, np.nan)
    return Level(
        in_flight,
        len(latencies) / max(len(stored), 1) / took,
        size / took,
        float(np.median(times)),
        float(np.quantile(times, 0.99)),
        failed,
        error,
    )


def _mean_bytes(levels: Sequence[Level]) -> float:
    best = max(levels, key=lambda level: level.samples_per_s)
    return best.bytes_per_s / best.samples_per_s


def _transform(dataset: Dataset, crop: int) -> list[Any]:
    pictures = any(field.kind in ("image", "mask") for field in dataset.fields)
    return [RandomResizedCrop(crop)] if pictures and crop else []


def _decode(
    dataset: Dataset,
    picks: _Picks,
    transform: Sequence[Any],
    seconds: float,
    timeout: float,
    say: Callable[[str], object],
) -> float | None:
    """Samples a second that all cores decode from memory; None where there is nothing to decode."""
    fields = [field for field in dataset.fields if field.source == "stored" and field.kind != "bytes"]
    if not fields:
        return None
    say("decode")
    catalog, store = dataset.catalog, native_store(dataset.store, len(dataset.catalog.objects))
    rows = picks.take(min(DECODED, len(dataset)))
    work: list[tuple[Any, ...]] = []
    held, taken = 0, 0
    with ThreadPoolExecutor(32) as readers:

        def read(field: Any, place: int, address: Any) -> tuple[Any, ...]:
            object, offset, length = (int(getattr(address, n)[place]) for n in ("object", "offset", "length"))
            key = catalog.objects[object].as_py()
            data = store.read(key, offset, None if length == 2**64 - 1 else length, timeout)
            raw = None if field.dtype is None or field.shape is None else (field.dtype, list(field.shape))
            return data, int(address.format[place]), (field.name, field.kind, raw)

        columns = [(field, catalog.addresses(field.name, rows)) for field in fields]
        for place in range(len(rows)):
            parts = list(readers.map(lambda column, place=place: read(column[0], place, column[1]), columns))
            work.extend(parts)
            held += sum(len(part[0]) for part in parts)
            taken += 1
            if held > DECODED_BYTES:
                break
    program = compile_program(transform)
    per_sample, until = len(fields), time.perf_counter() + seconds

    def decode(first: int) -> int:
        done = 0
        while time.perf_counter() < until:
            data, format, field = work[(first + done) % len(work)]
            _native.decode(data, format, field, program, id=first + done)
            done += 1
        return done

    start = time.perf_counter()
    with ThreadPoolExecutor(_cores()) as threads:
        starts = [thread * len(work) // _cores() for thread in range(_cores())]
        done = sum(threads.map(decode, starts))
    return done / per_sample / (time.perf_counter() - start)


def _rate(loader: Loader, seconds: float) -> float:
    """Samples a second of all epochs, one after another, once the window is full."""
    batches = _epochs(loader)
    _drain(batches, seconds)
    samples, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds or not samples:
        samples += next(batches).size
    return samples / (time.perf_counter() - start)


def _drain(batches: Iterator[Any], seconds: float) -> None:
    """Take what the window filled itself with before anybody asked, until a batch has to be waited for."""
    begun = time.perf_counter()
    for number in range(1_000_000):
        asked = time.perf_counter()
        batch = next(batches)
        now = time.perf_counter()
        del batch
        if number >= WARM and (now - asked > READY or now - begun > seconds):
            return


def _stepped(loader: Loader, step: float, seconds: float) -> tuple[float, float, list[Span]]:
    """Samples a second with a trainer that is busy elsewhere for ``step`` seconds a batch, and its share of waiting."""
    batches = _epochs(loader)
    for batch in islice(batches, WARM):
        del batch
        time.sleep(step)
    samples, waited, start = 0, 0.0, time.perf_counter()
    while time.perf_counter() - start < seconds or not samples:
        asked = time.perf_counter()
        samples += next(batches).size
        waited += time.perf_counter() - asked
        time.sleep(step)
    took = time.perf_counter() - start
    return samples / took, waited / took, loader.trace.spans()


def _epochs(loader: Loader) -> Iterator[Any]:
    while True:
        yield from loader
