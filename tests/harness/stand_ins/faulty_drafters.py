"""Drafters whose conversation has one fault each, for the tests of the check that has to find it.

Those whose proposals are faulty are in `faulty_proposals`.
"""

from typing import Any

import grpc

from draftwire.v1 import drafter_service_pb2 as pb
from draftwire.v1.model_info_pb2 import PeerInfo
from draftwire.v1.proposal_pb2 import Proposal, ProposalBatch
from draftwire.v1.verdict_pb2 import Verdict
from tests.harness.stand_ins.bigram_drafter import (
    TOKENIZER,
    BigramDrafter,
    Conversation,
    Opened,
    Refused,
    StreamRefused,
)
from tests.harness.stand_ins.fake_verifier import rich_status

Responses = list[pb.DraftResponse]


class Timeless(Conversation):
    def batch(self, proposals: list[Proposal]) -> Responses:
        return [pb.DraftResponse(proposals=ProposalBatch(proposals=proposals))]


class Eternal(Conversation):
    def batch(self, proposals: list[Proposal]) -> Responses:
        return [pb.DraftResponse(proposals=ProposalBatch(proposals=proposals, step_seconds=1e6))]


class Greedy(Conversation):
    """Drafts more than its credit, and beyond the end."""

    def begin(self, chunk: pb.OpenSequence) -> Opened:
        begun = super().begin(chunk)
        begun.credit += 3
        return begun


class Endless(Conversation):
    def begin(self, chunk: pb.OpenSequence) -> Opened:
        begun = super().begin(chunk)
        begun.max_length += 5
        return begun

    def commit(self, verdict: Verdict) -> Opened:
        known = self.opened.get(verdict.sequence_id)
        if known is not None and verdict.committed_length > known.max_length - 5:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "committed_length")
        return super().commit(verdict)


class Hoarder(Conversation):
    """Gathers its nodes once a step has begun, and never sends them."""

    gathers = False

    def on_step_begun(self, message: pb.StepBegun) -> Responses:
        self.gathers = True
        return []

    def draft(self, sequences: Any, asked: int | None = None) -> Responses:
        return [] if self.gathers else super().draft(sequences, asked)


class Deaf(Conversation):
    """Goes on drafting below the opening's last token, whatever the verdicts."""

    def draft(self, sequences: Any, asked: int | None = None) -> Responses:
        proposals = []
        for known in sequences:
            known.chain = []
            proposal = known.proposal([known.tokens[-1]])
            proposal.committed_length = self.begun[known.sequence_id]
            proposals.append(proposal)
        return self.batch(proposals) if proposals else []

    def begin_drafting(self, known: Opened) -> Responses:
        self.begun = {known.sequence_id: len(known.tokens)}
        return super().begin_drafting(known)


class Stubborn(Conversation):
    """Builds on its last node when a verdict has left the chain."""

    def follow(self, known: Opened, verdict: Verdict) -> None:
        last = known.chain[-1:]
        super().follow(known, verdict)
        known.chain = known.chain or last


class Backward(Conversation):
    """Proposes for the length before, after it has proposed for a later one."""

    def batch(self, proposals: list[Proposal]) -> Responses:
        late = []
        for each in proposals:
            known = self.opened[each.sequence_id]
            if each.first_node_id > 1:
                late.append(known.proposal([known.tokens[0]]))
                late[-1].committed_length = each.committed_length - 1
        return super().batch(proposals) + (super().batch(late) if late else [])


class Hurried(Conversation):
    """Sends nodes before SequenceOpened."""

    def begin_drafting(self, known: Opened) -> Responses:
        return super().begin_drafting(known)[::-1]


class Doubled(Conversation):
    def begin_drafting(self, known: Opened) -> Responses:
        answers = super().begin_drafting(known)
        return [answers[0], *answers]


class Undecided(Conversation):
    """Never confirms an opening."""

    def begin_drafting(self, known: Opened) -> Responses:
        return []


class Impatient(Conversation):
    """Opens a sequence with its first chunk."""

    def add(self, known: Opened, chunk: pb.OpenSequence) -> None:
        super().add(known, chunk)
        known.length = len(known.tokens)


class Forgetful(Conversation):
    """Begins anew when an opening is sent again."""

    def is_stale(self, chunk: pb.OpenSequence) -> bool:
        known = self.opened.get(chunk.sequence_id)
        if known is not None and known.complete and known.epoch == chunk.epoch:
            del self.opened[chunk.sequence_id]
        return super().is_stale(chunk)


class Pedantic(Conversation):
    """Reports an opening that is sent again."""

    def on_open(self, chunk: pb.OpenSequence) -> Responses:
        if self.is_stale(chunk):
            refused = Refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "epoch")
            return self.fail(chunk.sequence_id, chunk.epoch, refused)
        return super().on_open(chunk)


