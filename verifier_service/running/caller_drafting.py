"""The drafting of a caller for its own request, and the account that decides whether its proposals are taken."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.engine.engine.step_result import SequenceOutcome, StepResult
from draftwire_core.engine.tree.proposal import Proposal, ProposalError
from draftwire_core.pool.drafter.proposal_sink import ProposalSink, SequenceProposal
from draftwire_core.pool.standing.pause_policy import PausePolicy
from draftwire_core.runtime.errors import ServiceError

MOST_OVERDRAFT = 4.0
"""Limit of what messages of a paused caller cost beyond its account, in plain steps; then its drafting is refused."""


class CallerDrafting:
    """A caller as a drafter, with the same account as a drafter of the pool.

    The processor time of its messages, useful or not, is set against the tokens that were accepted. While it is paused
    its proposals are ignored; it still gets all verdicts, since they are the output. Used in the event loop only.
    """

    def __init__(
        self, sink: ProposalSink, sequence_id: int, source: str, refused: Callable[[ProposalError], None]
    ) -> None:
        """refused: called with a proposal that contradicts itself; no later proposal is accepted."""
        self._sink = sink
        self._sequence_id = sequence_id
        self.source = source
        self.refused = refused
        self.policy = PausePolicy()
        self._paused = False

    def propose(self, proposal: Proposal) -> bool:
        """Submits a proposal. Returns False for one that is ignored. Raises TooManyCommands."""
        if self.policy.paused:
            return False
        self._sink.propose(self.source, [SequenceProposal(self._sequence_id, 0, proposal)])
        return True

    def charge(self, seconds: float) -> ServiceError | None:
        """Charges the processor time of the caller's messages.

        Returns the error to refuse its drafting with if its messages go on costing time though it is paused. Raises it
        if they still do after that.
        """
        self.policy.charge(seconds)
        overdraft = self.policy.overdraft
        if overdraft < MOST_OVERDRAFT:
            return None
        error = ServiceError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            ErrorReason.ERROR_REASON_CREDIT_EXCEEDED,
            "the caller's proposals cost the verifier more time than they save",
        )
        if overdraft < 2 * MOST_OVERDRAFT:
            return error
        raise error

    def stepped(self, result: StepResult, outcome: SequenceOutcome | None) -> None:
        """Settles a step. outcome: that of the caller's request, if it got tokens and continues."""
        self.policy.price(result.plain_seconds, result.node_tokens)
        merged = result.merged.get(self.source)
        if merged is not None:
            self.policy.merged(merged.seconds, merged.nodes)
        if outcome is not None:
            self.policy.verified(outcome.drafted.get(self.source, 0), outcome.sources.count(self.source))
            self.policy.stepped(1)
        if self.policy.paused is not self._paused:
            self._paused = self.policy.paused
            self._sink.pause(self.source, paused=self._paused)
