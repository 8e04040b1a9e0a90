"""Requests whose caller drafts: whatever it drafts, the tokens are those of plain decoding."""

import asyncio
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

import verifier_service.verify_conversation as conversation_module
from draftwire.v1 import verifier_service_pb2 as pb
from draftwire.v1.proposal_pb2 import DraftDistribution, Proposal
from draftwire.v1.sampling_pb2 import SamplingParams
from draftwire.v1.speculation_pb2 import AcceptanceRule, SpeculationOptions
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.rpc.in_process_stream import in_process_call
from draftwire_core.runtime.rpc.message_stream import StreamBroken
from tests.harness.services.in_process_verifier import PATIENCE, PROMPT, InProcessVerifier, greedy, order, sampled
from tests.harness.stand_ins.scripted_caller import Draft, ScriptedCaller, knowing, lying, silent
from tests.harness.stand_ins.scripted_drafter import Opening, ScriptedDrafter, right
from tests.harness.verifier.verify_call import call
from verifier_service.running.caller_drafting import CallerDrafting
from verifier_service.verify_conversation import VerifyConversation


async def verify(
    verifier: InProcessVerifier, caller: ScriptedCaller, request: pb.GenerateRequest, tokenizer_sha256: str = ""
) -> pb.GenerateFinished:
    """Runs a request, which must give the output of plain decoding and leave nothing behind."""
    plain = await verifier.plain(request)
    async with asyncio.timeout(PATIENCE), call(verifier) as stream:
        output = await caller.run(stream, request, tokenizer_sha256)
    assert output.token_ids == plain.token_ids
    assert output.text == plain.text
    assert output.finished.finish_reason == plain.finished.finish_reason
    assert set(output.sources) <= {None, "caller"}
    await left_nothing(verifier)
    return output.finished


async def left_nothing(verifier: InProcessVerifier) -> None:
    await verifier.freed()
    await verifier.until(lambda: not verifier.engine.planner.models and not verifier.engine.planner.timings)
    assert not verifier.verifier.request_drafters.callers


async def text(verifier: InProcessVerifier, request: pb.GenerateRequest) -> list[int]:
    """Returns prompt and output of a request."""
    return [*request.token_ids.ids, *(await verifier.plain(request)).token_ids]


def reason(status: status_pb2.Status) -> str | None:
    return StreamBroken(status).reason_name


@pytest.mark.parametrize("sampling", [greedy(), sampled()], ids=["greedy", "sampled"])
async def test_a_caller_that_knows(verifier: InProcessVerifier, sampling: SamplingParams) -> None:
    request = order(sampling=sampling)
    verifier.engine.drafts_awaited = True
    caller = ScriptedCaller(knowing(await text(verifier, request)))
    finished = await verify(verifier, caller, request, verifier.verifier.model.info.tokenizer_sha256)
    assert not caller.refusals
    assert "caller" in caller.output.sources
    stats = finished.speculation
    assert stats.accepted_tokens == stats.draft_tokens > 12
    assert stats.steps < 12
    (share,) = stats.drafters
    assert (share.name, share.accepted_tokens) == ("caller", stats.accepted_tokens)


async def test_the_rule_of_rejection_is_not_for_callers(verifier: InProcessVerifier) -> None:
    options = SpeculationOptions(acceptance=AcceptanceRule.ACCEPTANCE_RULE_REJECTION)
    async with asyncio.timeout(PATIENCE), call(verifier) as stream:
        with pytest.raises(StreamBroken, match="not available to a caller") as caught:
            await ScriptedCaller().run(stream, order(sampling=sampled(), speculation=options))
    assert caught.value.reason_name == "INVALID_FIELD"
    assert verifier.verifier.request_counts.refused == {"INVALID_FIELD": 1}


