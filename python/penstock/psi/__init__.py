"""PSI: lossless images that decode in parallel, on a GPU's warps and a CPU's vectors alike.

>>> import numpy as np
>>> from penstock import psi
>>> picture = np.zeros((480, 640, 3), np.uint8)
>>> file = psi.encode(picture)
>>> psi.info(file).shape
(480, 640, 3)
>>> bool((psi.decode(file, region=np.s_[100:200, 50:150]) == picture[100:200, 50:150]).all())
True

Arrays are NumPy's or torch's, on the way in and on the way out. The format itself: docs/psi.md; working with it:
docs/psi-use.md. ``register_pillow()`` makes ``PIL.Image.open("x.psi")`` work; where Pillow was imported first, it does so
already.
"""

import sys

from penstock.psi.decoding import decode, decode_batch
from penstock.psi.encoding import encode
from penstock.psi.header import Info, Level, info
from penstock.psi.metadata import metadata

__all__ = ["Info", "Level", "decode", "decode_batch", "encode", "info", "metadata", "register_pillow"]


def register_pillow() -> None:
    """Makes Pillow open and save ``.psi``: the same as ``import penstock.psi.pillow``."""
    from penstock.psi import pillow

    pillow.register()


if "PIL.Image" in sys.modules:
    register_pillow()
