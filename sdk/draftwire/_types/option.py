"""A declared option of a request: its name and type, and what is known of it besides.

``GenerateOptions`` and ``Speculation`` declare their options, each as ``name: Annotated[type, Option(...)]``. The
checks of types, the request's message, the flags of the command line and the gateway's fields are made from these
declarations.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, reduce
from types import MappingProxyType, NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that an option may be. None sets no bound."""

    least: float | None = None
    """The smallest one."""
    most: float | None = None
    """The largest one."""
    above: float | None = None
    """A number that all of them exceed."""


@dataclass(frozen=True, slots=True)
class Option:
    """The facts about an option besides its name and type."""

    help: str = ""
    """The option's line in the help of the command line, which has no flag for it if this is empty."""
    path: str | None = ""
    """Path of its field in ``GenerateRequest``; empty for the option's own name. None: the message does not have it."""
    default: Any = None
    """The value if it is not given; None leaves the field out."""
    range: Range = Range()
    """The values that the verifier accepts, for checks before it and for error messages."""
    flag: str = ""
    """Flag of the command line; empty for the option's own name. One that begins with ``--no-`` stands for False."""
    many: bool = False
    """Whether the flag of a single value may be repeated."""
    file: bool = False
    """Whether the flag takes the name of a file in place of its text."""
    in_body: bool = False
    """Whether the bodies of the gateway's requests have it as a field of the same name, passed on unchanged."""
    name: str = ""
    """The option's name; set by ``options_of``."""
    type: Any = None
    """The option's type without None; set by ``options_of``."""


@cache
def options_of(holder: type) -> Mapping[str, Option]:
    """Returns the options that a class declares, by name."""
    found: dict[str, Option] = {}
    for name, hint in get_type_hints(holder, include_extras=True).items():
        if get_origin(hint) is Annotated:
            kind, *notes = get_args(hint)
            for note in notes:
                if isinstance(note, Option):
                    path = name if note.path == "" else note.path
                    flag = note.flag or f"--{name.replace('_', '-')}"
                    found[name] = replace(note, name=name, type=_given(kind), path=path, flag=flag)
    return MappingProxyType(found)


def _given(kind: Any) -> Any:
    """Returns a type without None."""
    kinds = [each for each in get_args(kind) if each is not NoneType]
    return reduce(operator.or_, kinds) if NoneType in get_args(kind) else kind
