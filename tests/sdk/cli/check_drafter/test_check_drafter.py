"""`draftwire check-drafter` against a drafter that keeps the rules, and against one for each way to break one."""

import asyncio
import json
import math
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from draftwire.cli.check_drafter.check import check
from draftwire.cli.check_drafter.findings import Outcome
from draftwire.cli.check_drafter.report import Report
from draftwire.cli.check_drafter.rule import RULES
from draftwire.cli.check_drafter.trials import TRIALS
from draftwire.cli.check_drafter.verifier_side import Patience
from draftwire.v1 import drafter_service_pb2 as pb
from draftwire.v1.model_info_pb2 import Limits, ModelInfo, PeerInfo
from draftwire.v1.proposal_pb2 import Proposal, ProposalBatch
from draftwire.v1.verdict_pb2 import Verdict
from tests.harness.command import Command
from tests.harness.stand_ins.bigram_drafter import (
    TOKENIZER,
    VOCABULARY,
    BigramDrafter,
    Conversation,
    Opened,
    Refused,
    StreamRefused,
)
from tests.harness.stand_ins.fake_verifier import rich_status

Responses = list[pb.DraftResponse]
PATIENT = Patience(answer=60.0, draft=0.05, quiet=0.04)
"""For drafters that answer at once; only what never comes is waited for."""
HASTY = Patience(answer=0.4, draft=0.05, quiet=0.04)
"""For a drafter that owes an answer."""


def run(drafter: BigramDrafter, patience: Patience = PATIENT, rules: tuple[str, ...] = ()) -> Report:
    """Checks a drafter. rules: the rules whose trials are run after the handshake; empty for all."""
    with drafter:
        trials = [TRIALS[0], *(each for each in TRIALS[1:] if not rules or each.rule in rules)]
        return asyncio.run(check(drafter.address, patience, trials=trials))


def outcomes(report: Report) -> dict[str, Outcome]:
    return {each.rule: each.outcome for each in report.findings}


def test_a_drafter_that_keeps_all_rules() -> None:
    report = run(BigramDrafter())
    assert [each for each in report.findings if each.outcome is not Outcome.PASSED] == []
    assert [each.rule for each in report.findings] == list(RULES)


def test_each_rule_with_a_trial_has_one() -> None:
    tried = [trial.rule for trial in TRIALS]
    assert len(set(tried)) == len(tried)
    assert set(tried) <= set(RULES)


class Silent(Conversation):
    def draft(self, sequences: Any, asked: int | None = None) -> Responses:
        return []


def test_a_drafter_may_be_silent() -> None:
    bare = ModelInfo(model_id="silent")
    report = run(BigramDrafter(Silent, capabilities=[], model=bare, limits=Limits()))
    found = outcomes(report)
    assert report.failed() == []
    skipped = {rule for rule, outcome in found.items() if outcome is Outcome.SKIPPED}
    assert {"verdict.tree", "proposal.ids", "ping.pong", "limits.sequences", "handshake.tokenizer"} <= skipped
    assert found["verdict.out_of_sync"] is found["close.ends"] is Outcome.PASSED


# Drafters with one fault each. A name ends with the rule that it breaks.


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


