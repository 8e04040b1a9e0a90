"""Drafters that hang, lie, fill up or return with another model: requests continue, and the pool handles each case."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.status_pb2 import Status

from draftwire.v1 import drafter_service_pb2 as pb
from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from draftwire.v1.model_info_pb2 import Limits, ModelInfo
from draftwire.v1.proposal_pb2 import Proposal, ProposalBatch
from draftwire_core.pool.announcing import heartbeats
from draftwire_core.pool.drafter import drafter_stream
from draftwire_core.pool.drafter.conversation import DrafterConversation
from draftwire_core.pool.standing import circuit_breaker
from draftwire_core.runtime.errors import at_capacity
from draftwire_core.runtime.rpc.handshake import CAPABILITY_PING
from tests.harness.services.in_process_verifier import PROMPT, InProcessVerifier, order
from tests.harness.stand_ins.drafter_answers import MALFORMED, fault
from tests.harness.stand_ins.scripted_drafter import Opening, Stream, hello, right
from tests.harness.verifier.running import Running, failure
from tests.harness.waiting import PATIENCE

READY = DrafterState.DRAFTER_STATE_READY
UNREACHABLE = DrafterState.DRAFTER_STATE_UNREACHABLE
INCOMPATIBLE = DrafterState.DRAFTER_STATE_INCOMPATIBLE
SUSPENDED = DrafterState.DRAFTER_STATE_SUSPENDED


class TestSignsOfLife:
    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(drafter_stream, "_PING_SECONDS", 0.1)

    async def test_a_drafter_that_answers_is_kept(self, verifier: InProcessVerifier, listening: Any) -> None:
        drafter = listening("a:1", greeting=hello(capabilities=[CAPABILITY_PING]))
        await verifier.pool.membership.attach("a:1", "")
        await verifier.until(lambda: drafter.pings > 6)
        assert verifier.network.attempts == {"a:1": 1}

    async def test_a_drafter_that_hangs_is_lost_and_another_takes_over(
        self, verifier: InProcessVerifier, listening: Any
    ) -> None:
        hung = listening("a:1", greeting=hello(capabilities=[CAPABILITY_PING]))
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier) as running:
            await verifier.until(lambda: hung.open)
            verifier.engine.drafts_awaited = True
            other = listening("b:1", right([*PROMPT, *running.plain.token_ids]))
            await verifier.pool.membership.attach("b:1", "")
            hung.alive = False
            await verifier.until(lambda: other.open)
            assert verifier.state("a:1").sequences == 0
            await verifier.until(lambda: "no sign of life" in verifier.state("a:1").last_error.message)
        assert "b:1" in running.output.sources

    async def test_one_that_cannot_be_pinged_is_not(self, verifier: InProcessVerifier, listening: Any) -> None:
        silent = listening("a:1")
        silent.alive = False
        await verifier.pool.membership.attach("a:1", "")
        await asyncio.sleep(0.6)
        assert silent.pings == 0
        assert verifier.state("a:1").state == READY

    async def test_it_comes_back(self, verifier: InProcessVerifier, listening: Any) -> None:
        drafter = listening("a:1", greeting=hello(capabilities=[CAPABILITY_PING]))
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier):
            await verifier.until(lambda: drafter.open)
            drafter.alive = False
            await verifier.until(lambda: drafter.ended)
            drafter.alive = True
            await verifier.until(lambda: verifier.state("a:1").sequences == 1)


async def test_a_mistake_in_a_conversation_costs_that_drafter_alone(
    verifier: InProcessVerifier, listening: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody foresaw in its messages ends no request, and is told to the log."""
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    run = DrafterConversation.run

    async def mistaken(conversation: DrafterConversation) -> None:
        await verifier.until(lambda: conversation.sequences)
        raise AttributeError("nobody foresaw it")

    monkeypatch.setattr(DrafterConversation, "run", mistaken)
    listening("a:1")
    await verifier.pool.membership.attach("a:1", "")
    async with Running(verifier):
        await verifier.until(lambda: verifier.state("a:1").state == UNREACHABLE)
        assert "failed, see the log" in verifier.state("a:1").last_error.message
        monkeypatch.setattr(DrafterConversation, "run", run)
        await verifier.until(lambda: verifier.state("a:1").state == READY)
    assert [(each["drafter"], type(each["exception"])) for each in told] == [("a:1", AttributeError)]


