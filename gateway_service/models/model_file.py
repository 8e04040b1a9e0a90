"""The file of models: their names, and the targets that their requests are divided among."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from draftwire._auth.watched_files import WatchedFiles
from draftwire._types.verifier import parse_verifiers
from draftwire_core.runtime.process.table_file import read_tables

_MOST_NAME = 256
_STRICT = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class TargetEntry:
    """Verifiers with one target model."""

    verifiers: tuple[str, ...]
    """Addresses, HOST:PORT, each optionally with ?weight=NUMBER."""
    share: float = 1.0
    """Share of the new requests, relative to the other targets of the name; 0 gets none."""


@dataclass(frozen=True)
class ModelEntry:
    """One model as clients see it."""

    names: tuple[str, ...]
    """The name and its aliases; without any, the verifiers' own name of the model."""
    targets: tuple[TargetEntry, ...]
    """At least one target, with a share above 0."""


class _Target(BaseModel):
    model_config = _STRICT

    verifiers: tuple[str, ...] = Field(min_length=1)
    share: float = Field(default=1.0, ge=0, allow_inf_nan=False)


class _Table(BaseModel):
    """One table of the file."""

    model_config = _STRICT

    aliases: tuple[str, ...] = ()
    verifiers: tuple[str, ...] = ()
    targets: tuple[_Target, ...] = ()

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.verifiers) == bool(self.targets):
            raise ValueError("needs either verifiers or targets")
        if self.targets and not any(target.share for target in self.targets):
            raise ValueError("targets: one of them needs a share above 0")
        return self

    @property
    def entries(self) -> tuple[TargetEntry, ...]:
        if self.verifiers:
            return (TargetEntry(self.verifiers),)
        return tuple(TargetEntry(target.verifiers, target.share) for target in self.targets)


class ModelFile:
    """The models of a TOML file with one table per name:

        [small]
        verifiers = ["host-1:50051", "host-2:50051"]

    The file is read again when it changes.
    """

    def __init__(self, path: str | Path, check: Callable[[str], None]) -> None:
        """Reads the file. check: raises ValueError for an address that may not be called.

        Raises:
            ValueError: the file cannot be used; the message names it.
        """
        self._path = Path(path)
        self._check = check
        self._file = WatchedFiles([path], self._read)

    def __call__(self) -> tuple[ModelEntry, ...]:
        """Returns the models, in the file's order. The object changes only with the file."""
        return self._file.get()

    def _read(self) -> tuple[ModelEntry, ...]:
        tables = read_tables(self._path, _Table, "model", empty="")
        models = tuple(self._entry(name, table) for name, table in tables.items())
        seen: set[str] = set()
        for name in (name for model in models for name in model.names):
            if not 0 < len(name) <= _MOST_NAME or not name.isprintable():
                raise ValueError(f"{self._path}: {name!r} is not a valid name of a model")
            if name in seen:
                raise ValueError(f"{self._path}: {name} is the name of two models")
            seen.add(name)
        return models

    def _entry(self, name: str, table: _Table) -> ModelEntry:
        for target in table.entries:
            try:
                for verifier in parse_verifiers(target.verifiers):
                    self._check(verifier.address)
            except ValueError as error:
                raise ValueError(f"{self._path}: {name}: {error}") from error
        return ModelEntry((name, *table.aliases), table.entries)