NO_HASH = ModelInfo(tokenizer_sha256="sha")
FAULTS: list[tuple[str, type[Conversation], dict[str, Any], tuple[str, ...], Patience]] = [
    ("handshake.answer", Wordless, {}, (), HASTY),
    ("handshake.answer", OtherFirst, {}, (), PATIENT),
    ("handshake.answer", Conversation, {"protocol_revision": 0, "min_protocol_revision": 0}, (), PATIENT),
    ("handshake.answer", Conversation, {"protocol_revision": 9, "min_protocol_revision": 9}, (), PATIENT),
    ("handshake.text", Conversation, {"build": "a\x1b[2J"}, ("handshake.text",), PATIENT),
    ("handshake.text", Conversation, {"build": "a" * 70_000}, ("handshake.text",), PATIENT),
    ("handshake.tokenizer", Conversation, {"model": NO_HASH}, ("handshake.tokenizer",), PATIENT),
    ("handshake.other_tokenizer", WrongReason, {}, ("handshake.other_tokenizer",), PATIENT),
    ("handshake.other_tokenizer", Chameleon, {}, ("handshake.other_tokenizer",), PATIENT),
    ("handshake.other_revision", WrongReason, {}, ("handshake.other_revision",), PATIENT),
    ("handshake.other_revision", Chameleon, {}, ("handshake.other_revision",), PATIENT),
    ("handshake.first", Welcoming, {}, ("handshake.first",), HASTY),
    ("handshake.once", Welcoming, {}, ("handshake.once",), HASTY),
    ("stream.unknown", Intolerant, {}, ("stream.unknown",), PATIENT),
    ("stream.end", Clinging, {}, ("stream.end",), PATIENT),
    ("stream.new", Shared, {}, ("stream.new",), HASTY),
    ("stream.two", Shared, {}, ("stream.two",), HASTY),
    ("opening.answered", Undecided, {}, ("opening.answered",), HASTY),
    ("opening.chunks", Impatient, {}, ("opening.chunks",), PATIENT),
    ("opening.first", Hurried, {}, ("opening.answered",), PATIENT),
    ("opening.first", Doubled, {}, ("opening.answered",), PATIENT),
    ("opening.repeated", Forgetful, {}, ("opening.repeated",), PATIENT),
    ("opening.repeated", Pedantic, {}, ("opening.repeated",), PATIENT),
    ("opening.larger_epoch", Loyal, {}, ("opening.larger_epoch",), HASTY),
    ("proposal.ids", Counting, {}, ("opening.larger_epoch",), PATIENT),
    ("opening.older_epoch", Gullible, {}, ("opening.older_epoch",), PATIENT),
    ("opening.older_epoch", Pedantic, {}, ("opening.older_epoch",), PATIENT),
    ("opening.two", OneAtATime, {}, ("opening.two",), PATIENT),
    ("proposal.ids", Mingled, {}, ("opening.two",), PATIENT),
    ("proposal.sequence", outgoing(never_opened), {}, ("opening.answered",), PATIENT),
    ("proposal.sequence", Lingering, {}, ("ping.pong", "close.ends"), PATIENT),
    ("proposal.lists", outgoing(uneven), {}, ("opening.answered",), PATIENT),
    ("proposal.lists", EmptyBatch, {}, ("verdict.tree",), PATIENT),
    ("proposal.lists", EmptyProposal, {}, ("verdict.tree",), PATIENT),
    ("proposal.one", TwoProposals, {}, ("opening.answered",), PATIENT),
    ("proposal.ids", outgoing(shifted), {}, ("opening.answered",), PATIENT),
    ("proposal.parents", outgoing(orphaned), {}, ("opening.answered",), PATIENT),
    ("proposal.tokens", outgoing(invented), {}, ("opening.answered",), PATIENT),
    ("proposal.log_probs", outgoing(certain), {}, ("opening.answered",), PATIENT),
    ("proposal.log_probs", outgoing(undefined), {}, ("opening.answered",), PATIENT),
    ("proposal.log_probs", outgoing(too_few_log_probs), {}, ("opening.answered",), PATIENT),
    ("proposal.length", outgoing(ahead), {}, ("opening.answered",), PATIENT),
    ("proposal.length", Backward, {}, ("verdict.tree",), PATIENT),
    ("proposal.max_length", Endless, {}, ("proposal.max_length",), PATIENT),
    ("proposal.step_seconds", Timeless, {}, ("opening.answered",), PATIENT),
    ("proposal.step_seconds", Eternal, {}, ("opening.answered",), PATIENT),
    ("proposal.distributions", outgoing(talkative), {}, ("opening.answered",), PATIENT),
    ("credit.live", Greedy, {}, ("credit.live",), PATIENT),
    ("verdict.followed", Deaf, {}, ("verdict.tree",), PATIENT),
    ("verdict.tree", Stubborn, {}, ("verdict.tree",), PATIENT),
    ("verdict.out_of_sync", Trusting, {}, ("verdict.out_of_sync",), HASTY),
    ("verdict.unknown", Indifferent, {}, ("verdict.unknown",), HASTY),
    ("verdict.older_epoch", Precise, {}, ("verdict.older_epoch",), PATIENT),
    ("verdict.failed", Resentful, {}, ("verdict.failed",), PATIENT),
    ("verdict.reopened", Unforgiving, {}, ("verdict.reopened",), HASTY),
    ("verdict.out_of_sync", Fragile, {}, ("verdict.out_of_sync",), PATIENT),
    ("error.others", Sweeping, {}, ("error.others",), PATIENT),
    ("error.form", Curt, {}, ("malformed.max_length",), PATIENT),
    ("error.form", Vague, {}, ("malformed.max_length",), PATIENT),
    ("error.from_verifier", Ambitious, {}, ("error.from_verifier",), PATIENT),
    ("close.ends", Ambitious, {}, ("close.ends",), PATIENT),
    ("close.unknown", Strict, {}, ("close.unknown",), PATIENT),
    ("close.reopened", Offended, {}, ("close.reopened",), HASTY),
    ("ping.pong", WrongPong, {}, ("ping.pong",), HASTY),
    ("ping.asked", TwoPongs, {}, ("ping.pong",), PATIENT),
    ("limits.sequences", Full, {}, ("limits.sequences",), PATIENT),
    ("limits.sequences", Modest, {}, ("limits.sequences",), PATIENT),
    ("limits.tokens", Careless, {}, ("limits.tokens",), PATIENT),
    ("limits.tokens", Misnaming, {}, ("limits.tokens",), PATIENT),
    ("draws.reported", outgoing(mute_about_draws), {}, ("draws.reported",), PATIENT),
    ("draws.reported", outgoing(improbable), {}, ("draws.reported",), PATIENT),
    ("draws.reported", outgoing(foreign_draw), {}, ("draws.reported",), PATIENT),
    *(
        (f"malformed.{name}", kind, {}, (f"malformed.{name}",), PATIENT)
        for name in ("committed_length", "max_length", "max_tree_nodes", "offset", "token_ids", "token_id", "verdict")
        for kind in (Careless, Misnaming)
    ),
    ("malformed.sampling", Misnaming, {}, ("malformed.sampling",), PATIENT),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "conversation", "hello", "rules", "patience"),
    [pytest.param(*each, id=f"{each[0]}-{each[1].__name__}-{index}") for index, each in enumerate(FAULTS)],
)
def test_a_fault_is_caught(
    rule: str, conversation: type[Conversation], hello: dict[str, Any], rules: tuple[str, ...], patience: Patience
) -> None:
    report = run(BigramDrafter(conversation, **hello), patience, rules)
    failed = {each.rule: each.why for each in report.failed()}
    assert rule in failed, "\n".join(report.lines())
    assert failed[rule]


