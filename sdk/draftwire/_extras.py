"""The extras of the distributions: which has one, how to install it, and what of it is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

_CHECKOUT = Path(__file__).parents[2] / "pyproject.toml"
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
