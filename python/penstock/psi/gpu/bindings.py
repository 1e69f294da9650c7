"""CUDA's own Python bindings, imported by what needs them."""

from __future__ import annotations

import importlib
from typing import Any

from penstock.errors import PenstockError


def bindings(name: str) -> Any:
    """``cuda.bindings.<name>``; PenstockError that says what to install where there is none."""
    try:
        return importlib.import_module(f"cuda.bindings.{name}")
    except ImportError:
        raise PenstockError(
            "decoding PSI on a GPU needs the package cuda-bindings, which comes with torch's CUDA builds: "
            "pip install cuda-bindings"
        ) from None
