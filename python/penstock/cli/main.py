"""The entry point: commands, errors in one line, exit codes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from penstock.cli import commands

if TYPE_CHECKING:
    from types import FrameType

ERROR, USAGE, INTERRUPTED = 1, 2, 130
_GRACE = 0.2
"""Seconds that threads which were told to stop still get before the process leaves without them."""

_WrongUse: type[typer.BadParameter] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
"""The base of what typer raises for wrong arguments. Not every typer lets it be imported by name: some bring click
along, some hold a copy of it; its two members are in ``BadParameter``'s type."""

app = typer.Typer(
    name="penstock",
    help="One data path from wherever training data lie to the training step.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
commands.add_to(app)


def _print_version(value: bool) -> None:  # noqa: FBT001 - typer calls it so
    if value:
        from penstock import __version__

        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """One data path from wherever training data lie to the training step."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and leave the process with its exit code.

    ``--debug`` may stand anywhere. ``arguments`` default to those of the process.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    debug = "--debug" in given
    if not debug:
        warnings.showwarning = _note  # type: ignore[assignment]  # takes the places, and leaves them out
    given = [argument for argument in given if argument != "--debug"]
    signal.signal(signal.SIGTERM, _terminate)
    code = _run(given, debug=debug)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    for thread in others:
        if not thread.daemon:
            thread.join(_GRACE)
    if any(thread.is_alive() and not thread.daemon for thread in others):
        os._exit(code)
    sys.exit(code)


def _run(arguments: list[str], *, debug: bool) -> int:
    try:
        result = app(arguments, prog_name="penstock", standalone_mode=False)
    except _WrongUse as error:
        error.show()
        return error.exit_code
    except typer.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        if debug:
            raise
        _say("interrupted: " + commands.how_to_go_on())
        return INTERRUPTED
    except BrokenPipeError:
        return ERROR
    except Exception as error:
        if debug:
            raise
        _say(f"error: {_sentence(error)}")
        return ERROR
    return result if isinstance(result, int) else 0


def _sentence(error: BaseException) -> str:
    """What a user reads of an error: one line, without errno's brackets."""
    from penstock.errors import PenstockError

    if isinstance(error, OSError) and error.strerror:
        text = (
            error.strerror
            if isinstance(error, PenstockError)
            else f"{error.filename or ''}: {error.strerror}"
        )
    elif isinstance(error, (PenstockError, ValueError)):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error} (this is a bug of penstock: --debug shows where)"
    return " ".join(text.removeprefix(": ").split())


def _say(text: str) -> None:
    sys.stderr.write(f"penstock: {text}\n")


def _note(message: Warning | str, category: type[Warning], *_where: object) -> None:
    """A warning as a user reads it: what, and not at which line of penstock."""
    _say(f"note: {message}" if issubclass(category, UserWarning) else f"{category.__name__}: {message}")


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """End on SIGTERM the way Ctrl-C ends: what is finished stays."""
    raise KeyboardInterrupt
