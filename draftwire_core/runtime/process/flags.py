"""Command-line flags generated from the fields of a settings class."""

import argparse
import difflib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from draftwire.version import __version__
from draftwire_core.runtime.process.program import program_name

_UNKNOWN = "unrecognized arguments: "


def flag_of(field: str) -> str:
    """Returns the flag of a field: --max-message-bytes for max_message_bytes."""
    return "--" + field.replace("_", "-")


class Flags:
    """Defines one flag per field: repeated for a field with several values, --x and --no-x for a boolean, text
    otherwise.

    Values stay text, so that types and ranges are checked in one place, whatever their source.
    """

    def __init__(
        self,
        fields: Mapping[str, FieldInfo],
        description: str | None,
        variable: Callable[[str], str],
        config_variable: str | None,
    ) -> None:
        """variable: returns a field's environment variable. config_variable: variable of --config; None omits the
        flag."""
        self._parser = FlagParser(
            prog=program_name(),
            description=(description or "").split("\n\n")[0],
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
        )
        version = f"%(prog)s {__version__}"
        self._parser.add_argument("--version", action="version", version=version, help="Print the version and exit.")
        if config_variable is not None:
            self._parser.add_argument(
                "--config", metavar="FILE.toml", help=f"File with settings. Also: {config_variable}."
            )
        for name, field in fields.items():
            self._add(name, field, variable(name))

    @property
    def program(self) -> str:
        """Name of the program, as a prefix for messages."""
        return self._parser.prog

    def parse(self, argv: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
        """Returns the file named by --config and the given values, by field. Raises SystemExit as argparse does."""
        values = vars(self._parser.parse_args(argv))
        return values.pop("config", None), values

    def _add(self, name: str, field: FieldInfo, variable: str) -> None:
        kind = _kind(field.annotation)
        about = f"{' '.join((field.description or '').split())} {_default(field)} Also: {variable}."
        options: dict[str, Any] = {"dest": name, "help": about.replace("%", "%%").strip()}
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["metavar"] = "|".join(map(str, get_args(kind))) if get_origin(kind) is Literal else name.upper()
        if get_origin(kind) in (tuple, list):
            options["action"] = "append"
        self._parser.add_argument(flag_of(name), **options)


class FlagParser(argparse.ArgumentParser):
    """An argparse parser that reports an error in one line, suggests the closest flag, and exits with status 2."""

    def error(self, message: str) -> NoReturn:
        """Prints the error and exits.

        Raises:
            SystemExit: always, with status 2.
        """
        if message.startswith(_UNKNOWN):
            given = message.removeprefix(_UNKNOWN).split()
            flags = [each for each in given if each.startswith("-")]
            message = "; ".join(map(self._unknown, flags or given))  # other arguments may be values of these flags
        self.exit(2, f"{self.prog}: {message} (all flags: {self.prog} --help)\n")

    def _unknown(self, argument: str) -> str:
        flag = argument.partition("=")[0]
        near = difflib.get_close_matches(flag, self._option_string_actions, n=1) if flag.startswith("-") else []
        what = "flag" if flag.startswith("-") else "argument"
        return f"there is no {what} {flag}" + (f"; did you mean {near[0]}" if near else "")


def _kind(annotation: Any) -> Any:
    """Returns the type that determines the flag, without Annotated and without `| None`."""
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [arg for arg in get_args(annotation) if arg is not types.NoneType]
        if len(rest) == 1:
            return _kind(rest[0])
    return annotation


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "Required."
    default = field.get_default(call_default_factory=False)
    if default is None or default is PydanticUndefined or default in ((), ""):
        return ""
    return f"Default: {', '.join(default) if isinstance(default, tuple) else default}."
