"""Lets these tests import what they share with those of packing."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "pack"))