class Loyal(Conversation):
    """Ignores every opening of a sequence that is open."""

    def is_stale(self, chunk: pb.OpenSequence) -> bool:
        known = self.opened.get(chunk.sequence_id)
        return (known is not None and known.complete) or super().is_stale(chunk)


class Counting(Conversation):
    """Goes on counting nodes over openings."""

    def begin(self, chunk: pb.OpenSequence) -> Opened:
        before = self.opened.get(chunk.sequence_id)
        begun = super().begin(chunk)
        begun.next_id = before.next_id if before else 1
        return begun


class Gullible(Conversation):
    """Takes an older opening for a new one."""

    def is_stale(self, chunk: pb.OpenSequence) -> bool:
        known = self.opened.get(chunk.sequence_id)
        if known is not None and chunk.epoch < known.epoch:
            del self.opened[chunk.sequence_id]
        return super().is_stale(chunk)


class Mingled(Conversation):
    """Numbers the nodes of all sequences together."""

    total = 1

    def draft(self, sequences: Any, asked: int | None = None) -> Responses:
        for known in sequences:
            known.next_id = max(known.next_id, self.total)
        answers = super().draft(sequences, asked)
        self.total = max([known.next_id for known in sequences], default=self.total)
        return answers


class Trusting(Conversation):
    """Takes verdicts that do not continue its tokens."""

    def commit(self, verdict: Verdict) -> Opened:
        known = self.opened.get(verdict.sequence_id)
        if known is None or known.epoch != verdict.epoch or verdict.committed_length > known.max_length:
            return super().commit(verdict)
        known.follow(verdict.token_ids)
        known.length = len(known.tokens)
        return known


class Indifferent(Conversation):
    """Ignores verdicts for sequences that are not open."""

    def is_late(self, verdict: Verdict) -> bool:
        known = self.opened.get(verdict.sequence_id)
        return known is None or known.epoch != verdict.epoch or super().is_late(verdict)


class Precise(Conversation):
    """Reports verdicts of older epochs."""

    def is_late(self, verdict: Verdict) -> bool:
        known = self.opened.get(verdict.sequence_id)
        if known is not None and verdict.epoch < known.epoch:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "OUT_OF_SYNC")
        return super().is_late(verdict)


class Resentful(Conversation):
    """Reports the same failure twice."""

    def is_late(self, verdict: Verdict) -> bool:
        known = self.opened.get(verdict.sequence_id)
        return known is not None and verdict.epoch < known.epoch


class Unforgiving(Conversation):
    """Never opens a sequence again that has failed."""

    def is_stale(self, chunk: pb.OpenSequence) -> bool:
        return chunk.sequence_id in self.failed or super().is_stale(chunk)


class Fragile(Conversation):
    """Ends the stream when a sequence fails."""

    def fail(self, sequence_id: int, epoch: int, refused: Refused) -> Responses:
        raise StreamRefused("INTERNAL", grpc.StatusCode.INTERNAL)


class Sweeping(Conversation):
    """Forgets all sequences when one fails."""

    def fail(self, sequence_id: int, epoch: int, refused: Refused) -> Responses:
        self.opened.clear()
        return super().fail(sequence_id, epoch, refused)


class Curt(Conversation):
    """Gives no details of its errors."""

    def fail(self, sequence_id: int, epoch: int, refused: Refused) -> Responses:
        del refused.status.details[:]
        return super().fail(sequence_id, epoch, refused)


class Vague(Conversation):
    """Names no field."""

    def fail(self, sequence_id: int, epoch: int, refused: Refused) -> Responses:
        del refused.status.details[1:]
        return super().fail(sequence_id, epoch, refused)


class Ambitious(Conversation):
    """Keeps sequences that are closed, or that the verifier has given up."""

    def on_close(self, message: pb.CloseSequences) -> Responses:
        return []

    def on_sequence_error(self, error: pb.SequenceError) -> Responses:
        return []


class Lingering(Conversation):
    """Drafts on for a sequence that is closed."""

    def on_close(self, message: pb.CloseSequences) -> Responses:
        known = [self.opened[each] for each in message.sequence_ids if each in self.opened]
        super().on_close(message)
        self.left = [each.proposal([each.tokens[0]]) for each in known]
        return []

    def on_ping(self, ping: pb.Ping) -> Responses:
        left, self.left = getattr(self, "left", []), []
        return super().on_ping(ping) + (self.batch(left) if left else [])


