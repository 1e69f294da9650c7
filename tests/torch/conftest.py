"""What must be so before a test forks workers."""

from __future__ import annotations

import contextlib
import gc
import os

with contextlib.suppress(ImportError):
    # torch imports this when it first pickles a tensor. A worker that is forked while another thread of this process is in the
    # middle of that import can never finish it.
    import torch.nested._internal.nested_tensor  # noqa: F401

# Garbage of other tests that a forked worker, torch's own too, collects in the middle of an import breaks that import.
os.register_at_fork(after_in_child=gc.freeze)
