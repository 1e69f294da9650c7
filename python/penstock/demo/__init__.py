"""Made-up data, and the demonstration that trains from it. Nothing is downloaded.

``pictures`` makes labelled photographs of nothing → ``training`` packs them and trains on them through the Loader
→ ``figure`` draws a batch and where the time went.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["run"]


def run(*, quick: bool = False, out: Path = Path("demo-out")) -> None:
    """Make pictures, pack them, train a small network on them and say where the time went.

    Data are kept in `out` and used again; the picture is ``out/demo.png``. `quick` is the same with less of
    everything. Raises ModuleNotFoundError, naming what to install, without torch, Pillow or matplotlib.
    """
    from penstock.demo.training import demonstrate

    demonstrate(quick=quick, out=Path(out))
