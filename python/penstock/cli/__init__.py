"""The command ``penstock``.

``main`` is the entry point: it turns errors into one line and an exit code (1 an error, 2 wrong use, 130 Ctrl-C).
Each command is a module of its own that imports what it needs when it runs, so that ``penstock --help`` is
there at once.
"""

from penstock.cli.main import main

__all__ = ["main"]
