"""A drafter that may be chosen for a target."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The kind of a candidate."""

    MTP = "mtp"
    EAGLE3 = "eagle3"
    DFLASH = "dflash"
    MEDUSA = "medusa"
    MODEL = "model"
    UNIVERSAL = "universal"
    LOOKUP = "lookup"


ACCEPTANCE = {
    Kind.MTP: 0.7,
    Kind.EAGLE3: 0.65,
    Kind.DFLASH: 0.65,
    Kind.MEDUSA: 0.5,
    Kind.MODEL: 0.65,
    Kind.UNIVERSAL: 0.5,
}
"""Assumed chance that a draft token is right given that those before it are, by kind; not measured for the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A drafter, why it may or may not be chosen, and what it costs."""

    kind: Kind
    name: str
    """The drafter for people."""
    source: str = ""
    """Path, or hub id with its scheme, to load it from; empty if there is nothing to load."""
    revision: str = "main"
    """Revision of a hub id."""
    reason: str = ""
    """Why it fits or does not."""
    fits: bool = True
    """Whether it can be chosen."""
    fetch_bytes: int = 0
    """Bytes to download; 0 if it is here."""
    read_bytes: int = 0
    """Bytes of weights that a draft token reads."""
    memory_bytes: int = 0
    """Bytes of weights in memory."""
    licence: str = ""
    checked: str = ""
    """How it was checked that it drafts for such targets."""
    gain: float | None = None
    """Expected speed over plain decoding; None if it depends on the text alone."""
