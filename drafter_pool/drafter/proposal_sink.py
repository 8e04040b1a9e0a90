"""The verifier as the pool of drafters sees it: where proposals go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from speculative_engine.tree.proposal import Proposal, ProposalError


@dataclass(frozen=True, slots=True)
class SequenceProposal:
    """A proposal with the opening that it belongs to."""

    sequence_id: int
    epoch: int
    """Number of the source's opening of the sequence; the verifier only returns it with a fault."""
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class ProposalFault:
    """A proposal that was refused."""

    sequence_id: int
    epoch: int
    source: str
    error: ProposalError


class ProposalSink(Protocol):
    """Takes proposals and decides which of them are verified. Called in the event loop."""

    def attach(self, sequence_id: int, source: str, *, hidden_states: bool = False) -> None:
        """Take proposals of a drafter for a sequence, from its first node on. hidden_states: whether its verdicts carry
        the target's last hidden states."""

    def detach(self, sequence_id: int, source: str) -> None:
        """Take no more proposals of a drafter for a sequence."""

    def forget(self, source: str) -> None:
        """Take no more proposals of a drafter, and forget what was learned about it."""

    def rest(self, source: str, *, rests: bool) -> None:
        """Await no answers of a drafter, which gets no verdicts for now (`rests`), or await them again."""

    def propose(self, source: str, proposals: Sequence[SequenceProposal]) -> None:
        """Merge one message's proposals. Raises TooManyCommands."""

    def response_seconds(self, source: str) -> float | None:
        """Smoothed time in seconds from a verdict to a drafter's first answer; None while it is not known."""