class Strict(Conversation):
    """Reports closings of sequences that are not open."""

    def on_close(self, message: pb.CloseSequences) -> Responses:
        answers: Responses = []
        for each in message.sequence_ids:
            if each not in self.opened:
                answers += self.fail(each, 0, Refused(grpc.StatusCode.NOT_FOUND, "UNKNOWN_SEQUENCE"))
        return answers + super().on_close(message)


class Offended(Conversation):
    """Never opens an id again that was closed."""

    def on_close(self, message: pb.CloseSequences) -> Responses:
        super().on_close(message)
        self.failed |= dict.fromkeys(message.sequence_ids, 100)
        return []


class WrongPong(Conversation):
    def on_ping(self, ping: pb.Ping) -> Responses:
        return [pb.DraftResponse(pong=pb.Pong(number=ping.number & 0xFFFFFFFF))]


class TwoPongs(Conversation):
    def on_ping(self, ping: pb.Ping) -> Responses:
        return super().on_ping(ping) * 2


class Welcoming(Conversation):
    """Takes any first message, and any hello."""

    def first(self, request: pb.DraftRequest) -> Responses:
        return super().first(request) if request.HasField("hello") else self.answer(request)

    def second_hello(self, hello: PeerInfo) -> Responses:
        return []


class WrongReason(Conversation):
    def greet(self, hello: PeerInfo) -> Responses:
        try:
            return super().greet(hello)
        except StreamRefused as refused:
            raise StreamRefused("INTERNAL", grpc.StatusCode.INTERNAL) from refused


class Chameleon(Conversation):
    """Claims the tokenizer of every verifier, and every revision."""

    def greet(self, hello: PeerInfo) -> Responses:
        own = PeerInfo()
        own.CopyFrom(self.drafter.hello)
        own.model.tokenizer_sha256 = hello.model.tokenizer_sha256 or TOKENIZER
        own.protocol_revision = max(1, hello.protocol_revision)
        return [pb.DraftResponse(hello=own)]


class Wordless(Conversation):
    def first(self, request: pb.DraftRequest) -> Responses:
        return []


class OtherFirst(Conversation):
    def first(self, request: pb.DraftRequest) -> Responses:
        return [pb.DraftResponse(pong=pb.Pong(number=1)), *super().first(request)]


class Intolerant(Conversation):
    """Ends the stream at a message of an unknown kind."""

    def on_unknown(self) -> Responses:
        raise StreamRefused("INTERNAL", grpc.StatusCode.INTERNAL)


class Clinging(Conversation):
    def end(self) -> None:
        raise StreamRefused("SHUTTING_DOWN", grpc.StatusCode.UNAVAILABLE)


class Shared(Conversation):
    """Keeps sequences in one place for all streams."""

    kept: dict[int, Opened]

    def __init__(self, drafter: BigramDrafter) -> None:
        super().__init__(drafter)
        self.opened = drafter.__dict__.setdefault("kept", {})


class Careless(Conversation):
    """Checks nothing of an opening and a verdict."""

    def begin(self, chunk: pb.OpenSequence) -> Opened:
        self.opened[chunk.sequence_id] = begun = Opened(
            chunk.sequence_id, chunk.epoch, max(1, chunk.committed_length), 999, 4, False, self.vocab_size
        )
        return begun

    def add(self, known: Opened, chunk: pb.OpenSequence) -> None:
        known.tokens += chunk.token_ids or [1]
        if chunk.offset + len(chunk.token_ids) >= known.length:
            known.length = len(known.tokens)


class Misnaming(Conversation):
    """Names another field than the wrong one."""

    def fail(self, sequence_id: int, epoch: int, refused: Refused) -> Responses:
        if refused.status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]:
            refused.status.CopyFrom(rich_status(grpc.StatusCode.INVALID_ARGUMENT, "no", "INVALID_FIELD", ("epoch",)))
        return super().fail(sequence_id, epoch, refused)


class Full(Conversation):
    """Reports a wrong reason when it is full."""

    def fail(self, sequence_id: int, epoch: int, refused: Refused) -> Responses:
        if str(refused) == "AT_CAPACITY":
            refused = Refused(grpc.StatusCode.NOT_FOUND, "UNKNOWN_SEQUENCE")
        return super().fail(sequence_id, epoch, refused)


class Modest(Conversation):
    """Takes fewer sequences than it announces."""

    def begin(self, chunk: pb.OpenSequence) -> Opened:
        if len(self.opened) >= 4:
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "AT_CAPACITY")
        return super().begin(chunk)


class OneAtATime(Conversation):
    """Reads only the first verdict of a message."""

    def on_verdicts(self, batch: Any) -> Responses:
        del batch.verdicts[1:]
        return super().on_verdicts(batch)
