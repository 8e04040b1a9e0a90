"""A stream's proposals on their way to the verifier: sent at once, or gathered while it computes a step."""

import asyncio
from collections.abc import Callable, Mapping

from drafter_service.conversation.opened_sequence import SequenceKey
from draftwire.v1.proposal_pb2 import Proposal, ProposalBatch

_LONGEST_SECONDS = 10.0
"""Maximum time for which proposals are gathered, whatever the verifier says."""
_EARLY = 0.75
"""Part of the time after which they are sent, too: the nodes drafted first are worth most, and must not come too late
if the verifier's step is shorter than expected."""


class GatheredProposals:
    """Gathers the proposals of drafting steps from a StepBegun until its time is over or a verdict arrives.

    The verifier's step verifies none of them, and a message costs the verifier as much as many nodes. Each sequence's
    nodes become one proposal. The sequences' credit bounds them.
    """

    def __init__(self, send: Callable[[ProposalBatch], None], is_open: Callable[[SequenceKey], bool]) -> None:
        """is_open: whether an opening still exists; gathered nodes of one that has ended are dropped."""
        self._send = send
        self._is_open = is_open
        self._gathered: dict[SequenceKey, Proposal] = {}
        self._seconds = 0.0
        self._steps = 0
        self._timers: list[asyncio.TimerHandle] = []

    def gather(self, seconds: float) -> None:
        """Gathers what comes in the next `seconds`, after sending what was gathered before."""
        self.release()
        if seconds > 0:
            whole, later = min(seconds, _LONGEST_SECONDS), asyncio.get_running_loop().call_later
            self._timers = [later(_EARLY * whole, self._send_gathered), later(whole, self.release)]

    def take(self, proposals: Mapping[SequenceKey, Proposal], seconds: float) -> None:
        """Sends or gathers the proposals of a drafting step, which took `seconds`."""
        if not self._timers:
            self._send(ProposalBatch(proposals=proposals.values(), step_seconds=seconds))
            return
        if any(
            key in self._gathered and self._gathered[key].committed_length != proposal.committed_length
            for key, proposal in proposals.items()
        ):
            self._send_gathered()  # the two were drafted for different roots
        for key, proposal in proposals.items():
            gathered = self._gathered.get(key)
            if gathered is None:
                self._gathered[key] = proposal
            else:
                gathered.token_ids.extend(proposal.token_ids)
                gathered.parent_ids.extend(proposal.parent_ids)
                gathered.log_probs.extend(proposal.log_probs)
                gathered.distributions.extend(proposal.distributions)
                gathered.last = proposal.last
        self._seconds += seconds
        self._steps += 1

    def release(self) -> None:
        """Sends the gathered proposals and stops gathering."""
        self.stop()
        self._send_gathered()

    def stop(self) -> None:
        """Stops gathering; the gathered proposals are not sent."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _send_gathered(self) -> None:
        proposals = [proposal for key, proposal in self._gathered.items() if self._is_open(key)]
        if proposals:
            self._send(ProposalBatch(proposals=proposals, step_seconds=self._seconds, gathered_steps=self._steps))
        self._gathered.clear()
        self._seconds, self._steps = 0.0, 0
