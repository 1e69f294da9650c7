"""The layered benchmark: what the store gives, and what is left of it at each layer above.

=============  ======================================================================================
``layers``     measures them: raw store, window, decode, loader, loader with a step
``diagnosis``  `Level`, `Layer`, `Diagnosis`: the figures, and the sentence that says what limits
``figure``     the picture: latency and throughput over concurrency, and what happened when
``report``     the table
=============  ======================================================================================

>>> from penstock.doctor import examine
>>> diagnosis = examine("s3://bucket/photos")  # doctest: +SKIP
>>> print(diagnosis.sentence)  # doctest: +SKIP
"""

from penstock.doctor.diagnosis import Diagnosis, Layer, Level
from penstock.doctor.layers import examine

__all__ = ["Diagnosis", "Layer", "Level", "examine"]
