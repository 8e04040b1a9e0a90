"""The error that ends a command."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence


class Failure(Exception):
    """Ends the command with its message on stderr and the exit code 1."""


def check_installed(what: str, needed: Sequence[str]) -> None:
    """Checks that packages are installed, without importing them. ``what`` names in the message what requires them.

    Raises:
        Failure: something is not installed.
    """
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise Failure(f"{what} requires {', '.join(missing)}: pip install -e '.[serve]' in a checkout")
