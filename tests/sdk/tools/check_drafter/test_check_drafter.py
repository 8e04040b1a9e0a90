"""`draftwire check-drafter` against a drafter that keeps the rules, and against one for each way to break one."""

import asyncio
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from draftwire.v1 import drafter_service_pb2 as pb
from draftwire.v1.model_info_pb2 import Limits, ModelInfo
from draftwire_tools.check_drafter import command as check_command
from draftwire_tools.check_drafter.check import check
from draftwire_tools.check_drafter.findings import Outcome
from draftwire_tools.check_drafter.report import DrafterReport
from draftwire_tools.check_drafter.rule import RULES
from draftwire_tools.check_drafter.trials import TRIALS
from draftwire_tools.check_drafter.verifier_side import Patience
from tests.harness.command import Command
from tests.harness.stand_ins import faulty_drafters as faulty
from tests.harness.stand_ins import faulty_proposals as proposals
from tests.harness.stand_ins import reading_drafter as reading
from tests.harness.stand_ins.bigram_drafter import (
    VOCABULARY,
    BigramDrafter,
    Conversation,
)

Responses = list[pb.DraftResponse]
PATIENT = Patience(answer=60.0, draft=0.05, quiet=0.04)
"""For drafters that answer at once; only what never comes is waited for."""
HASTY = Patience(answer=0.4, draft=0.05, quiet=0.04)
"""For a drafter that owes an answer."""


def run(drafter: BigramDrafter, patience: Patience = PATIENT, rules: tuple[str, ...] = ()) -> DrafterReport:
    """Checks a drafter. rules: the rules whose trials are run after the handshake; empty for all."""
    with drafter:
        trials = [TRIALS[0], *(each for each in TRIALS[1:] if not rules or each.rule in rules)]
        return asyncio.run(check(drafter.address, patience, trials=trials))


def outcomes(report: DrafterReport) -> dict[str, Outcome]:
    return {each.rule: each.outcome for each in report.findings}


FEATURE_RULES = {rule for rule in RULES if rule.startswith("features.")}
UNASKED = "features.unasked"


def test_a_drafter_that_keeps_all_rules() -> None:
    report = run(BigramDrafter())
    left_out = {each.rule for each in report.findings if each.outcome is not Outcome.PASSED}
    assert (report.failed(), left_out) == ([], FEATURE_RULES - {UNASKED})
    assert [each.rule for each in report.findings] == list(RULES)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_a_drafter_that_reads_features_keeps_all_rules(dtype: str) -> None:
    drafter = reading.ReadingDrafter(dtype=dtype)
    report = run(drafter)
    left_out = {each.rule for each in report.findings if each.outcome is not Outcome.PASSED}
    assert (report.failed(), left_out) == ([], {UNASKED})
    assert drafter.received > 500, "it got features of prompts and of verdicts' tokens in most trials"


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