async def test_its_deadline_is_what_is_left_when_its_request_has_come_and_been_read(
    verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = Mock(wraps=verifier.verifier._admission.check)
    monkeypatch.setattr(verifier.verifier._admission, "check", check)
    left = iter([9.0, 4.0])
    async with (
        asyncio.timeout(PATIENCE),
        in_process_call(
            lambda stream: VerifyConversation(stream, verifier.verifier, remaining=left.__next__).run()
        ) as stream,
    ):
        await ScriptedCaller().run(stream, order(max_tokens=2))
    assert [call.args[-1] for call in check.call_args_list] == [9.0, 4.0]


async def test_what_it_is_told(verifier: InProcessVerifier) -> None:
    request = order(sampling=sampled(), max_tokens=5)
    caller = ScriptedCaller()
    await verify(verifier, caller, request)
    assert list(caller.opened.token_ids) == PROMPT
    assert caller.opened.sampling.seed == 7
    assert caller.opened.sampling.temperature == 1.2
    assert caller.opened.sampling.top_p == 0.95
    assert caller.opened.max_tree_nodes == verifier.verifier.model.limits.max_tree_nodes
    assert caller.opened.max_length == len(PROMPT) + 5
    assert caller.opened.vocab_size == 200
    assert caller.output.started.seed == 7


async def test_a_caller_that_lies(verifier: InProcessVerifier) -> None:
    request = order(sampling=sampled())
    verifier.engine.drafts_awaited = True
    caller = ScriptedCaller(lying(await text(verifier, request)))
    finished = await verify(verifier, caller, request)
    assert not caller.refusals
    assert finished.speculation.draft_tokens > 0
    assert finished.speculation.accepted_tokens == 0


@pytest.mark.parametrize("hangs_up", [False, True])
async def test_a_caller_that_says_nothing(verifier: InProcessVerifier, hangs_up: bool) -> None:
    caller = ScriptedCaller(silent, hangs_up=hangs_up)
    finished = await verify(verifier, caller, order())
    assert finished.speculation.draft_tokens == 0


async def test_a_caller_that_stops_drafting(verifier: InProcessVerifier) -> None:
    request = order()
    caller = ScriptedCaller(knowing(await text(verifier, request)), hangs_up=True)
    await verify(verifier, caller, request)


def wrong(**changes: Any) -> Draft:
    return lambda opening: [opening.proposal(**({"token_ids": (3, 4)} | changes))]


def too_many(opening: Opening) -> Sequence[Proposal]:
    return [opening.proposal(range(100, 150))]


@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        (wrong(parent_ids=(0,)), "MALFORMED_PROPOSAL"),
        (wrong(parent_ids=(0, 9)), "MALFORMED_PROPOSAL"),
        (wrong(token_ids=(3, 200)), "MALFORMED_PROPOSAL"),
        (wrong(token_ids=()), "MALFORMED_PROPOSAL"),
        (wrong(first_node_id=5), "MALFORMED_PROPOSAL"),
        (wrong(committed_length=1000), "MALFORMED_PROPOSAL"),
        (too_many, "CREDIT_EXCEEDED"),
    ],
)
async def test_a_proposal_that_is_none(verifier: InProcessVerifier, draft: Draft, expected: str) -> None:
    caller = ScriptedCaller(draft)
    finished = await verify(verifier, caller, order())
    (refused,) = caller.refusals
    assert reason(refused) == expected
    assert finished.speculation.accepted_tokens == 0
    assert not verifier.failures


async def test_a_request_without_speculation_gives_no_credit(verifier: InProcessVerifier) -> None:
    for speculation in ({"enabled": False}, {"max_draft_tokens": 0}):
        caller = ScriptedCaller(wrong())
        finished = await verify(verifier, caller, order(speculation=speculation))
        assert caller.opened.max_tree_nodes == 0
        assert [reason(status) for status in caller.refusals] == ["CREDIT_EXCEEDED"]
        assert finished.speculation.draft_tokens == 0


async def test_late_proposals_are_counted(verifier: InProcessVerifier) -> None:
    request = order()
    following = await text(verifier, request)
    first_wrong = (following[len(PROMPT)] + 1) % 200

    def late(opening: Opening) -> Sequence[Proposal]:
        if len(opening.tokens) == len(PROMPT):
            return ()
        return [opening.proposal([first_wrong], committed_length=len(PROMPT))]

    caller = ScriptedCaller(late)
    finished = await verify(verifier, caller, request)
    assert not caller.refusals
    assert finished.speculation.stale_nodes > 0
    assert finished.speculation.accepted_tokens == 0


STALE = Proposal(committed_length=1, first_node_id=1, token_ids=[3] * 8, parent_ids=[0] * 8)
"""Nodes below a token that was followed by another one long ago."""


