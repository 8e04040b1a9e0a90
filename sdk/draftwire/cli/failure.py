"""The error that ends a command."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire._extras import how_to_install, missing


class Failure(Exception):
    """Ends the command with its message on stderr and the exit code 1."""


def check_installed(what: str, needed: Sequence[str], extra: str = "serve") -> None:
    """Checks that packages are installed, without importing them.

    Args:
        what: what requires them, for the message.
        needed: their names.
        extra: what installs them.

    Raises:
        Failure: something is not installed.
    """
    if lacking := missing(needed):
        raise Failure(f"{what} requires {', '.join(lacking)}: {how_to_install(extra)}")
