"""Entry point of the services and the gateway, which names missing packages before anything imports them."""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
from collections.abc import Sequence

from draftwire._program.flag_parser import program_name

NOT_INSTALLED = 1
"""Exit status if packages are missing, as for other causes that an operator can fix."""


def run_program(module: str, *, extra: str, needed: Sequence[str]) -> int:
    """Runs ``main`` of a module and returns the exit status.

    Args:
        module: the module with the program, whose imports take seconds.
        extra: the extra of this distribution that installs the packages needed.
        needed: top-level packages that the program needs in addition to the SDK's.
    """
    # Until the program handles signals itself, Ctrl-C during an import should not print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"{program_name()}: requires draftwire[{extra}], but {', '.join(missing)} is missing: "
            f"pip install -e '.[{extra}]' in a checkout",
            file=sys.stderr,
        )
        return NOT_INSTALLED
    status: int = importlib.import_module(module).main()
    return status