@pytest.mark.parametrize("speculation", [{}, {"enabled": False}], ids=["drafting", "without credit"])
@pytest.mark.parametrize(
    "message",
    [pb.VerifyRequest(proposal=STALE), pb.VerifyRequest(), pb.VerifyRequest(proposal=Proposal())],
    ids=["stale", "of no known kind", "empty"],
)
async def test_a_flood_ends_the_stream(
    verifier: InProcessVerifier, message: pb.VerifyRequest, speculation: dict[str, Any]
) -> None:
    request = order(max_tokens=200, speculation=speculation)
    plain = await verifier.plain(order())
    read = 0
    take = conversation_module.VerifyConversation._take

    def counted(*args: Any) -> None:
        nonlocal read
        read += 1
        take(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversation_module.VerifyConversation, "_take", counted)
        verifier.engine.hold(1)
        async with asyncio.timeout(PATIENCE), call(verifier) as stream:
            await stream.write(pb.VerifyRequest(start=pb.VerifyStart(request=request)))
            with pytest.raises(StreamBroken, match="the caller sends more than it was asked for") as caught:
                for _ in range(2000):
                    await stream.write(message)
                while await stream.read() is not None:
                    pass
    assert caught.value.reason_name == "CREDIT_EXCEEDED"
    assert read <= 1200
    verifier.engine.go_on()
    await left_nothing(verifier)
    assert (await verifier.generate(order())).token_ids == plain.token_ids


async def test_large_messages_without_credit_are_few(verifier: InProcessVerifier) -> None:
    """Their time is charged to nobody: decoding some of a megabyte takes as long as a step."""
    request = order(max_tokens=200, speculation={"enabled": False})
    large = pb.VerifyRequest(proposal=Proposal(distributions=[DraftDistribution()] * 32768))
    verifier.engine.hold(1)
    async with asyncio.timeout(PATIENCE), call(verifier) as stream:
        await stream.write(pb.VerifyRequest(start=pb.VerifyStart(request=request)))
        with pytest.raises(StreamBroken, match="the caller sends more than it was asked for"):
            for _ in range(20):
                await stream.write(large)
            while await stream.read() is not None:
                pass
    verifier.engine.go_on()


async def test_floods_close_verify_to_the_caller(verifier: InProcessVerifier) -> None:
    for _ in range(3):
        verifier.engine.hold(1)
        async with asyncio.timeout(PATIENCE), call(verifier) as stream:
            await stream.write(pb.VerifyRequest(start=pb.VerifyStart(request=order(max_tokens=200))))
            with pytest.raises(StreamBroken, match="more than it was asked for"):
                for _ in range(2000):
                    await stream.write(pb.VerifyRequest(proposal=STALE))
                while await stream.read() is not None:
                    pass
        verifier.engine.go_on()
    error = await refused(verifier, start(order()))
    assert error.reason_name == "CREDIT_EXCEEDED"
    assert error.retry_seconds is not None and 0 < error.retry_seconds <= 5
    assert (await verifier.generate(order())).token_ids


async def test_all_that_verdicts_ask_for_may_be_sent_one_by_one(verifier: InProcessVerifier) -> None:
    """As many nodes as the request's credit after each verdict, in messages of their own."""
    request = order(max_tokens=60)

    def one_by_one(opening: Opening) -> Sequence[Proposal]:
        credit = verifier.verifier.model.limits.max_tree_nodes
        return [opening.proposal([token], parent_ids=[0]) for token in range(3, 3 + credit)]

    caller = ScriptedCaller(one_by_one)
    await verify(verifier, caller, request)
    assert not caller.refusals


