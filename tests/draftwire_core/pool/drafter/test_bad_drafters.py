"""A drafter that lies, breaks the rules or falls silent costs speed, but never a token or the service."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from structlog.testing import capture_logs

from draftwire.v1 import drafter_service_pb2 as pb
from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.model_info_pb2 import Limits, ModelInfo
from draftwire_core.pool.drafter import drafter_stream, service_drafter
from draftwire_core.pool.standing import flood_limit as drafter_allowance
from draftwire_core.runtime.errors import ServiceError, at_capacity, failed_precondition, invalid_field
from draftwire_core.runtime.rpc.channel import Backoff
from draftwire_core.runtime.rpc.handshake import check_peer
from draftwire_core.runtime.rpc.message_stream import StreamBroken
from tests.harness.services.in_process_verifier import PATIENCE, PROMPT, Handler, InProcessVerifier, order, sampled
from tests.harness.stand_ins.drafter_answers import MALFORMED, changed, fault
from tests.harness.stand_ins.scripted_drafter import (
    Answer,
    Opening,
    ScriptedDrafter,
    Stream,
    batch,
    hello,
    right,
)

UNREACHABLE = DrafterState.DRAFTER_STATE_UNREACHABLE
READY = DrafterState.DRAFTER_STATE_READY
INCOMPATIBLE = DrafterState.DRAFTER_STATE_INCOMPATIBLE
SUSPENDED = DrafterState.DRAFTER_STATE_SUSPENDED


async def refused(verifier: InProcessVerifier, drafter: Handler) -> ServiceError:
    """Returns the error with which attaching a drafter fails."""
    verifier.network.listen("bad:1", drafter)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ServiceError) as caught:
            await verifier.pool.membership.attach("bad:1", "")
    assert verifier.pool.describe() == []
    return caught.value


class TestHandshake:
    async def test_another_tokenizer(self, verifier: InProcessVerifier) -> None:
        model = ModelInfo(model_id="foreign", tokenizer_sha256="beef")
        error = await refused(verifier, ScriptedDrafter(greeting=hello(model=model)).converse)
        assert (error.code, error.reason_name) == (grpc.StatusCode.FAILED_PRECONDITION, "TOKENIZER_MISMATCH")
        for part in ("foreign", "beef", "target", verifier.verifier.model.info.tokenizer_sha256):
            assert part in error.message

    @pytest.mark.parametrize("reason", ["TOKENIZER_MISMATCH", "PROTOCOL_MISMATCH"])
    async def test_refused_by_the_drafter(self, verifier: InProcessVerifier, reason: str) -> None:
        async def refuse(stream: Stream) -> None:
            await stream.read()
            raise failed_precondition(ErrorReason.Value(f"ERROR_REASON_{reason}"), "mine is not yours")

        error = await refused(verifier, refuse)
        assert (error.code, error.reason_name) == (grpc.StatusCode.FAILED_PRECONDITION, reason)
        assert "mine is not yours" in error.message

    @pytest.mark.parametrize("by", ["verifier", "drafter"])
    async def test_an_incompatible_drafter_is_shown_as_such_with_the_remedy(
        self, verifier: InProcessVerifier, by: str
    ) -> None:
        model = ModelInfo(model_id="foreign", tokenizer_sha256="beef")

        async def refuse(stream: Stream) -> None:
            request = await stream.read()
            assert request is not None
            check_peer(hello(model=model).hello, request.hello)

        drafter = refuse if by == "drafter" else ScriptedDrafter(greeting=hello(model=model)).converse
        verifier.network.listen("bad:1", drafter)
        verifier.pool.membership.add("bad:1")
        await verifier.until(lambda: verifier.state("bad:1").state == INCOMPATIBLE)
        assert "--target-tokenizer" in verifier.state("bad:1").last_error.message
        verifier.network.listen("bad:1", ScriptedDrafter().converse)  # another model is loaded there
        await verifier.until(lambda: verifier.state("bad:1").state == READY)

    async def test_one_that_refuses_after_its_greeting_is_logged_once(
        self, verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is ready for a moment, time and again."""
        monkeypatch.setattr(service_drafter, "Backoff", lambda *_: Backoff(0.01, 0.01))
        attempts = 0

        async def refuse(stream: Stream) -> None:
            nonlocal attempts
            attempts += 1
            await stream.read()
            await stream.write(hello())
            await asyncio.sleep(0.02)
            raise failed_precondition(ErrorReason.ERROR_REASON_TOKENIZER_MISMATCH, "mine is not yours")

        verifier.network.listen("bad:1", refuse)
        with capture_logs() as logs:
            verifier.pool.membership.add("bad:1")
            await verifier.until(lambda: attempts > 4)
        assert sum(each["event"] == "drafter connected" for each in logs) > 2
        assert sum(each["event"] == "handshake refused" for each in logs) == 1

    async def test_another_protocol_revision(self, verifier: InProcessVerifier) -> None:
        greeting = hello(protocol_revision=9, min_protocol_revision=8)
        error = await refused(verifier, ScriptedDrafter(greeting=greeting).converse)
        assert (error.code, error.reason_name) == (grpc.StatusCode.FAILED_PRECONDITION, "PROTOCOL_MISMATCH")

    async def test_a_first_message_that_is_no_hello(self, verifier: InProcessVerifier) -> None:
        greeting = pb.DraftResponse(opened=pb.SequenceOpened(sequence_id=1, epoch=1))
        error = await refused(verifier, ScriptedDrafter(greeting=greeting).converse)
        assert (error.code, error.reason_name) == (grpc.StatusCode.FAILED_PRECONDITION, "HANDSHAKE_EXPECTED")

    async def test_nobody_there(self, verifier: InProcessVerifier) -> None:
        with pytest.raises(ServiceError) as caught:
            await verifier.pool.membership.attach("nobody:1", "")
        assert (caught.value.code, caught.value.reason_name) == (grpc.StatusCode.UNAVAILABLE, "DRAFTER_UNREACHABLE")
        assert "nobody:1" in caught.value.message
        assert verifier.pool.describe() == []

    async def test_a_drafter_that_never_says_hello(
        self, verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(drafter_stream, "_HANDSHAKE_SECONDS", 0.05)
        left = asyncio.Event()

        async def silent(stream: Stream) -> None:
            try:
                while await stream.read() is not None:
                    pass
            finally:
                left.set()

        error = await refused(verifier, silent)
        assert (error.code, error.reason_name) == (grpc.StatusCode.UNAVAILABLE, "DRAFTER_UNREACHABLE")
        assert "handshake" in error.message
        async with asyncio.timeout(PATIENCE):
            await left.wait()

    @pytest.mark.parametrize("reads_first", [True, False])
    async def test_a_drafter_that_hangs_up(self, verifier: InProcessVerifier, reads_first: bool) -> None:
        async def hang_up(stream: Stream) -> None:
            if reads_first:
                await stream.read()

        error = await refused(verifier, hang_up)
        assert error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION)

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"build": "\x1b[2J"}, "build"),
            ({"capabilities": ["ping", "two\nlines"]}, "capabilities"),
            ({"model": ModelInfo(model_id="m\x1b]0;title\x07")}, "model.model_id"),
        ],
    )
    async def test_what_would_do_something_in_a_terminal(
        self, verifier: InProcessVerifier, changes: dict[str, Any], field: str
    ) -> None:
        error = await refused(verifier, ScriptedDrafter(greeting=hello(**changes)).converse)
        assert error.reason_name == "HANDSHAKE_EXPECTED"
        assert f"whose {field} is not printable" in error.message

    async def test_more_capabilities_than_each_step_can_look_through(self, verifier: InProcessVerifier) -> None:
        greeting = hello(capabilities=[""] * 30_000)
        error = await refused(verifier, ScriptedDrafter(greeting=greeting).converse)
        assert error.reason_name == "HANDSHAKE_EXPECTED"
        assert "sent a handshake with 30000 capabilities" in error.message

    async def test_the_verifier_says_who_it_is(self, verifier: InProcessVerifier) -> None:
        drafter = ScriptedDrafter()
        verifier.network.listen("good:1", drafter.converse)
        await verifier.pool.membership.attach("good:1", "")
        assert drafter.hellos[0].model == verifier.verifier.model.info
        assert drafter.hellos[0].limits == verifier.verifier.model.limits


