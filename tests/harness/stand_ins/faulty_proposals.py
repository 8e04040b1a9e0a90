"""Drafters whose proposals have one fault each, for the tests of the check that has to find it."""

import math
from collections.abc import Callable
from typing import Any

from draftwire.v1 import drafter_service_pb2 as pb
from draftwire.v1.proposal_pb2 import Proposal
from tests.harness.stand_ins.bigram_drafter import VOCABULARY, Conversation, Opened

Responses = list[pb.DraftResponse]


def outgoing(change: Callable[[Opened, Proposal], None]) -> type[Conversation]:
    """Returns a drafter whose proposals are changed before they are sent."""

    class Changed(Conversation):
        def batch(self, proposals: list[Proposal]) -> Responses:
            for proposal in proposals:
                change(self.opened[proposal.sequence_id], proposal)
            return super().batch(proposals)

    return Changed


def shifted(_: Opened, proposal: Proposal) -> None:
    proposal.first_node_id -= 1


def orphaned(_: Opened, proposal: Proposal) -> None:
    proposal.parent_ids[0] = 999


def uneven(_: Opened, proposal: Proposal) -> None:
    proposal.parent_ids.append(0)


def certain(_: Opened, proposal: Proposal) -> None:
    proposal.log_probs[0] = 0.5


def undefined(_: Opened, proposal: Proposal) -> None:
    proposal.log_probs[0] = math.nan


def too_few_log_probs(_: Opened, proposal: Proposal) -> None:
    proposal.log_probs.append(-1)


def ahead(_: Opened, proposal: Proposal) -> None:
    proposal.committed_length += 1


def invented(_: Opened, proposal: Proposal) -> None:
    proposal.token_ids[-1] = VOCABULARY


def talkative(_: Opened, proposal: Proposal) -> None:
    proposal.distributions.add(parent_id=0, token_ids=[1], probabilities=[1.0])


def mute_about_draws(known: Opened, proposal: Proposal) -> None:
    if known.draws:
        del proposal.distributions[0]


def improbable(known: Opened, proposal: Proposal) -> None:
    if known.draws:
        proposal.distributions[0].probabilities[0] = 0.9


def foreign_draw(known: Opened, proposal: Proposal) -> None:
    if known.draws:
        proposal.distributions[0].token_ids[0] += 1


def drawn_twice(known: Opened, proposal: Proposal) -> None:
    if known.draws:
        proposal.token_ids.append(proposal.token_ids[0])
        proposal.parent_ids.append(proposal.parent_ids[0])
        proposal.log_probs.append(proposal.log_probs[0])
        known.next_id += 1


def never_opened(_: Opened, proposal: Proposal) -> None:
    proposal.sequence_id += 50


class TwoProposals(Conversation):
    def batch(self, proposals: list[Proposal]) -> Responses:
        again = [self.opened[each.sequence_id].proposal([each.token_ids[0]]) for each in proposals]
        return super().batch([*proposals, *again])


class EmptyBatch(Conversation):
    def draft(self, sequences: Any, asked: int | None = None) -> Responses:
        return super().draft(sequences, asked) + self.batch([])


class EmptyProposal(Conversation):
    def draft(self, sequences: Any, asked: int | None = None) -> Responses:
        return self.batch([each.proposal([]) for each in sequences])