class TestBreakingTheProtocol:
    async def test_three_refused_proposals(
        self, verifier: InProcessVerifier, listening: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(circuit_breaker, "_FIRST_PAUSE_SECONDS", 1.0)
        verifier.engine.drafts_awaited = True
        liar = listening("liar:1", MALFORMED["its own parent"])
        await verifier.pool.membership.attach("liar:1", "")
        plain = await verifier.plain(order(max_tokens=12))
        outputs = await asyncio.gather(*(verifier.generate(order(max_tokens=12)) for _ in range(3)))
        assert [output.token_ids for output in outputs] == [plain.token_ids] * 3
        await verifier.until(lambda: verifier.state("liar:1").state == SUSPENDED)
        assert "parent_ids" in verifier.state("liar:1").last_error.message
        assert verifier.network.attempts == {"liar:1": 1}
        assert len(liar.errors) >= 2
        liar.answer = lambda _: ()
        await verifier.until(lambda: verifier.state("liar:1").state == READY)
        assert verifier.network.attempts == {"liar:1": 2}

    async def test_a_flood_of_proposals_for_nothing(self, verifier: InProcessVerifier, listening: Any) -> None:
        drafter = listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        batch = [Proposal(sequence_id=9, epoch=9, token_ids=[1], parent_ids=[0]) for _ in range(1000)]
        async with Running(verifier):
            await verifier.until(lambda: drafter.open)
            await drafter.say(pb.DraftResponse(proposals=ProposalBatch(proposals=batch)))
            await verifier.until(lambda: verifier.state("a:1").state == SUSPENDED)

    async def test_handshakes_that_are_none(self, verifier: InProcessVerifier, listening: Any) -> None:
        listening("a:1", greeting=pb.DraftResponse(opened=pb.SequenceOpened(sequence_id=1, epoch=1)))
        verifier.pool.membership.add("a:1")
        await verifier.until(lambda: verifier.state("a:1").state == SUSPENDED)
        assert verifier.network.attempts == {"a:1": 3}

    async def test_a_handshake_of_enormous_size(self, verifier: InProcessVerifier, listening: Any) -> None:
        listening("a:1", greeting=hello(model=ModelInfo(model_id="x" * 100_000)))
        assert (await failure(verifier.pool.membership.attach("a:1", "")))[1] == "HANDSHAKE_EXPECTED"

    async def test_a_model_that_does_not_fit_breaks_no_protocol(
        self, verifier: InProcessVerifier, listening: Any
    ) -> None:
        listening("a:1", greeting=hello(model=ModelInfo(model_id="foreign", tokenizer_sha256="beef")))
        verifier.pool.membership.add("a:1")
        await verifier.until(lambda: verifier.network.attempts.get("a:1", 0) > 4)
        assert verifier.state("a:1").state == INCOMPATIBLE
        assert "foreign" in verifier.state("a:1").last_error.message

    async def test_errors_that_are_garbage(self, verifier: InProcessVerifier, listening: Any) -> None:
        """The errors' details cannot be decoded and their message is huge; the verifier survives both."""
        kind = "type.googleapis.com/google.rpc."
        details = [AnyMessage(type_url=kind + each, value=b"\xff\xff\xff") for each in ("ErrorInfo", "RetryInfo")]
        status = Status(code=3, message="x" * 100_000, details=details)

        def answer(opening: Opening) -> Sequence[pb.DraftResponse]:
            error = pb.SequenceError(sequence_id=opening.sequence_id, epoch=opening.epoch, status=status)
            return [pb.DraftResponse(sequence_error=error)]

        listening("a:1", answer)
        await verifier.pool.membership.attach("a:1", "")
        plain = await verifier.plain(order(max_tokens=8))
        assert (await verifier.generate(order(max_tokens=8))).token_ids == plain.token_ids
        await verifier.until(lambda: verifier.state("a:1").last_error.message)
        assert verifier.state("a:1").ByteSize() < 10_000


class TestAnotherModelComesBack:
    async def test_it_is_measured_afresh(self, verifier: InProcessVerifier, listening: Any) -> None:
        verifier.engine.drafts_awaited = True
        plain = await verifier.plain(order())
        listening("a:1", right([*PROMPT, *plain.token_ids]))
        attached = await verifier.pool.membership.attach("a:1", "")
        await verifier.generate(order())
        source = attached.source
        assert source in verifier.engine.planner.models
        verifier.engine.drafts_awaited = False
        await verifier.network.kill("a:1")
        listening("a:1", greeting=hello(model=ModelInfo(model_id="other", vocab_size=200)))
        await verifier.until(lambda: verifier.state("a:1").model.model_id == "other")
        await verifier.until(lambda: source not in verifier.engine.planner.models)
        assert attached.source != source
        assert verifier.state("a:1").accepted_per_second == 0

    async def test_the_same_model_keeps_what_was_learned(self, verifier: InProcessVerifier, listening: Any) -> None:
        verifier.engine.drafts_awaited = True
        plain = await verifier.plain(order())
        drafter = listening("a:1", right([*PROMPT, *plain.token_ids]))
        attached = await verifier.pool.membership.attach("a:1", "")
        await verifier.generate(order())
        source = attached.source
        await verifier.network.kill("a:1")
        verifier.network.listen("a:1", drafter.converse)
        await verifier.until(lambda: verifier.state("a:1").state == READY)
        assert attached.source == source
        assert source in verifier.engine.planner.models

    async def test_one_that_does_not_fit_stays_out(self, verifier: InProcessVerifier, listening: Any) -> None:
        first = listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier):
            await verifier.until(lambda: first.open)
            await verifier.network.kill("a:1")
            listening("a:1", greeting=hello(model=ModelInfo(model_id="foreign", tokenizer_sha256="beef")))
            await verifier.until(lambda: "foreign" in verifier.state("a:1").last_error.message)
            assert verifier.state("a:1").state == INCOMPATIBLE