class TestProposals:
    @pytest.mark.parametrize("name", MALFORMED)
    async def test_a_malformed_one_ends_the_sequence_there(self, verifier: InProcessVerifier, name: str) -> None:
        request = order(max_tokens=12, sampling=sampled())
        plain = await verifier.plain(request)
        drafter = ScriptedDrafter(MALFORMED[name])
        verifier.network.listen("bad:1", drafter.converse)
        await verifier.pool.membership.attach("bad:1", "")
        verifier.engine.hold(0)
        running = asyncio.create_task(verifier.generate(request))
        await verifier.until(lambda: drafter.opened)
        verifier.engine.go_on()
        assert (await running).token_ids == plain.token_ids
        await verifier.until(lambda: drafter.errors)
        (told,) = drafter.errors
        assert (told.sequence_id, told.epoch) == (drafter.opened[0].sequence_id, drafter.opened[0].epoch)
        assert told.status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert StreamBroken(told.status).reason_name == "MALFORMED_PROPOSAL"
        assert len(drafter.opened) == 1, "it gets the sequence back only with a new connection"
        assert verifier.state("bad:1").state == READY, "the stream goes on for other sequences"
        assert verifier.state("bad:1").last_error.code == told.status.code
        assert verifier.state("bad:1").sequences == 0

    async def test_a_malformed_one_found_after_the_sequence_was_opened_again(self, verifier: InProcessVerifier) -> None:
        def answer(opening: Opening) -> Sequence[pb.DraftResponse]:
            if len(drafter.opened) > 1:
                return ()
            lost = fault(failed_precondition(ErrorReason.ERROR_REASON_OUT_OF_SYNC, "lost"))
            return [batch(opening.proposal([3, 200])), *lost(opening)]

        request = order(max_tokens=12)
        plain = await verifier.plain(request)
        drafter = ScriptedDrafter(answer)
        verifier.network.listen("bad:1", drafter.converse)
        verifier.engine.hold(0)
        running = asyncio.create_task(verifier.generate(request))
        await verifier.until(lambda: verifier.engine.held)
        await verifier.pool.membership.attach("bad:1", "")
        await verifier.until(lambda: len(drafter.opened) == 2)
        verifier.engine.go_on()
        assert (await running).token_ids == plain.token_ids
        assert not drafter.errors, "what the opening is told that has ended, the next one is not blamed for"

    async def test_one_beyond_the_credit(self, verifier: InProcessVerifier) -> None:
        request = order(max_tokens=12)
        plain = await verifier.plain(request)
        drafter = ScriptedDrafter(lambda opening: [batch(opening.proposal([3] * 9))])
        verifier.network.listen("bad:1", drafter.converse)
        await verifier.pool.membership.attach("bad:1", "")
        assert (await verifier.generate(request)).token_ids == plain.token_ids
        assert drafter.opened[0].max_tree_nodes == 8
        await verifier.until(lambda: drafter.errors)
        assert drafter.errors[0].status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert StreamBroken(drafter.errors[0].status).reason_name == "CREDIT_EXCEEDED"

    async def test_the_credit_may_be_used_in_full(self, verifier: InProcessVerifier) -> None:
        request = order(max_tokens=12)
        plain = await verifier.plain(request)
        text = [*PROMPT, *plain.token_ids]
        drafter = ScriptedDrafter(lambda opening: right(text, 8)(opening) if len(opening.tokens) == 6 else ())
        verifier.network.listen("good:1", drafter.converse)
        await verifier.pool.membership.attach("good:1", "")
        assert (await verifier.generate(request)).token_ids == plain.token_ids
        assert not drafter.errors

    async def test_the_drafters_own_limit_is_kept(self, verifier: InProcessVerifier) -> None:
        drafter = ScriptedDrafter(greeting=hello(limits=Limits(max_tree_nodes=3)))
        verifier.network.listen("small:1", drafter.converse)
        await verifier.pool.membership.attach("small:1", "")
        await verifier.generate(order(max_tokens=4))
        assert drafter.opened[0].max_tree_nodes == 3

    @pytest.mark.parametrize("changes", [{"sequence_id": 77}, {"epoch": 0}])
    async def test_those_for_nothing_that_is_open_are_counted(
        self, verifier: InProcessVerifier, changes: dict[str, int]
    ) -> None:
        request = order(max_tokens=12)
        plain = await verifier.plain(request)
        drafter = ScriptedDrafter(changed(**changes))
        verifier.network.listen("bad:1", drafter.converse)
        await verifier.pool.membership.attach("bad:1", "")
        assert (await verifier.generate(request)).token_ids == plain.token_ids
        await verifier.until(lambda: verifier.state("bad:1").stale_nodes >= 2)
        assert not drafter.errors

    async def test_those_for_an_opening_that_never_was_are_refused(self, verifier: InProcessVerifier) -> None:
        request = order(max_tokens=12)
        plain = await verifier.plain(request)
        drafter = ScriptedDrafter(changed(epoch=2**32 - 1))
        verifier.network.listen("bad:1", drafter.converse)
        await verifier.pool.membership.attach("bad:1", "")
        assert (await verifier.generate(request)).token_ids == plain.token_ids
        await verifier.until(lambda: drafter.errors)
        assert drafter.errors[0].epoch == 2**32 - 1
        assert drafter.errors[0].status.code == grpc.StatusCode.NOT_FOUND.value[0]
        assert StreamBroken(drafter.errors[0].status).reason_name == "UNKNOWN_SEQUENCE"

    async def test_those_that_a_verdict_has_overtaken_are_counted(self, verifier: InProcessVerifier) -> None:
        request = order(max_tokens=30)
        plain = await verifier.plain(request)
        wrong = (plain.token_ids[0] + 1) % 200

        def late(opening: Opening) -> Sequence[pb.DraftResponse]:
            if len(opening.tokens) < 12:
                return ()
            return [batch(opening.proposal([wrong], committed_length=len(PROMPT)))]

        drafter = ScriptedDrafter(late)
        verifier.network.listen("late:1", drafter.converse)
        await verifier.pool.membership.attach("late:1", "")
        output = await verifier.generate(request)
        assert output.token_ids == plain.token_ids
        await verifier.until(lambda: verifier.state("late:1").stale_nodes > 0)
        assert not drafter.errors

    async def test_the_other_sequences_of_the_stream_go_on(self, verifier: InProcessVerifier) -> None:
        verifier.engine.drafts_awaited = True
        requests = [order([index + 3, 9], max_tokens=20) for index in range(3)]
        plain = [await verifier.plain(request) for request in requests]
        texts = [[index + 3, 9, *output.token_ids] for index, output in enumerate(plain)]

        def answer(opening: Opening) -> Sequence[pb.DraftResponse]:
            index = opening.tokens[0] - 3
            return MALFORMED["its own parent"](opening) if index == 1 else right(texts[index])(opening)

        drafter = ScriptedDrafter(answer)
        verifier.network.listen("mixed:1", drafter.converse)
        await verifier.pool.membership.attach("mixed:1", "")
        outputs = await asyncio.gather(*map(verifier.generate, requests))
        assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
        assert outputs[0].finished.speculation.accepted_tokens > 0
        assert outputs[1].finished.speculation.accepted_tokens == 0
        assert len(drafter.errors) == 1

    async def test_another_drafter_takes_the_sequence_over(self, verifier: InProcessVerifier) -> None:
        verifier.engine.drafts_awaited = True
        request = order(max_tokens=30)
        plain = await verifier.plain(request)
        liar = ScriptedDrafter(MALFORMED["its own parent"])
        honest = ScriptedDrafter(right([*PROMPT, *plain.token_ids]))
        verifier.network.listen("liar:1", liar.converse)
        verifier.network.listen("honest:1", honest.converse)
        await verifier.pool.membership.attach("liar:1", "")
        await verifier.pool.membership.attach("honest:1", "")
        output = await verifier.generate(request)
        assert output.token_ids == plain.token_ids
        assert len(liar.opened) == 1
        assert len(honest.opened) == 1
        assert "honest:1" in output.sources

    @pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0, 1e300])
    async def test_a_step_time_that_cannot_be_true_is_passed_over(
        self, verifier: InProcessVerifier, seconds: float
    ) -> None:
        drafter = ScriptedDrafter(lambda opening: [batch(opening.proposal((3,)), step_seconds=seconds)])
        verifier.network.listen("bad:1", drafter.converse)
        await verifier.pool.membership.attach("bad:1", "")
        await verifier.generate(order(max_tokens=6))
        assert verifier.state("bad:1").step_time.ToNanoseconds() == 0
        await verifier.pool.changes.detach("bad:1")

    async def test_log_probabilities_of_minus_infinity(self, verifier: InProcessVerifier) -> None:
        """A drafter may be certain that a node is wrong."""
        request = order(max_tokens=12)
        plain = await verifier.plain(request)
        drafter = ScriptedDrafter(changed(log_probs=[-math.inf, -math.inf]))
        verifier.network.listen("odd:1", drafter.converse)
        await verifier.pool.membership.attach("odd:1", "")
        assert (await verifier.generate(request)).token_ids == plain.token_ids
        assert all(StreamBroken(error.status).reason_name == "CREDIT_EXCEEDED" for error in drafter.errors)


