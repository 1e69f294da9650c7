"""What must be so before a test forks workers."""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):
    # torch imports this when it first pickles a tensor. A worker that is forked while another thread of this process is in the
    # middle of that import can never finish it.
    import torch.nested._internal.nested_tensor  # noqa: F401
