"""Where a verifier's proposals come from, and where they go: the two sides of the pool of drafters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from drafter_pool.drafter.speculated_request import SpeculatedRequest
from draftwire.v1.verdict_pb2 import Verdict
from speculative_engine.tree.proposal import Proposal, ProposalError


@dataclass(frozen=True, slots=True)
class SequenceProposal:
    """A proposal and what it is for."""

    sequence_id: int
    epoch: int
    """Which of the source's openings of the sequence it belongs to; a verifier only hands it back with a fault."""
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class ProposalFault:
    """A proposal that was refused."""

    sequence_id: int
    epoch: int
    source: str
    error: ProposalError


class ProposalSource(Protocol):
    """What a verifier tells of its requests, so that proposals come. Used in the event loop only."""

    def admit(self, request: SpeculatedRequest) -> None:
        """Draft for a request from now on, if it wants and drafters are ready."""

    def release(self, request: SpeculatedRequest) -> None:
        """Stop drafting for a request."""

    def send_verdicts(self, verdicts: list[Verdict]) -> None:
        """Tell the drafters what a step committed."""

    def refuse(self, fault: ProposalFault) -> None:
        """A drafter sent a proposal that contradicts itself: another one drafts for that sequence, or none."""


class ProposalSink(Protocol):
    """The verifier, as its proposals reach it. Called in the event loop."""

    def attach(self, sequence_id: int, source: str, *, hidden_states: bool = False) -> None:
        """Take proposals of a drafter for a sequence, from its first node on. hidden_states: verdicts are to bring it
        the target's last ones."""

    def detach(self, sequence_id: int, source: str) -> None:
        """Take none any more."""

    def forget(self, source: str) -> None:
        """Take no more proposals of a drafter, and forget what was learned about it."""

    def rest(self, source: str, *, rests: bool) -> None:
        """Await no answers of a drafter, as it is told no verdicts; or await them again."""

    def propose(self, source: str, proposals: Sequence[SequenceProposal]) -> None:
        """Merge one message's proposals. Raises TooManyCommands."""

    def response_seconds(self, source: str) -> float | None:
        """From a verdict to a drafter's first answer, smoothed; None while it is not known."""
