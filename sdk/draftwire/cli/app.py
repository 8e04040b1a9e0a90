"""The command line: its commands, and the handling of their errors."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, MutableMapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from draftwire._extras import distribution, how_to_install
from draftwire.cli.failure import Failure
from draftwire.errors import DraftwireError, InvalidArgumentError
from draftwire.version import __version__

_MODULES = {
    "generate": "draftwire.cli.generate",
    "chat": "draftwire.cli.chat",
    "drafters": "draftwire.cli.drafters",
    "version": "draftwire.cli.app",
}
"""The commands of this package, each with its module."""
_TOOLS = ("demo", "serve", "top", "bench", "check", "check-drafter", "probe")
"""The commands of `draftwire_tools`, which is in the same distribution: nobody else can add one of these names."""
_FIRST = ("demo", "serve", "generate", "chat", "top", "bench", "check", "check-drafter", "probe", "drafters")
"""The order of the help; then come the commands of others, and at the end the version."""
_OF_THE_SERVICES = ("calibrate", "plan", "train")
"""Commands that come with the services; without them they say what to install."""
GROUP = "draftwire.commands"
"""Group of entry points by which other packages add commands: functions, or ``typer.Typer`` objects."""
_EXTRA = "serve"
_ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}
FAILED = 1
"""Exit code of a command that failed."""
WRONG_INPUT = 2
"""Exit code of a command with invalid input."""
INTERRUPTED = 130
"""Exit code of an interrupted command, by shell convention."""

UsageError: Any = typer.BadParameter.__mro__[1]
"""Typer's exception for wrong usage. It has no public name: depending on the version it is click's or Typer's own."""


class _Commands(MutableMapping[str, Any]):
    """The commands by name, each imported on first use, so that frequent health checks import only one."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            if name in _MODULES:
                command = _command(getattr(import_module(_MODULES[name]), name.replace("-", "_")))
            elif entry := self._added[name]:
                command = _command(_load(entry))
            else:
                command = _command(_absent(name), context_settings=_ANY_ARGUMENTS)
            command.name = name
            self._loaded[name] = command
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*_FIRST, *(name for name in self._added if name not in _TOOLS), "version"])

    def __len__(self) -> int:
        return len(_MODULES) + len(self._added)

    @cached_property
    def _added(self) -> dict[str, EntryPoint | None]:
        """Returns the commands of other packages, and of the tools, by name, None for those that are not installed.

        Needed only for commands that are not this package's own.
        """
        found = {
            each.name: each
            for each in entry_points(group=GROUP)
            if each.name not in _TOOLS or each.value.startswith("draftwire_tools.")
        }
        return {name: found.get(name) for name in sorted({*found, *_TOOLS, *_OF_THE_SERVICES} - _MODULES.keys())}


def _command(found: Any, **options: Any) -> Any:
    """Returns the command of a function or of a ``typer.Typer`` with subcommands."""
    if isinstance(found, typer.Typer):
        return typer.main.get_group(found)
    one = typer.Typer(add_completion=False)
    one.command(**options)(found)
    return typer.main.get_command(one)


def _load(entry: EntryPoint) -> Any:
    """Returns the command of an entry point.

    Raises:
        Failure: the command cannot be imported.
    """
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise Failure(f"the command {entry.name} ({entry.value}) cannot be loaded: {error}") from error


def _absent(name: str) -> Callable[[], None]:
    """Returns the command that says how to install the command of this name."""
    if name in _TOOLS:
        raise Failure(f"the entry points of draftwire {__version__} lack {name}: install it again")

    def absent() -> None:
        raise Failure(f"{name} is a command of {distribution(_EXTRA)}: {how_to_install(_EXTRA)}")

    absent.__doc__ = f"Part of {distribution(_EXTRA)}, which is not installed."
    return absent


class _Group(TyperGroup):
    """The command group, whose commands are loaded lazily."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands()


app = typer.Typer(
    name="draftwire",
    cls=_Group,
    help="Speculative decoding over the wire.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def draftwire(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
) -> None:
    """Speculative decoding over the wire."""
    if version:
        print(__version__)
        raise typer.Exit


def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Runs the command line. A failure prints one line on stderr; the exit code is then 1, or 2 for invalid input."""
    for closed in [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]:  # by who began this
        setattr(sys, closed, open(os.devnull, "r+"))  # noqa: SIM115, PTH123
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: few encodings have every character
    try:
        # By default Typer prints usage, a hint and a box for wrong usage.
        status = app(standalone_mode=False)  # None, or the status of a command that ends early, as --help does
        print(end="", flush=True)  # what cannot be written is told here, and not by the interpreter as it ends
        sys.exit(status)
    except UsageError as error:
        message = error.format_message().strip()
        if not message:  # a command that was given nothing has shown its help
            sys.exit(WRONG_INPUT)
        if getattr(error, "option_name", "") in ("--port", "--host"):  # of other servers; typer would guess
            message = f"No such option: {error.option_name}. Addresses are HOST:PORT, as in --listen 127.0.0.1:8000"
        _end(f"{message} (see {error.ctx.command_path if error.ctx else 'draftwire'} --help)", WRONG_INPUT)
    except typer.Abort:
        sys.exit(INTERRUPTED)
    except (InvalidArgumentError, ValueError) as error:
        _end(str(error), WRONG_INPUT)
    except (DraftwireError, Failure) as error:
        _end(str(error), FAILED)
    except OSError as error:  # the reader of the output has closed it, as head does, or a disk is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(FAILED)
        _end(str(error) or repr(error), FAILED)


def _end(message: str, code: int) -> NoReturn:
    print(f"draftwire: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
