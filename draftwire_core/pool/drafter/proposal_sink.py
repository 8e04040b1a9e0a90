"""The pool's interface to the verifier: takes proposals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from draftwire_core.engine.tree.proposal import Proposal, ProposalError


class SequenceProposal(NamedTuple):
    """A proposal with the opening that it belongs to."""

    sequence_id: int
    epoch: int
    """Number of the source's opening of the sequence; the verifier uses it only in a RefusedProposal."""
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class RefusedProposal:
    """A proposal that was refused."""

    sequence_id: int
    epoch: int
    source: str
    error: ProposalError


class ProposalSink(Protocol):
    """Takes proposals and decides which of them are verified. Called in the event loop."""

    def attach(self, sequence_id: int, source: str, *, hidden_states: bool = False) -> None:
        """Starts taking a drafter's proposals for a sequence, from the first node on. hidden_states: whether the
        drafter's verdicts carry the target's last hidden states."""

    def detach(self, sequence_id: int, source: str) -> None:
        """Stops taking a drafter's proposals for a sequence."""

    def forget(self, source: str) -> None:
        """Stops taking a drafter's proposals, and drops its statistics."""

    def pause(self, source: str, *, paused: bool) -> None:
        """Stops waiting for the proposals of a drafter that is paused, or waits for them again."""

    def propose(self, source: str, proposals: Sequence[SequenceProposal]) -> None:
        """Merges the proposals of one message into the trees. Raises TooManyCommands."""

    def response_seconds(self, source: str) -> float | None:
        """Returns the smoothed time in seconds from a verdict to a drafter's first answer; None while unknown."""
