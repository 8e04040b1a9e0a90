"""A named key: what its holder may use."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime


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
