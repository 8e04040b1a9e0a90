"""Starts the process of a service or of the gateway; what is not installed is named before anything imports it."""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
from collections.abc import Sequence

from draftwire._program.flag_parser import program_name

NOT_INSTALLED = 1
"""Exit status where packages are missing, as for other causes that an operator can mend."""


def run_program(module: str, *, extra: str, needed: Sequence[str]) -> int:
    """Runs ``main`` of a module and returns the exit status.

    Args:
        module: the module with the program, whose imports take their time.
        extra: the extra of this distribution that brings what it needs.
        needed: top-level packages that it needs beside the SDK's.
    """
    # Until the program takes signals itself, Ctrl-C in the middle of an import is no fault that wants a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"{program_name()}: install draftwire[{extra}], of which {', '.join(missing)} is missing: "
            f"pip install -e '.[{extra}]' in a checkout",
            file=sys.stderr,
        )
        return NOT_INSTALLED
    status: int = importlib.import_module(module).main()
    return status
