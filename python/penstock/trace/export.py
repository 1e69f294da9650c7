"""Spans to files and back: Chrome trace JSON for Perfetto, Parquet for tables."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import CatalogError
from penstock.trace.spans import Span

if TYPE_CHECKING:
    from collections.abc import Sequence

_TRAINER = "trainer"
REQUESTS = -2
"""The thread of requests to a far store."""


def save(path: str | Path, spans: Sequence[Span]) -> None:
    """Write ``spans`` to ``path``; see `Trace.save`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        _save_parquet(path, spans)
        return
    text = json.dumps({"traceEvents": _events(spans), "displayTimeUnit": "ms"}).encode()
    path.write_bytes(gzip.compress(text, 6) if path.suffix == ".gz" else text)


def load(path: str | Path) -> list[Span]:
    """Read back what `Trace.save` wrote as Parquet; `CatalogError` where the file is another table."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    if tuple(table.column_names) != Span._fields:
        raise CatalogError(f"{path} is no table of spans: it has the columns {', '.join(table.column_names)}")
    return [Span(*row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


def _save_parquet(path: Path, spans: Sequence[Span]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"stage": pa.dictionary(pa.int32(), pa.string()), "thread": pa.int32(), "process": pa.int32()}
    columns = list(zip(*spans, strict=True)) or [()] * len(Span._fields)
    arrays = [
        pa.array(column, types.get(name, pa.int64()))
        for name, column in zip(Span._fields, columns, strict=True)
    ]
    pq.write_table(pa.table(arrays, names=list(Span._fields)), path)


def _events(spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Complete events: a process a worker process, a track a thread, and one for each of overlapping requests."""
    events: list[dict[str, Any]] = []
    tracks: dict[tuple[int, int], str] = {}
    for span in spans:
        pid, tid = span.process or 1, span.thread + 1
        name = _TRAINER if tid == 0 and span.process == 0 else f"worker {tid - 1}"
        tracks.setdefault((pid, tid), "requests" if span.thread == REQUESTS else name)
        args = {"epoch": span.epoch, "step": span.step, "samples": span.samples, "bytes": span.bytes}
        if span.sample >= 0:
            args["sample"] = span.sample
        if span.thread == REQUESTS:  # they overlap: pairs, not stretches of a track
            common = {"name": span.stage, "cat": span.stage, "id": len(events), "pid": pid, "tid": tid}
            events.append({**common, "ph": "b", "ts": span.start_ns / 1e3, "args": args})
            events.append({**common, "ph": "e", "ts": span.end_ns / 1e3})
            continue
        events.append(
            {
                "name": span.stage if span.step < 0 else f"{span.stage} {span.step}",
                "cat": span.stage,
                "ph": "X",
                "ts": span.start_ns / 1e3,
                "dur": (span.end_ns - span.start_ns) / 1e3,
                "pid": pid,
                "tid": tid,
                "args": args,
            }
        )
    names = [
        {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
        for (pid, tid), name in sorted(tracks.items())
    ]
    processes = [
        {
            "name": "process_name",
            "ph": "M",
            "pid": pid,
            "tid": 0,
            "args": {"name": "penstock" if pid == 1 else f"worker process {pid}"},
        }
        for pid in sorted({pid for pid, _ in tracks})
    ]
    return [*processes, *names, *events]
