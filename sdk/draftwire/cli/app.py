"""The commands, and what happens to their errors."""

from __future__ import annotations

import os
import sys

import typer

from draftwire.cli.demo.command import demo
from draftwire.cli.drafters import drafters
from draftwire.cli.failure import Failure
from draftwire.cli.generate import generate
from draftwire.errors import DraftwireError, InvalidArgumentError
from draftwire.version import __version__

FAILED = 1
"""Exit code of a command that failed."""
WRONG_INPUT = 2
"""Exit code of a command that was given something wrong."""

app = typer.Typer(
    name="draftwire",
    help="Speculative decoding over the wire.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(generate)
app.add_typer(drafters, name="drafters")


@app.callback(invoke_without_command=True)
def draftwire(version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True)) -> None:
    """Speculative decoding over the wire."""
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; a failure is one line on stderr and the exit code 1, or 2 where the input is wrong."""
    try:
        app()
    except (InvalidArgumentError, ValueError) as error:
        _end(str(error), WRONG_INPUT)
    except (DraftwireError, Failure) as error:
        _end(str(error), FAILED)
    except BrokenPipeError:  # the reader of our output, head for one, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)


def _end(message: str, code: int) -> None:
    print(f"draftwire: {message}", file=sys.stderr)
    sys.exit(code)
