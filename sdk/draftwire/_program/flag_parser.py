"""Command-line parser of the services, which reports a wrong flag in one line."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from typing import NoReturn

_UNKNOWN = "unrecognized arguments: "


def program_name() -> str:
    """Returns the command that started this process, for messages: a script's name, or ``python -m PACKAGE``."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name.endswith(".__main__"):
        return f"python -m {spec.parent}"
    return Path(sys.argv[0]).name


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
