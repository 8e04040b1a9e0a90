"""The commands, and what happens to their errors."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import typer

from draftwire.cli.bench.command import bench
from draftwire.cli.calibrate import calibrate
from draftwire.cli.chat import chat
from draftwire.cli.demo.command import demo
from draftwire.cli.drafters import drafters
from draftwire.cli.failure import Failure
from draftwire.cli.generate import generate
from draftwire.cli.probe import probe
from draftwire.cli.top.command import top
from draftwire.cli.train import train
from draftwire.errors import DraftwireError, InvalidArgumentError
from draftwire.version import __version__

FAILED = 1
"""Exit code of a command that failed."""
WRONG_INPUT = 2
"""Exit code of a command that was given something wrong."""
INTERRUPTED = 130
"""Exit code of a command that was interrupted, as shells have it."""

UsageError: Any = typer.BadParameter.__mro__[1]
"""What typer raises for wrong use. It has no public name for it: in some versions it is click's, in others its own."""

app = typer.Typer(
    name="draftwire",
    help="Speculative decoding over the wire.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(generate)
app.command()(chat)
app.command()(top)
app.command()(bench)
app.command()(probe)
app.add_typer(drafters, name="drafters")
app.add_typer(calibrate, name="calibrate")
app.add_typer(train, name="train")


@app.callback(invoke_without_command=True)
def draftwire(version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True)) -> None:
    """Speculative decoding over the wire."""
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; a failure is one line on stderr and the exit code 1, or 2 where the input is wrong."""
    try:
        # Left to itself typer would print wrong use as usage, a hint and a box.
        sys.exit(app(standalone_mode=False))  # None, or the status of a command that ends early, as --help does
    except UsageError as error:
        message = error.format_message().strip()
        if not message:  # a command that was given nothing has shown its help
            sys.exit(WRONG_INPUT)
        _end(f"{message} ({_help_command(error)} says more)", WRONG_INPUT)
    except typer.Abort:
        sys.exit(INTERRUPTED)
    except (InvalidArgumentError, ValueError) as error:
        _end(str(error), WRONG_INPUT)
    except (DraftwireError, Failure) as error:
        _end(str(error), FAILED)
    except BrokenPipeError:  # the reader of our output, head for one, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)


def _help_command(error: Any) -> str:
    return f"{error.ctx.command_path if error.ctx else 'draftwire'} --help"


def _end(message: str, code: int) -> NoReturn:
    print(f"draftwire: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
