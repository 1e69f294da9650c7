"""A drop-in for torch's DataLoader that keeps many requests in flight: change one import, nothing else.

>>> from penstock.torch import DataLoader

The way through this package, from the user down::

    loader      the arguments, the state, which kind of epoch
    inprocess   an epoch in this process            workers ── worker   an epoch in worker processes
        └────────────┬──────────────────────────────────┘ └─ parcels: what goes between them, on a shelf of memory
    fetching    here or by a crew?   pace: measured     reading   an iterable dataset
    crew        threads, or tasks on an event loop      samplers ── randomness ── progress: order and place
    jobs        batches taken apart, and put together   access    how the dataset gives items
    collating   torch's collate, cheaper                interrupts: Ctrl-C where nothing is lost
"""

from __future__ import annotations

from penstock.torch.failures import BatchDeadlineError, WorkerDiedError
from penstock.torch.loader import DataLoader

__all__ = ["BatchDeadlineError", "DataLoader", "WorkerDiedError"]
