"""A drafter that may be chosen for a target, and the gain to expect of it before it has drafted."""

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
class DrafterCandidate:
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
    slot_bytes: int = 0
    """Bytes of its own KV slots for a token of the target's; 0 if they are few, or of a fixed number."""
    licence: str = ""
    checked: str = ""
    """How it was checked that it drafts for such targets."""
    gain: float | None = None
    """Expected speed over plain decoding; None if it depends on the text alone."""


ROW = 0.05
"""Assumed cost of each further row of a pass, as a share of a pass of one row."""
MOST_TOKENS = 8
"""Most draft tokens of a verification that are considered."""
HOW = (
    "reckoned: a draft token costs its bytes of weights over the target's, verifying one costs 5 % of a pass, and the "
    "acceptance is assumed by the kind of drafter"
)
"""The calculation of the gain, for people."""


def expected_gain(acceptance: float, cost: float) -> float:
    """Returns the expected speed over plain decoding, one request at a time, drafter and target in turns.

    A chain of the best length is verified, of which each token is right with the same chance. acceptance: that chance,
    0 to 1. cost: of a draft token, as a share of a pass of the target.
    """
    best, tokens, chance = 1.0, 1.0, 1.0
    for length in range(1, MOST_TOKENS + 1):
        chance *= acceptance
        tokens += chance
        best = max(best, tokens / (1.0 + length * (cost + ROW)))
    return best
