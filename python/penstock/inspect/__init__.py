"""Looking into a dataset: what it holds, in figures (``look``), in a terminal (``show``), in a picture (``draw_grid``)."""

from penstock.inspect.grid import draw_grid
from penstock.inspect.look import Inspection, look
from penstock.inspect.show import show

__all__ = ["Inspection", "draw_grid", "look", "show"]
