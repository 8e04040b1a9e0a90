"""The gain to expect of a drafter before it has drafted: from bytes of weights, and from an assumed acceptance."""

from __future__ import annotations

ROW = 0.05
"""Assumed cost of each further row of a pass, as a share of a pass of one row."""
MOST_TOKENS = 8
"""Most draft tokens of a verification that are considered."""
HOW = (
    "reckoned: a draft token costs its bytes of weights over the target's, verifying one costs 5 % of a pass, and the "
    "acceptance is assumed by the kind of drafter"
)
"""How the gain is reckoned, for people."""


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
