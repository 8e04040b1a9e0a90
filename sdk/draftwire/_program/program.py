"""Entry point of the services and the gateway, which names missing packages, and how to install them, before anything
imports them."""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from draftwire._program.flag_parser import program_name

_CHECKOUT = Path(__file__).parents[3] / "pyproject.toml"
_OF_THE_SDK = ("bench",)
"""Extras of the distribution `draftwire`; the others are those of `draftwire-services`."""


def how_to_install(extra: str) -> str:
    """Returns the command that installs the packages of an extra, and in an installation the services themselves."""
    if _CHECKOUT.exists():
        return f"pip install -e '.[{extra}]' in a checkout"
    return f"pip install '{distribution(extra)}[{extra}]'"


def distribution(extra: str) -> str:
    """Returns the distribution that has an extra; in a checkout there is one for all."""
    return "draftwire" if extra in _OF_THE_SDK or _CHECKOUT.exists() else "draftwire-services"


def missing(modules: Iterable[str]) -> list[str]:
    """Returns the modules that are not installed, without importing them, except for the packages that they are in."""
    return [name for name in modules if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False


NOT_INSTALLED = 1
"""Exit status if packages are missing, as for other causes that an operator can fix."""


def run_program(module: str, *, extra: str, needed: Sequence[str]) -> int:
    """Runs ``main`` of a module and returns the exit status.

    Args:
        module: the module with the program, whose imports take seconds.
        extra: the extra of the distribution that installs the packages needed.
        needed: top-level packages that the program needs in addition to the SDK's.
    """
    # Until the program handles signals itself, Ctrl-C during an import should not print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if lacking := missing(needed):
        print(
            f"{program_name()}: requires {distribution(extra)}[{extra}], but {', '.join(lacking)} is missing: "
            f"{how_to_install(extra)}",
            file=sys.stderr,
        )
        return NOT_INSTALLED
    status: int = importlib.import_module(module).main()
    return status
