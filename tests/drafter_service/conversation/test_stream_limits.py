"""Pings and idle streams, and the limits on a stream's requests."""

import asyncio
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2

from drafter_service.conversation import draft_loop
from draftwire.v1 import drafter_service_pb2, model_info_pb2, verdict_pb2
from draftwire_core.runtime.rpc import idle_watch
from draftwire_core.runtime.rpc.in_process_stream import in_process_call
from draftwire_core.runtime.rpc.message_stream import StreamBroken
from tests.drafter_service.conftest import Held
from tests.harness.drafter.verifier_side import PATIENCE, Request, VerifierSide, detail, opening
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.services import Services
from tests.harness.simulated_time import SimulatedTime

PROMPT = [5, 9, 14, 23, 42, 7]
GONE = StreamBroken.of(grpc.StatusCode.CANCELLED, "gone")


async def broken(verifier: VerifierSide) -> StreamBroken:
    """Returns the error with which the drafter ended the stream."""
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(StreamBroken) as caught:
            async for message in verifier.stream:
                verifier._take(message)
    return caught.value


class TestPing:
    async def test_the_drafting_thread_answers(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier, drafter.connected() as other:
            for number in (7, 2**64 - 1, 0):
                await verifier.ping(number)
            await verifier.until(lambda: len(verifier.pongs) == 3)
            assert verifier.pongs == [7, 2**64 - 1, 0]
            await verifier.open(1, PROMPT)
            await verifier.until(lambda: verifier.mirrors[1].tree.size)
            await verifier.ping(4)
            await verifier.until(lambda: verifier.pongs[-1] == 4)
            await other.end()
            assert other.pongs == []

    async def test_a_model_that_hangs_answers_none(
        self, drafter: InProcessDrafter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = Held(drafter.model, monkeypatch)
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT)
            await model.hangs()
            await verifier.ping(1)
            await verifier.stream.write(Request(verdicts=verdict_pb2.VerdictBatch(verdicts=[{"sequence_id": 9}])))
            await verifier.error(9)  # the event loop is not blocked
            assert verifier.pongs == []
            model.let_go()
            await verifier.until(lambda: verifier.pongs == [1])


class TestIdle:
    async def test_a_silent_stream_ends_and_frees_everything(self, services: Services, checkpoint: Path) -> None:
        async with (
            services.in_process_drafter(checkpoint, stream_idle_seconds=0.5) as drafter,
            drafter.connected() as verifier,
        ):
            await verifier.open(1, PROMPT)
            fault = await broken(verifier)
            assert (fault.code, fault.reason_name) == (grpc.StatusCode.DEADLINE_EXCEEDED, "IDLE")
            status = await drafter.status()
            assert (status.streams, status.open_sequences, status.used_slots) == (0, 0, 0)

    async def test_any_message_keeps_it(
        self, services: Services, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        time = SimulatedTime.of(idle_watch, monkeypatch)
        async with (
            services.in_process_drafter(checkpoint, stream_idle_seconds=2) as drafter,
            drafter.connected() as verifier,
        ):
            for number in range(5):
                await verifier.ping(number)
                await verifier.until(lambda number=number: number in verifier.pongs)
                for _ in range(3):
                    await time.advance(0.6)
            await time.advance(0.6)
            assert (await broken(verifier)).reason_name == "IDLE"

    async def test_zero_waits_for_ever(self, services: Services, checkpoint: Path) -> None:
        async with (
            services.in_process_drafter(checkpoint, stream_idle_seconds=0) as drafter,
            drafter.connected() as verifier,
        ):
            await asyncio.sleep(0.3)
            await verifier.ping(1)
            await verifier.until(lambda: verifier.pongs)


class TestCapacity:
    async def test_streams_are_counted_over_all_verifiers(self, services: Services, checkpoint: Path) -> None:
        async with services.in_process_drafter(checkpoint, max_streams=2) as drafter, drafter.connected() as first:
            async with drafter.connected() as second:
                await second.open(1, PROMPT)
                async with in_process_call(drafter.servicer.converse) as third:
                    fault = await broken(VerifierSide(third))
                    assert (fault.code, fault.reason_name) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "AT_CAPACITY")
                    assert detail(fault.status, error_details_pb2.RetryInfo).retry_delay.ToSeconds() > 0
                await second.end()
            async with drafter.connected() as again:
                await again.ping(1)
                await again.until(lambda: again.pongs)
            await first.ping(1)
            await first.until(lambda: first.pongs)

    @pytest.mark.parametrize("kind", ["commands", "openings", "verdicts"])
    async def test_a_flood_costs_the_stream_it_came_on_and_no_other(
        self, drafter: InProcessDrafter, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        """While the thread is in a long step, one verifier sends more commands than may wait."""
        monkeypatch.setattr(draft_loop, "_MAX_WAITING", 300)
        async with drafter.connected() as flooding, drafter.connected() as other:
            await other.open(1, PROMPT)
            await other.until(lambda: other.mirrors[1].tree.size >= 4)
            model = Held(drafter.model, monkeypatch)
            await other.commit({1: other.mirrors[1].best_path()[:1]})
            await model.hangs()

            async def flood() -> None:
                prompt = PROMPT * 40
                for epoch in range(1, 1000):
                    if kind == "commands":
                        await flooding.ping(epoch)
                    elif kind == "openings":
                        await flooding.stream.write(Request(open=opening(1, prompt, epoch=epoch, max_length=256)))
                    else:
                        await flooding.stream.write(Request(open=opening(1, [1], epoch=epoch, max_length=256)))
                        await flooding.send_verdict(1, 1 + len(prompt), prompt, epoch=epoch)

            if kind == "openings":  # an opening in excess fails alone
                async with asyncio.timeout(PATIENCE):
                    writing = asyncio.create_task(flood())
                    assert (await flooding.error(1))[0] == "AT_CAPACITY"
                    writing.cancel()
                    await asyncio.wait({writing})
            else:
                with pytest.raises(StreamBroken):
                    await flood()
                assert (await broken(flooding)).reason_name == "AT_CAPACITY"
            await other.ping(1)
            await other.open(2, PROMPT)
            model.let_go()
            await other.until(lambda: other.pongs and other.mirrors[2].tree.size)
            assert other.errors == []
            await flooding.stream.sever(GONE)
            await other.close(1, 2)
            await other.end()
        assert (await drafter.status()).used_slots == 0

    async def test_a_sequence_that_a_flood_keeps_from_being_closed_is_not_forgotten(
        self, drafter: InProcessDrafter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It would be drafted for until the stream ends, though another opening has replaced it."""
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT)
            await verifier.until(lambda: verifier.mirrors[1].tree.size)
            monkeypatch.setattr(draft_loop, "_MAX_WAITING", 0)
            await verifier.stream.write(Request(open=opening(1, PROMPT, epoch=2)))
            assert (await broken(verifier)).reason_name == "AT_CAPACITY"
        assert (await drafter.status()).used_slots == 0

    @pytest.mark.parametrize("field", ["verdicts.verdicts", "close.sequence_ids"])
    async def test_a_message_of_too_many_entries_ends_the_stream(self, drafter: InProcessDrafter, field: str) -> None:
        many = 100_000
        message = (
            Request(close=drafter_service_pb2.CloseSequences(sequence_ids=[7] * many))
            if field.startswith("close")
            else Request(verdicts=verdict_pb2.VerdictBatch(verdicts=[verdict_pb2.Verdict()] * many))
        )
        async with drafter.connected() as verifier:
            await verifier.stream.write(message)
            fault = await broken(verifier)
            assert (fault.code, fault.reason_name) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
            assert detail(fault.status, error_details_pb2.BadRequest).field_violations[0].field == field

    async def test_what_a_peer_says_of_itself_is_cut_short(self, drafter: InProcessDrafter) -> None:
        theirs = model_info_pb2.ModelInfo(model_id="m" * 100_000, tokenizer_sha256="h" * 100_000)
        async with in_process_call(drafter.servicer.converse) as stream:
            await stream.write(Request(hello=model_info_pb2.PeerInfo(protocol_revision=1, model=theirs)))
            fault = await broken(VerifierSide(stream))
        assert fault.reason_name == "TOKENIZER_MISMATCH"
        assert fault.status.ByteSize() < 4000
