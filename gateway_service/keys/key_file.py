"""The file of named keys, and what the holder of each may use."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, SecretStr, model_validator

from draftwire._auth.watched_files import WatchedFiles
from draftwire_core.runtime.process.table_file import check_name, read_tables

LEAST_KEY_LENGTH = 16
"""Least number of characters of a key; a shorter one could be guessed."""

_Limit = Field(default=None, ge=1)


@dataclass(frozen=True)
class NamedKey:
    """One entry of the file of keys, without the key. A limit of None is none."""

    name: str
    """Name of the entry, for the log, metrics and the verifier."""
    models: frozenset[str] | None = None
    """Models that may be used: names permit all their aliases, aliases only themselves. None permits all."""
    requests_per_minute: int | None = None
    """Most requests in any 60 seconds."""
    tokens_per_minute: int | None = None
    """Most tokens, of prompts and outputs together, in any 60 seconds."""
    max_running: int | None = None
    """Most choices that are generated at once."""
    expires: datetime | None = None
    """Time from which the key is refused."""
    operator: bool = False
    """Whether the holder may read the metrics and use the console, which no limit bounds."""

    def permits(self, *names: str) -> bool:
        """Returns whether the model with these names may be used."""
        return self.models is None or not self.models.isdisjoint(names)

    def expired(self, now: float) -> bool:
        """Returns whether the key has expired. now: seconds of Unix time."""
        return self.expires is not None and datetime.fromtimestamp(now, UTC) >= self.expires


class _Entry(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    key: SecretStr | None = None
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-fA-F]{64}$")
    models: frozenset[str] | None = Field(default=None, min_length=1)
    requests_per_minute: int | None = _Limit
    tokens_per_minute: int | None = _Limit
    max_running: int | None = _Limit
    expires: AwareDatetime | None = None
    operator: bool = False

    @model_validator(mode="after")
    def _one_secret(self) -> Self:
        if (self.key is None) == (self.sha256 is None):
            raise ValueError("needs either key or sha256")
        if self.key is not None and len(self.key.get_secret_value()) < LEAST_KEY_LENGTH:
            raise ValueError(f"key: needs at least {LEAST_KEY_LENGTH} characters")
        return self

    @property
    def digest(self) -> bytes:
        if self.sha256 is not None:
            return bytes.fromhex(self.sha256)
        assert self.key is not None
        return digest_of(self.key.get_secret_value())


class KeyFile:
    """The named keys of a TOML file with one table per key:

        [alice]
        sha256 = "9f86d0..."   # or key = "the key itself"
        requests_per_minute = 60

    The file is read again when it changes. Only digests are kept.
    """

    def __init__(self, path: str | Path) -> None:
        """Reads the file.

        Raises:
            ValueError: the file cannot be used; the message names it, but shows no key.
        """
        self._path = Path(path)
        self._file = WatchedFiles([path], self._read)

    @property
    def keys(self) -> Mapping[bytes, NamedKey]:
        """The keys by the digests of their texts."""
        return self._file.get()

    def _read(self) -> dict[bytes, NamedKey]:
        entries = read_tables(self._path, _Entry, "key", empty=": every request would be refused", secret=True)
        keys: dict[bytes, NamedKey] = {}
        for name, entry in entries.items():
            check_name(name, "key", self._path)
            if entry.digest in keys:
                raise ValueError(f"{self._path}: {keys[entry.digest].name} and {name} have the same key")
            keys[entry.digest] = NamedKey(name, **entry.model_dump(exclude={"key", "sha256"}))
        return keys


def digest_of(key: str) -> bytes:
    """Returns the digest of a key, which is never kept itself."""
    return hashlib.sha256(key.encode(errors="replace")).digest()