class TestSequenceErrors:
    @pytest.mark.parametrize("count", [1, 2, 3])
    async def test_drafters_that_are_full_are_asked_once(self, verifier: InProcessVerifier, count: int) -> None:
        """A full drafter is not asked again each time that another one refuses."""
        drafters = [ScriptedDrafter(fault(at_capacity("full", 60.0))) for _ in range(count)]
        for index, drafter in enumerate(drafters):
            verifier.network.listen(f"full:{index + 1}", drafter.converse)
            await verifier.pool.membership.attach(f"full:{index + 1}", "")
        plain = await verifier.plain(order(max_tokens=12))
        output = await verifier.generate(order(max_tokens=12))
        assert output.token_ids == plain.token_ids
        await verifier.until(lambda: sum(len(drafter.opened) for drafter in drafters) == count)
        assert [len(drafter.opened) for drafter in drafters] == [1] * count
        assert not any(drafter.errors for drafter in drafters)
        assert all(drafter.last_error.code == 8 for drafter in verifier.pool.describe())

    async def test_a_drafter_that_fell_out_of_step_gets_the_sequence_again_a_few_times(
        self, verifier: InProcessVerifier
    ) -> None:
        drafter = ScriptedDrafter(fault(failed_precondition(ErrorReason.ERROR_REASON_OUT_OF_SYNC, "lost")))
        verifier.network.listen("lost:1", drafter.converse)
        await verifier.pool.membership.attach("lost:1", "")
        plain = await verifier.plain(order(max_tokens=20))
        verifier.engine.hold(0)
        running = asyncio.create_task(verifier.generate(order(max_tokens=20)))
        await verifier.until(lambda: len(drafter.opened) == 4)
        verifier.engine.go_on()
        assert (await running).token_ids == plain.token_ids
        assert len(drafter.opened) == 4
        epochs = [opening.epoch for opening in drafter.opened]
        assert epochs == sorted(set(epochs)), "every opening has a larger number"

    async def test_a_drafter_that_missed_a_verdict_goes_on_after_it_was_opened_again(
        self, verifier: InProcessVerifier
    ) -> None:
        verifier.engine.drafts_awaited = True
        request = order(max_tokens=40)
        plain = await verifier.plain(request)
        text = [*PROMPT, *plain.token_ids]
        lost = fault(failed_precondition(ErrorReason.ERROR_REASON_OUT_OF_SYNC, "lost"))
        failed: list[int] = []

        def answer(opening: Opening) -> Sequence[pb.DraftResponse]:
            if len(opening.tokens) > 12 and not failed:
                failed.append(opening.epoch)
                return lost(opening)
            return right(text)(opening)

        drafter = ScriptedDrafter(answer)
        verifier.network.listen("lost:1", drafter.converse)
        await verifier.pool.membership.attach("lost:1", "")
        output = await verifier.generate(request)
        assert output.token_ids == plain.token_ids
        assert len(drafter.opened) == 2
        assert drafter.opened[1].committed_length > 12
        assert output.sources[-4:] != [None] * 4

    @pytest.mark.parametrize("changes", [{"sequence_id": 99}, {"epoch": 99}])
    async def test_those_about_nothing_that_is_open_are_passed_over(
        self, verifier: InProcessVerifier, changes: dict[str, int]
    ) -> None:
        def answer(opening: Opening) -> Sequence[pb.DraftResponse]:
            fields = {"sequence_id": opening.sequence_id, "epoch": opening.epoch} | changes
            status = invalid_field("x", "is wrong").to_status()
            return [pb.DraftResponse(sequence_error=pb.SequenceError(status=status, **fields))]

        drafter = ScriptedDrafter(answer)
        verifier.network.listen("odd:1", drafter.converse)
        await verifier.pool.membership.attach("odd:1", "")
        await verifier.generate(order(max_tokens=8))
        await verifier.until(lambda: drafter.opened)
        assert verifier.state("odd:1").last_error.code == 0

    async def test_what_it_says_does_nothing_in_a_terminal(self, verifier: InProcessVerifier) -> None:
        drafter = ScriptedDrafter(fault(invalid_field("x\x1b[2J", "two\nlines")))
        verifier.network.listen("odd:1", drafter.converse)
        await verifier.pool.membership.attach("odd:1", "")
        await verifier.generate(order(max_tokens=8))
        await verifier.until(lambda: verifier.state("odd:1").last_error.code)
        assert verifier.state("odd:1").last_error.message == "x\ufffd[2J: two\ufffdlines"

    async def test_what_the_verifier_says_has_the_details(self, verifier: InProcessVerifier) -> None:
        drafter = ScriptedDrafter(MALFORMED["ids that skip some"])
        verifier.network.listen("bad:1", drafter.converse)
        await verifier.pool.membership.attach("bad:1", "")
        verifier.engine.hold(0)
        running = asyncio.create_task(verifier.generate(order(max_tokens=4)))
        await verifier.until(lambda: drafter.opened)
        verifier.engine.go_on()
        await running
        await verifier.until(lambda: drafter.errors)
        info = error_details_pb2.ErrorInfo()
        assert drafter.errors[0].status.details[0].Unpack(info)
        assert (info.domain, info.reason) == ("draftwire", "MALFORMED_PROPOSAL")
        assert "first_node_id" in drafter.errors[0].status.message


