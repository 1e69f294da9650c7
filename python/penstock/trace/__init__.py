"""Where the time goes: spans and counters of every step, of any loader.

============  ====================================================================================
``spans``     `Span`, `Trace`: a ring of spans and sums over a whole run; what ``loader.trace`` is
``record``    `Recording`: times a loader that is not ours, its dataset and its worker processes
``spool``     spans of other processes, through files of fixed-size records
``export``    Perfetto JSON and Parquet, and back
``summary``   spans → a row a stage: how often, how long, how many bytes
============  ====================================================================================

    for batch in penstock.Loader(data, trace="run.json"): ...       # ours: always on, saved at close

    recording = penstock.trace.Recording()                          # anybody's
    loader = torch.utils.data.DataLoader(recording.dataset(data), collate_fn=recording.collate(collate))
    for batch in recording.steps(loader): ...
    print(recording.summary())
"""

from penstock.trace.export import load
from penstock.trace.record import Recording
from penstock.trace.spans import LoaderTrace, Span, Trace
from penstock.trace.summary import StageSummary, Summary

__all__ = ["LoaderTrace", "Recording", "Span", "StageSummary", "Summary", "Trace", "load"]