class TestFull:
    async def test_a_full_drafter_is_asked_again_when_it_said(
        self, verifier: InProcessVerifier, listening: Any
    ) -> None:
        drafter = listening("a:1", fault(at_capacity("full", 0.2)), says_opened=False)
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier):
            await verifier.until(lambda: len(drafter.opened) >= 2)
            drafter.answer = lambda _: ()
            await verifier.until(lambda: verifier.state("a:1").sequences == 1)
            count = -1
            async with asyncio.timeout(PATIENCE):
                while count != len(drafter.opened):  # a refused opening may still have been in transit
                    count = len(drafter.opened)
                    await asyncio.sleep(0.5)
            assert verifier.state("a:1").sequences == 1

    async def test_the_drafters_limit_on_sequences_is_kept(self, verifier: InProcessVerifier, listening: Any) -> None:
        limits = Limits(max_sequences=2, max_tree_nodes=64, max_sequence_tokens=256)
        drafter = listening("a:1", greeting=hello(limits=limits))
        await verifier.pool.membership.attach("a:1", "")
        verifier.engine.hold(1)
        requests = [asyncio.create_task(verifier.generate(order())) for _ in range(4)]
        await verifier.until(lambda: len(drafter.open) == 2)
        assert verifier.state("a:1").sequences == 2
        requests[0].cancel()
        await verifier.until(lambda: len(drafter.opened) == 3)
        assert verifier.state("a:1").sequences == 2
        verifier.engine.go_on()
        await asyncio.gather(*requests[1:])


class TestWhoAttachedIt:
    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(heartbeats, "HEARTBEAT_SECONDS", 0.05)

    @pytest.mark.parametrize("announced_first", [True, False])
    async def test_one_that_was_given_stays_without_heartbeats(
        self, verifier: InProcessVerifier, listening: Any, announced_first: bool
    ) -> None:
        listening("a:1")
        if announced_first:
            verifier.pool.membership.register("a:1", "", leaving=False)
        verifier.pool.membership.add("a:1")
        verifier.pool.membership.register("a:1", "", leaving=False)
        assert verifier.state("a:1").announced
        await verifier.until(lambda: not verifier.state("a:1").announced)
        await verifier.until(lambda: verifier.state("a:1").state == READY)

    async def test_more_drafters_than_there_may_be(self, verifier: InProcessVerifier, listening: Any) -> None:
        verifier.pool.roster._max_drafters = 2
        for index in (1, 2, 3):
            listening(f"a:{index}")
        await verifier.pool.membership.attach("a:1", "")
        verifier.pool.membership.register("a:2", "", leaving=False)
        assert await failure(verifier.pool.membership.attach("a:3", "")) == ("RESOURCE_EXHAUSTED", "AT_CAPACITY")
        await verifier.pool.membership.attach("a:1", "")
        await verifier.pool.changes.detach("a:1")
        await verifier.pool.membership.attach("a:3", "")


async def test_a_drafter_that_hangs_in_its_handshake_again_and_again(
    verifier: InProcessVerifier, listening: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftwire_core.pool.drafter import drafter_stream

    monkeypatch.setattr(drafter_stream, "_HANDSHAKE_SECONDS", 0.05)

    async def silent(stream: Stream) -> None:
        while await stream.read() is not None:
            pass

    verifier.network.listen("a:1", silent)
    verifier.pool.membership.add("a:1")
    async with asyncio.timeout(PATIENCE):
        plain = await verifier.plain(order(max_tokens=8))
        assert (await verifier.generate(order(max_tokens=8))).token_ids == plain.token_ids
    await verifier.until(lambda: verifier.network.attempts.get("a:1", 0) > 3)
    assert verifier.state("a:1").state == UNREACHABLE