class TestAnAccount:
    @pytest.fixture(autouse=True)
    def tireless(self) -> None:
        """Overrides the fixture that disables pausing."""

    async def test_a_caller_whose_messages_cost_more_than_they_save(
        self, verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is passed over at first; if that does not silence it, it is refused."""
        now = 0.0

        def spent() -> float:
            nonlocal now
            now += 0.01  # for each message: a fifth of a step
            return now

        monkeypatch.setattr(conversation_module, "time", Mock(thread_time=spent))
        passed = 0
        propose = CallerDrafting.propose

        def noted(drafting: CallerDrafting, proposal: Any) -> bool:
            nonlocal passed
            taken = propose(drafting, proposal)
            passed += not taken
            return taken

        monkeypatch.setattr(CallerDrafting, "propose", noted)
        request = order(max_tokens=80)
        lie = lying(await text(verifier, request))
        caller = ScriptedCaller(lambda opening: () if caller.refusals else lie(opening))
        finished = await verify(verifier, caller, request)
        assert passed > 3
        (refused,) = caller.refusals
        assert reason(refused) == "CREDIT_EXCEEDED"
        assert refused.message == "the caller's proposals cost the verifier more time than they save"
        assert finished.speculation.draft_tokens < 60

    async def test_a_caller_that_goes_on_after_its_refusal_loses_the_stream(
        self, verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 0.0

        def spent() -> float:
            nonlocal now
            now += 0.01
            return now

        monkeypatch.setattr(conversation_module, "time", Mock(thread_time=spent))
        request = order(max_tokens=200)

        def stubborn(opening: Opening) -> Sequence[Proposal]:
            return [STALE] * 3

        with pytest.raises(StreamBroken, match="cost the verifier more time than they save") as caught:
            await verify(verifier, ScriptedCaller(stubborn), request)
        assert caught.value.reason_name == "CREDIT_EXCEEDED"
        await left_nothing(verifier)

    async def test_a_caller_that_is_right_is_never_passed_over(
        self, verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 0.0

        def spent() -> float:
            nonlocal now
            now += 0.005
            return now

        monkeypatch.setattr(conversation_module, "time", Mock(thread_time=spent))
        verifier.engine.drafts_awaited = True
        request = order(max_tokens=80)
        caller = ScriptedCaller(knowing(await text(verifier, request)))
        finished = await verify(verifier, caller, request)
        assert not caller.refusals
        assert finished.speculation.accepted_tokens > 50


async def test_a_caller_that_does_not_read(verifier: InProcessVerifier) -> None:
    request = order()
    plain = await verifier.plain(request)
    caller = ScriptedCaller(knowing(await text(verifier, request)))
    verifier.engine.hold(1)
    async with asyncio.timeout(PATIENCE), call(verifier, max_buffered=1) as stream:
        await stream.write(pb.VerifyRequest(start=pb.VerifyStart(request=request)))
        await verifier.until(lambda: verifier.verifier.status().running_sequences == 1)
        verifier.engine.go_on()
        await verifier.freed()  # the engine did not wait for the reader
        output = await caller.follow(stream)
    assert output.token_ids == plain.token_ids
    assert caller.verdicts < 5
    assert not caller.refusals
    await left_nothing(verifier)


@pytest.mark.parametrize("severed", [False, True])
async def test_a_caller_that_goes(verifier: InProcessVerifier, severed: bool) -> None:
    verifier.engine.hold(3)
    async with asyncio.timeout(PATIENCE), call(verifier) as stream:
        await stream.write(pb.VerifyRequest(start=pb.VerifyStart(request=order(max_tokens=200))))
        while (message := await stream.read()) is not None and not message.HasField("verdict"):
            pass
        if severed:
            await stream.sever(StreamBroken.of(grpc.StatusCode.UNAVAILABLE, "connection reset by peer"))
    verifier.engine.go_on()
    await left_nothing(verifier)


async def refused(verifier: InProcessVerifier, *messages: pb.VerifyRequest) -> StreamBroken:
    """Returns the error with which a call that sends these messages fails."""
    async with asyncio.timeout(PATIENCE), call(verifier) as stream:
        for message in messages:
            await stream.write(message)
        await stream.close()
        with pytest.raises(StreamBroken) as caught:
            while await stream.read() is not None:
                pass
    verifier.engine.go_on()  # while a step is held back, the engine does not learn that the request has ended
    await left_nothing(verifier)
    return caught.value


def start(request: pb.GenerateRequest, tokenizer_sha256: str = "") -> pb.VerifyRequest:
    return pb.VerifyRequest(start=pb.VerifyStart(request=request, tokenizer_sha256=tokenizer_sha256))


class TestBeginning:
    @pytest.mark.parametrize(
        "messages",
        [(), (pb.VerifyRequest(),), (pb.VerifyRequest(proposal=Proposal(token_ids=[1], parent_ids=[0])),)],
        ids=["nothing", "unknown", "proposal"],
    )
    async def test_a_start_is_expected(
        self, verifier: InProcessVerifier, messages: tuple[pb.VerifyRequest, ...]
    ) -> None:
        error = await refused(verifier, *messages)
        assert (error.code, error.reason_name) == (grpc.StatusCode.FAILED_PRECONDITION, "HANDSHAKE_EXPECTED")

    async def test_a_caller_that_never_begins(
        self, verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(conversation_module, "_START_SECONDS", 0.05)
        async with asyncio.timeout(PATIENCE), call(verifier) as stream:
            with pytest.raises(StreamBroken) as caught:
                await stream.read()
        assert caught.value.reason_name == "HANDSHAKE_EXPECTED"

    async def test_one_start_only(self, verifier: InProcessVerifier) -> None:
        verifier.engine.hold(2)
        error = await refused(verifier, start(order()), start(order()))
        assert (error.code, error.reason_name) == (grpc.StatusCode.FAILED_PRECONDITION, "HANDSHAKE_EXPECTED")

    async def test_another_tokenizer(self, verifier: InProcessVerifier) -> None:
        error = await refused(verifier, start(order(), "beef"))
        assert (error.code, error.reason_name) == (grpc.StatusCode.FAILED_PRECONDITION, "TOKENIZER_MISMATCH")
        assert "beef" in error.status.message
        assert verifier.verifier.model.info.tokenizer_sha256 in error.status.message

    async def test_a_field_out_of_range(self, verifier: InProcessVerifier) -> None:
        error = await refused(verifier, start(order(max_tokens=0)))
        assert (error.code, error.reason_name) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        bad = error_details_pb2.BadRequest()
        assert any(detail.Unpack(bad) for detail in error.status.details)
        assert bad.field_violations[0].field == "max_tokens"

    async def test_a_drafter_that_is_not_there(self, verifier: InProcessVerifier) -> None:
        error = await refused(verifier, start(order(speculation={"drafter": "nobody"})))
        assert (error.code, error.reason_name) == (grpc.StatusCode.NOT_FOUND, "DRAFTER_NOT_FOUND")


class TestBesideThePool:
    async def test_both_draft(self, verifier: InProcessVerifier) -> None:
        request = order()
        known = await text(verifier, request)
        drafter = ScriptedDrafter(right(known))
        verifier.network.listen("good:1", drafter.converse)
        await verifier.pool.membership.attach("good:1", "good")
        verifier.engine.drafts_awaited = True
        for drafters, opened in ((None, 1), (1, 1), (2, 2)):
            speculation = {} if drafters is None else {"drafters": drafters}
            caller = ScriptedCaller(knowing(known))
            async with asyncio.timeout(PATIENCE), call(verifier) as stream:
                output = await caller.run(stream, order(speculation=speculation))
            assert [*PROMPT, *output.token_ids] == known
            assert not caller.refusals
            await verifier.freed()
            assert len(drafter.opened) == opened, drafters

    async def test_its_name_is_taken(self, verifier: InProcessVerifier) -> None:
        for change in (
            lambda: verifier.pool.membership.add("good:1", "caller"),
            lambda: verifier.pool.membership.register("good:1", "caller", leaving=False),
        ):
            with pytest.raises(ServiceError) as caught:
                change()
            assert caught.value.field_violations[0].field == "name"
        assert verifier.pool.describe() == []


class TestResuming:
    async def test_it_goes_on_where_it_was(self, verifier: InProcessVerifier) -> None:
        request = order(sampling=sampled())
        plain = await verifier.plain(request)
        request.resume_token_ids.extend(plain.token_ids[:15])
        caller = ScriptedCaller(knowing([*PROMPT, *plain.token_ids]))
        async with asyncio.timeout(PATIENCE), call(verifier) as stream:
            output = await caller.run(stream, request)
        assert list(caller.opened.token_ids) == [*PROMPT, *plain.token_ids[:15]]
        assert output.token_ids == plain.token_ids[15:]
        await left_nothing(verifier)

    async def test_one_that_is_complete(self, verifier: InProcessVerifier) -> None:
        request = order(max_tokens=5)
        request.resume_token_ids.extend((await verifier.plain(request)).token_ids)
        caller = ScriptedCaller()
        async with asyncio.timeout(PATIENCE), call(verifier) as stream:
            output = await caller.run(stream, request)
        assert caller.opened.max_tree_nodes == 0
        assert output.token_ids == []
        assert output.finished.finish_reason == pb.FINISH_REASON_LENGTH
        await left_nothing(verifier)


async def test_an_engine_that_dies(verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    def die() -> None:
        raise RuntimeError("the engine is dead")

    async with asyncio.timeout(PATIENCE), call(verifier) as stream:
        verifier.engine.hold(2)
        await stream.write(start(order(max_tokens=200)))
        while (message := await stream.read()) is not None and not message.HasField("verdict"):
            pass
        monkeypatch.setattr(verifier.engine, "step", die)
        verifier.engine.go_on()
        with pytest.raises(StreamBroken) as caught:
            while await stream.read() is not None:
                pass
    assert caught.value.reason_name == "INTERNAL"
    assert [str(error) for error in verifier.failures] == ["the engine is dead"]
    verifier.failures.clear()
    verifier.dead = True
