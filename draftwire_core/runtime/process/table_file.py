"""TOML files with one table per name, which operators write."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

Entry = TypeVar("Entry", bound=BaseModel)
_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)


def read_tables(path: Path, entry: type[Entry], what: str, *, empty: str, secret: bool = False) -> dict[str, Entry]:
    """Returns the tables of a file by their names, in the file's order.

    what: the thing that a table describes. empty: the reason why a file without tables is refused. secret: whether the
    file has secrets, so that nothing of its text may be shown. Raises ValueError: the message names the file and the
    field.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if secret:
            raise ValueError(f"{path} is not valid TOML: {type(error).__name__}") from None
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    if not tables:
        raise ValueError(f"{path} names no {what}{empty}")
    entries: dict[str, Entry] = {}
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise ValueError(f"{path}: {name}: expected a table, [NAME], for each {what}")
        try:
            entries[name] = entry.model_validate(table)
        except ValidationError as error:
            [problem, *_] = error.errors(include_input=False, include_url=False)
            place = ".".join([name, *map(str, problem["loc"])])
            message = str(problem["msg"]).removeprefix("Value error, ")
            raise ValueError(f"{path}: {place}: {message[:1].lower()}{message[1:]}") from None
    return entries


def check_name(name: str, what: str, place: object) -> None:
    """Raises ValueError for a name that a caller, or a gateway's client, cannot have.

    what: the thing with that name. place: the file or the field that has the name.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{place}: {name!r} is not a valid {what} name: use up to 64 letters, digits and _.@-")
