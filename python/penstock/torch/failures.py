"""What this package raises of its own; the errors of the user's dataset come out as they are."""

from __future__ import annotations

from penstock.errors import DeadlineError, PenstockError

DEADLINE = 1800.0
"""Seconds a wait may take where the user gave no ``timeout``: long for an item, short against a night."""


class BatchDeadlineError(DeadlineError, RuntimeError):
    """A batch did not come in time; the text names the indices that are owed, and who owes them.

    Also a RuntimeError, which is what torch raises then.
    """


class WorkerDiedError(PenstockError, RuntimeError):
    """A worker process ended while it owed batches. torch raises a RuntimeError then, and so this is one."""


def late(seconds: float, who: str, debts: str) -> BatchDeadlineError:
    """Make the error for a wait of ``seconds`` that ended without what ``who`` owes."""
    return BatchDeadlineError(
        f"DataLoader timed out after {seconds:g} seconds: {who} owes it; {debts}. "
        f"Look at what the dataset waits for there, or give the DataLoader a larger timeout="
    )