def test_every_rule_has_a_fault() -> None:
    """The two others are tried below."""
    assert set(RULES) - {each[0] for each in FAULTS} == {"credit.smaller", "info.same"}


class Unasked(Conversation):
    """Ignores the smaller credit of verdicts."""

    def draft(self, sequences: Any, asked: int | None = None) -> Responses:
        return super().draft(sequences)


def test_a_smaller_credit_is_a_request() -> None:
    report = run(BigramDrafter(Unasked), rules=("credit.smaller",))
    (found,) = (each for each in report.findings if each.rule == "credit.smaller")
    assert (report.failed(), found.outcome) == ([], Outcome.PASSED)
    assert "4 live nodes, after a verdict that asked for 2" in found.why


class TwoFaced(BigramDrafter):
    def GetModelInfo(self, request: Any, context: Any) -> pb.DrafterServiceGetModelInfoResponse:
        answer = super().GetModelInfo(request, context)
        answer.info.model.vocab_size -= 1
        return answer


def test_model_info_that_differs_from_the_hello() -> None:
    (failed,) = run(TwoFaced(), rules=("info.same",)).failed()
    assert (failed.rule, failed.why) == ("info.same", "model.vocab_size is 199 there, 200 in its hello")


def test_the_command_prints_a_line_per_rule(command: Command) -> None:
    with BigramDrafter() as drafter:
        done = command("check-drafter", drafter.address)
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert [line.split()[:2] for line in lines[:-1]] == [["pass", rule] for rule in RULES]
    assert lines[-1] == f"{drafter.address}: {len(RULES)} rules, {len(RULES)} passed, 0 failed, 0 skipped"


def test_the_command_fails_with_the_drafter(command: Command) -> None:
    model = ModelInfo(model_id="x\x1b[2J", vocab_size=VOCABULARY, tokenizer_sha256="sha")
    with BigramDrafter(model=model) as drafter:
        done = command("check-drafter", drafter.address, "--json")
    report = json.loads(done.out)
    assert done.code == 1
    assert done.err == f"draftwire: {drafter.address} breaks 2 of {len(RULES)} rules\n"
    assert (report["address"], report["passed"]) == (drafter.address, False)
    assert report["hello"]["capabilities"] == ["ping", "distributions"]
    assert [each["rule"] for each in report["rules"]] == list(RULES)
    failed = {each["rule"]: each["why"] for each in report["rules"] if each["outcome"] == "failed"}
    assert failed == {
        "handshake.text": "the field model_id is not printable",
        "handshake.tokenizer": "model.tokenizer_sha256 is 'sha', not 64 hexadecimal digits",
    }


def test_what_a_drafter_writes_does_not_act_on_the_terminal(command: Command) -> None:
    with BigramDrafter(model=ModelInfo(model_id="x\x1b[2J", vocab_size=VOCABULARY)) as drafter:
        done = command("check-drafter", drafter.address)
    assert (done.code, "\x1b" in done.out) == (1, False)


def test_nothing_listens(command: Command) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    done = command("check-drafter", address)
    assert (done.code, done.out, done.err) == (1, "", f"draftwire: nothing listens at {address}\n")


def test_a_server_that_is_no_drafter(command: Command, quiet_server: str) -> None:
    done = command("check-drafter", quiet_server)
    assert done.code == 1
    assert done.out.startswith("FAIL  handshake.answer")
    assert "UNIMPLEMENTED" in done.out.splitlines()[0]
    assert done.out.count("there was no handshake") == len(RULES) - 1


@pytest.fixture
def quiet_server() -> Iterator[str]:
    """A gRPC server without services."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()
