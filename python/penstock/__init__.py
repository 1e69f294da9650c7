"""penstock: one data path from wherever training data lie to the training step.

>>> import penstock
>>> data = penstock.open("pictures/")  # doctest: +SKIP
>>> loader = penstock.Loader(data, batch_size=64, transform=[penstock.RandomResizedCrop(224)])  # doctest: +SKIP
"""

from penstock._native import __version__
from penstock.batch import Batch
from penstock.cache import Cache
from penstock.dataset import Dataset
from penstock.dataset import open_dataset as open
from penstock.loader import Loader
from penstock.stages import PerSample
from penstock.transform import (
    CenterCrop,
    ColorJitter,
    Flip,
    Grayscale,
    Normalize,
    Orient,
    Pad,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    ToDType,
)

__all__ = [
    "Batch",
    "Cache",
    "CenterCrop",
    "ColorJitter",
    "Dataset",
    "Flip",
    "Grayscale",
    "Loader",
    "Normalize",
    "Orient",
    "Pad",
    "PerSample",
    "RandomCrop",
    "RandomResizedCrop",
    "Resize",
    "ToDType",
    "__version__",
    "open",
]
