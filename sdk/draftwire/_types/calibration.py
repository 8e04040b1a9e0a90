"""Calibration of a drafter: learned acceptance probabilities and response times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from draftwire.v1 import calibration_pb2


@dataclass(frozen=True, slots=True)
class AcceptanceClass:
    """A class of draft tokens, by rank and draft probability, and how often they are accepted."""

    rank: int
    """Rank among siblings, likeliest first: 0, 1, or 2 for all further ones."""
    above: float
    """Lower bound of the probability that the drafter gave the tokens; the upper bound is that of the rank's next
    class."""
    acceptance: float
    """Probability that such a token is on the target's path if its parent is, in [0, 1]."""
    observations: float
    """Number of tokens behind this estimate, older ones counting less. It starts with a few that stand for the initial
    guess."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The statistics by which a verifier chooses a drafter's tokens to verify, and decides whether to wait for them."""

    drafter: str
    """The drafter's name in the pool."""
    classes: list[AcceptanceClass]
    """Acceptance of its tokens, by rank and then by the drafter's own probability."""
    first_acceptance: float
    """Acceptance of first children of all classes: the expectation for a token that has not arrived yet."""
    response_seconds: float
    """Smoothed time from a verdict that left an empty tree to the first proposal that builds on it; 0.0 for a drafter
    that is never waited for."""
    proposal_interval_seconds: float
    """Smoothed time from one proposal for a sequence to the next; 0.0 for a drafter that is never waited for."""


def read_classes(messages: Iterable[calibration_pb2.AcceptanceClass]) -> list[AcceptanceClass]:
    """Returns classes from their messages."""
    return [
        AcceptanceClass(message.rank, message.above, message.acceptance, message.observations) for message in messages
    ]


def read_calibration(message: calibration_pb2.Calibration) -> Calibration:
    """Returns a ``Calibration`` from its message."""
    return Calibration(
        drafter=message.drafter,
        classes=read_classes(message.classes),
        first_acceptance=message.first_acceptance,
        response_seconds=message.response_time.ToNanoseconds() / 1e9,
        proposal_interval_seconds=message.proposal_interval.ToNanoseconds() / 1e9,
    )
