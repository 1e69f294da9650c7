"""The order of an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock import _native

if TYPE_CHECKING:
    import numpy.typing as npt


def order(seed: int, epoch: int, samples: int) -> npt.NDArray[np.int64]:
    """The rows ``0 … samples-1`` in the order of ``epoch`` under ``seed``.

    Depends on its three arguments alone, on any machine and in any later version. Of a seed the lowest 64 bits count.

    >>> sorted(order(7, 0, 4).tolist())
    [0, 1, 2, 3]
    """
    return np.asarray(_native.permutation(int(seed) % 2**64, epoch, samples)).view(np.int64)
