"""What was learned of a drafter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from draftwire.v1 import calibration_pb2


@dataclass(frozen=True, slots=True)
class AcceptanceClass:
    """A kind of draft tokens and how often they are right."""

    rank: int
    """Place among their siblings, likeliest first: 0, 1, or 2 for all further ones."""
    above: float
    """The drafter gave them a probability above this, and not above that of the rank's next class."""
    acceptance: float
    """Chance that such a token is on the target's path when its parent is, in [0, 1]."""
    observations: float
    """Number of tokens that the chance is taken from, older ones counting less; it begins with a few that stand for
    the guess from before the first."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a verifier goes by when it chooses what to verify of a drafter's tokens, and whether to wait."""

    drafter: str
    """The drafter's name in the pool."""
    classes: list[AcceptanceClass]
    """How likely its tokens are, by rank and then by the drafter's own probability."""
    first_acceptance: float
    """How likely a first child is, whatever its class: what is expected of a token that has not come yet."""
    response_seconds: float
    """Smoothed time from a verdict that left an empty tree to the first proposal that builds on it; like
    ``proposal_interval_seconds`` 0.0 for a drafter that is never waited for."""
    proposal_interval_seconds: float
    """Smoothed time from one proposal for a sequence to the next."""


def read_classes(messages: Iterable[calibration_pb2.AcceptanceClass]) -> list[AcceptanceClass]:
    """Return classes from their messages."""
    return [
        AcceptanceClass(message.rank, message.above, message.acceptance, message.observations) for message in messages
    ]


def read_calibration(message: calibration_pb2.Calibration) -> Calibration:
    """Return a ``Calibration`` from its message."""
    return Calibration(
        drafter=message.drafter,
        classes=read_classes(message.classes),
        first_acceptance=message.first_acceptance,
        response_seconds=message.response_time.ToNanoseconds() / 1e9,
        proposal_interval_seconds=message.proposal_interval.ToNanoseconds() / 1e9,
    )