class TestStream:
    async def test_garbage_after_the_handshake(self, verifier: InProcessVerifier) -> None:
        """Unknown messages are ignored, as is `opened` for a sequence that is not open."""
        garbage = [
            pb.DraftResponse(),
            pb.DraftResponse(opened=pb.SequenceOpened(sequence_id=5, epoch=5)),
            batch(),
        ]
        drafter = ScriptedDrafter(lambda _: garbage)
        verifier.network.listen("odd:1", drafter.converse)
        await verifier.pool.membership.attach("odd:1", "")
        plain = await verifier.plain(order())
        assert (await verifier.generate(order())).token_ids == plain.token_ids
        assert verifier.state("odd:1").state == READY

    @pytest.mark.parametrize(
        "error",
        [
            StreamBroken.of(grpc.StatusCode.INTERNAL, "cannot parse"),
            invalid_field("message", "is no message"),
            RuntimeError("a fault of the drafter"),
        ],
        ids=["broken", "refused", "crashed"],
    )
    async def test_a_stream_that_breaks_after_the_handshake(
        self, verifier: InProcessVerifier, error: Exception
    ) -> None:
        def answer(_: Opening) -> Sequence[pb.DraftResponse]:
            raise error

        drafter = ScriptedDrafter(answer)
        verifier.network.listen("bad:1", drafter.converse)
        await verifier.pool.membership.attach("bad:1", "")
        plain = await verifier.plain(order())
        assert (await verifier.generate(order())).token_ids == plain.token_ids
        await verifier.until(lambda: verifier.network.attempts["bad:1"] > 1)

    async def test_a_second_hello_ends_the_stream(self, verifier: InProcessVerifier) -> None:
        drafter = ScriptedDrafter(lambda _: [hello()])
        verifier.network.listen("bad:1", drafter.converse)
        await verifier.pool.membership.attach("bad:1", "")
        await verifier.generate(order(max_tokens=4))
        await verifier.until(lambda: drafter.ended)

    async def test_a_drafter_that_does_not_read(
        self, verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The queue of messages to the drafter is bounded: its stream ends, and a new one begins."""
        monkeypatch.setattr(drafter_stream, "_MAX_QUEUED", 4)
        left = 0

        async def deaf(stream: Stream) -> None:
            nonlocal left
            await stream.read()
            await stream.write(hello())
            try:
                await asyncio.Event().wait()
            finally:
                left += 1

        verifier.network.listen("deaf:1", deaf)
        await verifier.pool.membership.attach("deaf:1", "")
        plain = await verifier.plain(order(max_tokens=60))
        assert (await verifier.generate(order(max_tokens=60))).token_ids == plain.token_ids
        await verifier.until(lambda: left and verifier.network.attempts["deaf:1"] > 1)
        assert verifier.state("deaf:1").sequences == 0

    async def test_a_drafter_that_says_no_opened(self, verifier: InProcessVerifier) -> None:
        """The drafter's proposals count all the same; only a swap waits for `opened`."""
        verifier.engine.drafts_awaited = True
        plain = await verifier.plain(order())
        drafter = ScriptedDrafter(right([*PROMPT, *plain.token_ids]), says_opened=False)
        verifier.network.listen("odd:1", drafter.converse)
        await verifier.pool.membership.attach("odd:1", "")
        output = await verifier.generate(order())
        assert output.token_ids == plain.token_ids
        assert output.finished.speculation.accepted_tokens > 0

    @pytest.mark.parametrize(
        "flood",
        [
            lambda opening: [batch()] * 2000,
            lambda opening: [batch(*[opening.proposal((3,), epoch=0)] * 2000)],
            lambda opening: [batch(opening.proposal([3] * 2000, epoch=0))],
            lambda opening: [batch(opening.proposal((3,), epoch=0, log_probs=[-0.5] * 2000))],
            lambda opening: [pb.DraftResponse(pong=pb.Pong(number=1))] * 2000,
            lambda opening: [pb.DraftResponse()] * 2000,
        ],
        ids=["empty", "late", "one large", "one with much beside it", "pongs", "unknown"],
    )
    async def test_a_flood_ends_the_stream_and_a_few_end_the_drafter(
        self, verifier: InProcessVerifier, flood: Answer
    ) -> None:
        """Reading costs time whatever is read, so a drafter may send no more than its credit allows."""
        plain = await verifier.plain(order(max_tokens=60))
        drafter = ScriptedDrafter(flood)
        verifier.network.listen("flood:1", drafter.converse)
        await verifier.pool.membership.attach("flood:1", "")
        for _ in range(3):
            assert (await verifier.generate(order(max_tokens=60))).token_ids == plain.token_ids
            await verifier.until(lambda: verifier.state("flood:1").state != READY)
            await verifier.until(lambda: verifier.state("flood:1").state in (READY, SUSPENDED))
            if verifier.state("flood:1").state == SUSPENDED:
                break  # before the pause ends
        assert verifier.state("flood:1").state == SUSPENDED
        assert StreamBroken(verifier.state("flood:1").last_error).reason_name == "CREDIT_EXCEEDED"

    async def test_a_drafter_that_uses_all_its_credit_says_no_more_than_it_may(
        self, verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The drafter sends one message per node. All nodes are wrong, so it drafts them again after each verdict."""
        monkeypatch.setattr(drafter_allowance, "_SLACK", 0)

        def one_by_one(opening: Opening) -> Sequence[pb.DraftResponse]:
            first = opening.next_id
            proposals = [opening.proposal((199,)) for _ in range(8)]
            for index, proposal in enumerate(proposals[1:]):
                proposal.parent_ids[:] = [first + index]
            return [batch(proposal) for proposal in proposals]

        drafter = ScriptedDrafter(one_by_one)
        verifier.network.listen("busy:1", drafter.converse)
        await verifier.pool.membership.attach("busy:1", "")
        await verifier.generate(order(max_tokens=60))
        assert drafter.verdicts > 0
        assert verifier.state("busy:1").state == READY
