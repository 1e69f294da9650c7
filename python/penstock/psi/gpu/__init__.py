"""PSI on a GPU: batches of files become tensors there, in a few launches.

The kernels are CUDA C++ in ``kernels/``, compiled at run time for the device at hand and kept in a cache folder. The
compressed bytes cross to the device in one copy; region, mirror image, type, normalisation and layout are done as the
samples are stored. Needs torch with CUDA and ``cuda-bindings``, which comes with it.

>>> tensor = decode_batch([file, file], dtype="float16", scale=1 / 255)  # doctest: +SKIP
"""

from penstock.psi.gpu.batch import decode_batch
from penstock.psi.gpu.decoder import Decoder, Pending
from penstock.psi.gpu.loading import decode_encoded, finish

__all__ = ["Decoder", "Pending", "decode_batch", "decode_encoded", "finish"]