NO_HASH = ModelInfo(tokenizer_sha256="sha")
FAULTS: list[tuple[str, type[Conversation], dict[str, Any], tuple[str, ...], Patience]] = [
    ("handshake.answer", faulty.Wordless, {}, (), HASTY),
    ("handshake.answer", faulty.OtherFirst, {}, (), PATIENT),
    ("handshake.answer", Conversation, {"protocol_revision": 0, "min_protocol_revision": 0}, (), PATIENT),
    ("handshake.answer", Conversation, {"protocol_revision": 9, "min_protocol_revision": 9}, (), PATIENT),
    ("handshake.text", Conversation, {"build": "a\x1b[2J"}, ("handshake.text",), PATIENT),
    ("handshake.text", Conversation, {"build": "a" * 70_000}, ("handshake.text",), PATIENT),
    ("handshake.tokenizer", Conversation, {"model": NO_HASH}, ("handshake.tokenizer",), PATIENT),
    ("handshake.other_tokenizer", faulty.WrongReason, {}, ("handshake.other_tokenizer",), PATIENT),
    ("handshake.other_tokenizer", faulty.Chameleon, {}, ("handshake.other_tokenizer",), PATIENT),
    ("handshake.other_revision", faulty.WrongReason, {}, ("handshake.other_revision",), PATIENT),
    ("handshake.other_revision", faulty.Chameleon, {}, ("handshake.other_revision",), PATIENT),
    ("handshake.first", faulty.Welcoming, {}, ("handshake.first",), HASTY),
    ("handshake.once", faulty.Welcoming, {}, ("handshake.once",), HASTY),
    ("stream.unknown", faulty.Intolerant, {}, ("stream.unknown",), PATIENT),
    ("stream.end", faulty.Clinging, {}, ("stream.end",), PATIENT),
    ("stream.new", faulty.Shared, {}, ("stream.new",), HASTY),
    ("stream.two", faulty.Shared, {}, ("stream.two",), HASTY),
    ("opening.answered", faulty.Undecided, {}, ("opening.answered",), HASTY),
    ("opening.chunks", faulty.Impatient, {}, ("opening.chunks",), PATIENT),
    ("opening.first", faulty.Hurried, {}, ("opening.answered",), PATIENT),
    ("opening.first", faulty.Doubled, {}, ("opening.answered",), PATIENT),
    ("opening.repeated", faulty.Forgetful, {}, ("opening.repeated",), PATIENT),
    ("opening.repeated", faulty.Pedantic, {}, ("opening.repeated",), PATIENT),
    ("opening.larger_epoch", faulty.Loyal, {}, ("opening.larger_epoch",), HASTY),
    ("proposal.ids", faulty.Counting, {}, ("opening.larger_epoch",), PATIENT),
    ("opening.older_epoch", faulty.Gullible, {}, ("opening.older_epoch",), PATIENT),
    ("opening.older_epoch", faulty.Pedantic, {}, ("opening.older_epoch",), PATIENT),
    ("opening.two", faulty.OneAtATime, {}, ("opening.two",), PATIENT),
    ("proposal.ids", faulty.Mingled, {}, ("opening.two",), PATIENT),
    ("proposal.sequence", proposals.outgoing(proposals.never_opened), {}, ("opening.answered",), PATIENT),
    ("proposal.sequence", faulty.Lingering, {}, ("ping.pong", "close.ends"), PATIENT),
    ("proposal.lists", proposals.outgoing(proposals.uneven), {}, ("opening.answered",), PATIENT),
    ("proposal.lists", proposals.EmptyBatch, {}, ("verdict.tree",), PATIENT),
    ("proposal.lists", proposals.EmptyProposal, {}, ("verdict.tree",), PATIENT),
    ("proposal.one", proposals.TwoProposals, {}, ("opening.answered",), PATIENT),
    ("proposal.ids", proposals.outgoing(proposals.shifted), {}, ("opening.answered",), PATIENT),
    ("proposal.parents", proposals.outgoing(proposals.orphaned), {}, ("opening.answered",), PATIENT),
    ("proposal.tokens", proposals.outgoing(proposals.invented), {}, ("opening.answered",), PATIENT),
    ("proposal.log_probs", proposals.outgoing(proposals.certain), {}, ("opening.answered",), PATIENT),
    ("proposal.log_probs", proposals.outgoing(proposals.undefined), {}, ("opening.answered",), PATIENT),
    ("proposal.log_probs", proposals.outgoing(proposals.too_few_log_probs), {}, ("opening.answered",), PATIENT),
    ("proposal.length", proposals.outgoing(proposals.ahead), {}, ("opening.answered",), PATIENT),
    ("proposal.length", faulty.Backward, {}, ("verdict.tree",), PATIENT),
    ("proposal.max_length", faulty.Endless, {}, ("proposal.max_length",), PATIENT),
    ("proposal.step_seconds", faulty.Timeless, {}, ("opening.answered",), PATIENT),
    ("proposal.step_seconds", faulty.Eternal, {}, ("opening.answered",), PATIENT),
    ("proposal.distributions", proposals.outgoing(proposals.talkative), {}, ("opening.answered",), PATIENT),
    ("credit.live", faulty.Greedy, {}, ("credit.live",), PATIENT),
    ("verdict.followed", faulty.Deaf, {}, ("verdict.tree",), PATIENT),
    ("verdict.tree", faulty.Stubborn, {}, ("verdict.tree",), PATIENT),
    ("verdict.out_of_sync", faulty.Trusting, {}, ("verdict.out_of_sync",), HASTY),
    ("verdict.unknown", faulty.Indifferent, {}, ("verdict.unknown",), HASTY),
    ("verdict.older_epoch", faulty.Precise, {}, ("verdict.older_epoch",), PATIENT),
    ("verdict.failed", faulty.Resentful, {}, ("verdict.failed",), PATIENT),
    ("verdict.reopened", faulty.Unforgiving, {}, ("verdict.reopened",), HASTY),
    ("verdict.out_of_sync", faulty.Fragile, {}, ("verdict.out_of_sync",), PATIENT),
    ("error.others", faulty.Sweeping, {}, ("error.others",), PATIENT),
    ("error.form", faulty.Curt, {}, ("malformed.max_length",), PATIENT),
    ("error.form", faulty.Vague, {}, ("malformed.max_length",), PATIENT),
    ("error.from_verifier", faulty.Ambitious, {}, ("error.from_verifier",), PATIENT),
    ("close.ends", faulty.Ambitious, {}, ("close.ends",), PATIENT),
    ("close.unknown", faulty.Strict, {}, ("close.unknown",), PATIENT),
    ("close.reopened", faulty.Offended, {}, ("close.reopened",), HASTY),
    ("ping.pong", faulty.WrongPong, {}, ("ping.pong",), HASTY),
    ("ping.asked", faulty.TwoPongs, {}, ("ping.pong",), PATIENT),
    ("limits.sequences", faulty.Full, {}, ("limits.sequences",), PATIENT),
    ("limits.sequences", faulty.Modest, {}, ("limits.sequences",), PATIENT),
    ("limits.tokens", faulty.Careless, {}, ("limits.tokens",), PATIENT),
    ("limits.tokens", faulty.Misnaming, {}, ("limits.tokens",), PATIENT),
    ("gathering.sent", faulty.Hoarder, {}, ("gathering.sent",), PATIENT),
    ("draws.reported", proposals.outgoing(proposals.mute_about_draws), {}, ("draws.reported",), PATIENT),
    ("draws.reported", proposals.outgoing(proposals.improbable), {}, ("draws.reported",), PATIENT),
    ("draws.reported", proposals.outgoing(proposals.foreign_draw), {}, ("draws.reported",), PATIENT),
    ("draws.reported", proposals.outgoing(proposals.drawn_twice), {}, ("draws.reported",), PATIENT),
    *(
        (f"malformed.{name}", kind, {}, (f"malformed.{name}",), PATIENT)
        for name in ("committed_length", "max_length", "max_tree_nodes", "offset", "token_ids", "token_id", "verdict")
        for kind in (faulty.Careless, faulty.Misnaming)
    ),
    ("malformed.sampling", faulty.Misnaming, {}, ("malformed.sampling",), PATIENT),
    ("features.map", reading.Reading, {"dtype": "float8"}, ("features.map",), PATIENT),
    ("features.map", reading.Reading, {"hidden_size": 0}, ("features.map",), PATIENT),
    ("features.map", reading.Reading, {"layers": range(17)}, ("features.map",), PATIENT),
    ("features.map", reading.Reading, {"width": 33}, ("features.map",), PATIENT),
    ("features.map", reading.Reading, {"layers": range(8), "width": 17}, ("features.map",), PATIENT),
    ("features.map", reading.Reading, {"norm_epsilon": 1.5}, ("features.map",), PATIENT),
    ("features.map", reading.Reading, {"weights_sha256": "sha"}, ("features.map",), PATIENT),
    ("features.map", reading.Reading, {"capabilities": ["ping"]}, ("features.map",), PATIENT),
    ("features.weights", reading.Reading, {"width": 7}, ("features.weights",), PATIENT),
    ("features.weights", reading.Reading, {"weights_sha256": "1" * 64}, ("features.weights",), PATIENT),
    ("features.weights", reading.Reading, {"lavish": True}, ("features.weights",), PATIENT),
    ("features.needed", reading.Frugal, {}, ("features.needed",), PATIENT),
    ("features.parts", reading.Forward, {}, ("features.parts",), PATIENT),
    ("features.parts", reading.Late, {}, ("features.parts",), PATIENT),
    ("features.missing", reading.Complete, {}, ("features.missing",), PATIENT),
    ("features.values", reading.Tolerant, {}, ("features.values",), HASTY),
    ("features.values", reading.Vague, {}, ("features.values",), PATIENT),
    ("features.values", reading.Sweeping, {}, ("features.values",), PATIENT),
    ("features.position", reading.Tolerant, {}, ("features.position",), HASTY),
    ("features.sequence", reading.Tolerant, {}, ("features.sequence",), HASTY),
    ("features.sequence", reading.Precise, {}, ("features.sequence",), PATIENT),
    (UNASKED, reading.Offended, {}, (UNASKED,), PATIENT),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "conversation", "hello", "rules", "patience"),
    [pytest.param(*each, id=f"{each[0]}-{each[1].__name__}-{index}") for index, each in enumerate(FAULTS)],
)
def test_a_fault_is_caught(
    rule: str, conversation: type[Conversation], hello: dict[str, Any], rules: tuple[str, ...], patience: Patience
) -> None:
    kind = reading.ReadingDrafter if rule in FEATURE_RULES - {UNASKED} else BigramDrafter
    report = run(kind(conversation, **hello), patience, rules)
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


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command waits as little as the other tests."""
    monkeypatch.setattr(check_command, "_DRAFT_SECONDS", PATIENT.draft)
    monkeypatch.setattr(check_command, "_QUIET_SECONDS", PATIENT.quiet)


@pytest.mark.usefixtures("patient")
def test_the_command_prints_a_line_per_rule(command: Command) -> None:
    with BigramDrafter() as drafter:
        done = command("check-drafter", drafter.address)
    lines = done.out.splitlines()
    assert done.code == 0
    assert done.err.startswith("trying: handshake.answer (after ")
    skipped = FEATURE_RULES - {UNASKED}
    words = ("skip" if rule in skipped else "pass" for rule in RULES)
    assert [tuple(line.split()[:2]) for line in lines[:-1]] == list(zip(words, RULES, strict=True))
    passed = len(RULES) - len(skipped)
    assert lines[-1] == f"{drafter.address}: {len(RULES)} rules, {passed} passed, 0 failed, {len(skipped)} skipped"


@pytest.mark.usefixtures("patient")
def test_the_command_fails_with_the_drafter(command: Command) -> None:
    model = ModelInfo(model_id="x\x1b[2J", vocab_size=VOCABULARY, tokenizer_sha256="sha")
    with BigramDrafter(model=model) as drafter:
        done = command("check-drafter", drafter.address, "--json")
    report = json.loads(done.out)
    assert done.code == 1
    assert done.err.splitlines()[-1] == f"draftwire: {drafter.address} breaks 2 of {len(RULES)} rules"
    assert (report["address"], report["passed"]) == (drafter.address, False)
    assert report["hello"]["capabilities"] == ["ping", "gathering", "distributions"]
    assert [each["rule"] for each in report["rules"]] == list(RULES)
    failed = {each["rule"]: each["why"] for each in report["rules"] if each["outcome"] == "failed"}
    assert failed == {
        "handshake.text": "the field model_id is not printable",
        "handshake.tokenizer": "model.tokenizer_sha256 is 'sha', not 64 hexadecimal digits",
    }


def test_a_drafter_may_report_any_vocabulary() -> None:
    huge = ModelInfo(model_id="x", vocab_size=2**32 - 1)
    assert run(BigramDrafter(model=huge), rules=("opening.answered",)).failed() == []
    ends = ModelInfo(model_id="x", vocab_size=2, eos_token_ids=[0, 1])
    (failed,) = run(BigramDrafter(model=ends), rules=("opening.answered",)).failed()
    assert (failed.rule, failed.why) == ("opening.answered", "of its 2 tokens, all are in eos_token_ids")


def test_what_a_drafter_writes_does_not_act_on_the_terminal() -> None:
    report = run(BigramDrafter(model=ModelInfo(model_id="x\x1b[2J", vocab_size=VOCABULARY)), rules=("handshake.text",))
    assert all(line.isprintable() for line in report.lines())
    assert "x [2J" in next(report.lines())


def test_nothing_listens(command: Command) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    done = command("check-drafter", address)
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[-1] == f"draftwire: nothing listens at {address}"


def test_an_address_without_a_port(command: Command) -> None:
    done = command("check-drafter", "localhost")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("draftwire: 'localhost' is not the address of a service: expected HOST:PORT")


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
