"""Admission, waiting, draining and failing."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from draftwire.v1 import verifier_service_pb2 as pb
from draftwire_core.runtime.errors import ServiceError
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.in_process_verifier import (
    PATIENCE,
    TOKENS,
    InProcessVerifier,
    order,
    sampled,
)
from tests.harness.services.services import Services
from verifier_service.servicer import VerifierServicer


async def nobody_reads(metadata: object) -> None:
    """Takes the initial metadata of a call."""


CONTEXT = SimpleNamespace(
    peer=lambda: "ipv4:127.0.0.1:4242",
    time_remaining=lambda: None,
    invocation_metadata=lambda: (),
    send_initial_metadata=nobody_reads,
)


async def test_requests_beyond_the_waiting_room_are_refused(services: Services, checkpoint: Path) -> None:
    async with services.in_process_verifier(checkpoint, max_sequences=1, max_waiting=2) as verifier:
        verifier.engine.hold(1)
        requests = [asyncio.create_task(verifier.generate(order(max_tokens=6))) for _ in range(3)]
        await verifier.until(lambda: verifier.verifier.status().waiting_requests == 2)
        assert verifier.verifier.status().running_sequences == 1
        with pytest.raises(ServiceError) as caught:
            await verifier.generate(order(max_tokens=6))
        assert (caught.value.code.name, caught.value.reason_name) == ("RESOURCE_EXHAUSTED", "AT_CAPACITY")
        assert caught.value.retry_after_seconds
        requests[2].cancel()  # a waiting one
        await asyncio.wait(requests[2:])
        verifier.engine.hold(1)
        await verifier.until(lambda: verifier.verifier.status().waiting_requests == 1)
        verifier.engine.go_on()
        outputs = await asyncio.gather(*requests[:2])
        assert outputs[0].token_ids == outputs[1].token_ids
        assert (await verifier.generate(order(max_tokens=6))).token_ids == outputs[0].token_ids


async def test_who_would_wait_too_long_is_refused_at_once(services: Services, checkpoint: Path) -> None:
    async with services.in_process_verifier(
        checkpoint, max_sequences=2, max_waiting=100, max_wait_seconds=5.0
    ) as verifier:
        expected = await verifier.generate(order(max_tokens=40))
        verifier.engine.hold(2)
        # The engine assumes 40 tokens a request, two at a time, and 50 ms a step: one second per request.
        requests = [asyncio.create_task(verifier.generate(order(max_tokens=40))) for _ in range(6)]
        await verifier.until(lambda: verifier.verifier.status().waiting_requests == 4)
        with pytest.raises(ServiceError) as caught:
            await verifier.generate(order(max_tokens=40), remaining=2.0)
        assert (caught.value.code.name, caught.value.reason_name) == ("RESOURCE_EXHAUSTED", "AT_CAPACITY")
        assert "the request's deadline" in caught.value.message
        assert caught.value.retry_after_seconds
        with pytest.raises(ServiceError) as caught:
            while len(requests) < 16:
                verifier.verifier.check_room()
                requests.append(asyncio.create_task(verifier.generate(order(max_tokens=40))))
                await verifier.until(lambda: len(verifier.verifier._requests) == len(requests))
        assert "--max-wait-seconds" in caught.value.message
        assert 6 <= len(requests) < 12
        requests[3].cancel()  # cancelling a waiting request makes room at once
        await asyncio.wait([requests.pop(3)])
        verifier.verifier.check_room()
        verifier.engine.go_on()
        outputs = await asyncio.gather(*requests)
        assert {tuple(output.token_ids) for output in outputs} == {tuple(expected.token_ids)}


async def test_whoever_finds_nobody_is_let_in_whatever_the_deadline(verifier: InProcessVerifier) -> None:
    assert len((await verifier.generate(order(), remaining=0.001)).token_ids) == TOKENS


async def test_an_engine_too_far_behind_refuses_a_request_by_name(
    verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier.verifier._steps._thread, "_max_commands", 0)
    with pytest.raises(ServiceError) as caught:
        await verifier.generate(order())
    assert caught.value.reason_name == "AT_CAPACITY"


async def test_draining_waits_for_the_last_request(verifier: InProcessVerifier) -> None:
    verifier.engine.hold(1)
    request = asyncio.create_task(verifier.generate(order()))
    await verifier.until(lambda: verifier.verifier.status().running_sequences)
    draining = asyncio.create_task(verifier.verifier.drain(PATIENCE))
    await asyncio.sleep(0.05)
    assert not draining.done()
    verifier.engine.go_on()
    async with asyncio.timeout(PATIENCE):
        await draining
        assert len((await request).token_ids) == TOKENS


async def test_draining_hands_over_what_can_go_on_elsewhere(verifier: InProcessVerifier) -> None:
    verifier.engine.hold(3)
    resumable = asyncio.create_task(verifier.generate(order(resumable=True)))
    other = asyncio.create_task(verifier.generate(order()))
    await verifier.until(lambda: verifier.verifier.status().running_sequences == 2)
    draining = asyncio.create_task(verifier.verifier.drain(PATIENCE))
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ServiceError) as caught:
            await resumable
        assert (caught.value.code.name, caught.value.reason_name) == ("UNAVAILABLE", "SHUTTING_DOWN")
        with pytest.raises(ServiceError) as caught:  # as if it was being read when the drain began
            await verifier.generate(order(resumable=True))
        assert caught.value.reason_name == "SHUTTING_DOWN"
        assert not draining.done()
        verifier.engine.go_on()
        assert len((await other).token_ids) == TOKENS
        await draining


async def test_a_drain_that_is_cut_ends_the_rest_with_the_reason(verifier: InProcessVerifier) -> None:
    verifier.engine.hold(2)
    events: list[pb.GenerateResponse] = []

    async def read() -> None:
        async with verifier.running(order()) as running:
            async for event in running.events():
                events.append(event)

    reading = asyncio.create_task(read())
    await verifier.until(lambda: len(events) > 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await verifier.verifier.drain(0.05)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ServiceError) as caught:
            await reading
        assert (caught.value.code.name, caught.value.reason_name) == ("UNAVAILABLE", "SHUTTING_DOWN")
        with pytest.raises(ServiceError):
            await verifier.generate(order())
    verifier.engine.go_on()
    await verifier.freed()


async def test_an_engine_that_fails_ends_every_request_and_is_reported(
    services: Services, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with services.in_process_verifier(checkpoint) as verifier:
        verifier.engine.hold(1)
        requests = [asyncio.create_task(verifier.generate(order())) for _ in range(3)]
        await verifier.until(lambda: verifier.engine.running >= 1)  # the others may have arrived during its first step

        def fail(*_: object) -> None:
            raise MemoryError("no memory")

        monkeypatch.setattr(verifier.engine.model, "forward", fail)
        verifier.engine.go_on()
        async with asyncio.timeout(PATIENCE):
            outcomes = await asyncio.gather(*requests, return_exceptions=True)
        for outcome in outcomes:
            assert isinstance(outcome, ServiceError)
            assert outcome.reason_name == "INTERNAL"
        assert [type(error) for error in verifier.failures] == [MemoryError]
        async with asyncio.timeout(PATIENCE):
            await verifier.verifier.drain(1.0)
        verifier.failures.clear()
        verifier.dead = True


async def test_too_little_memory_costs_time_alone(services: Services, checkpoint: Path) -> None:
    """Requests that do not all fit preempt each other, are resumed, and end with their own tokens."""
    orders = [order([5 + index, *range(20, 40)], 40, sampling=sampled()) for index in range(4)]
    async with services.in_process_verifier(checkpoint) as verifier:
        expected = [(await verifier.plain(each)).token_ids for each in orders]
        assert verifier.verifier.status().preemptions == 0
    async with services.in_process_verifier(checkpoint, slots=128) as verifier:
        outputs = await asyncio.gather(*map(verifier.generate, orders))
        assert [output.token_ids for output in outputs] == expected
        assert verifier.verifier.status().preemptions > 0


async def test_tokens_there_and_back(verifier: InProcessVerifier) -> None:
    servicer = VerifierServicer(verifier.verifier)
    ids = (await servicer.Tokenize(pb.TokenizeRequest(text="w1 w2"), CONTEXT)).token_ids
    assert list(ids) == [4, 5]
    assert (await servicer.Detokenize(pb.DetokenizeRequest(token_ids=ids), CONTEXT)).text.split() == ["w1", "w2"]
    with pytest.raises(ServiceError) as caught:
        await servicer.Detokenize(pb.DetokenizeRequest(token_ids=[4, 999]), CONTEXT)
    assert caught.value.reason_name == "TOKEN_OUT_OF_RANGE"
    assert caught.value.field_violations[0].field == "token_ids[1]"


async def test_what_it_says_of_itself(verifier: InProcessVerifier) -> None:
    info = await VerifierServicer(verifier.verifier).GetModelInfo(pb.GetModelInfoRequest(), None)
    assert info.model.model_id == "target"
    assert info.build.startswith("draftwire ")
    assert (info.limits.max_sequences, info.limits.max_tree_nodes, info.limits.max_sequence_tokens) == (16, 8, 256)
    assert (info.engine.running_sequences, info.engine.used_slots, info.engine.total_slots) == (0, 0, 4096)


async def test_it_tells_what_it_decides_and_by_what(verifier: InProcessVerifier, twin: InProcessDrafter) -> None:
    await verifier.pool.membership.attach("twin:1", "good")
    output = await verifier.generate(order(max_tokens=40))
    planner = verifier.verifier.status().planner
    assert [(each.rows, each.time.ToMilliseconds()) for each in planner.step_costs] == [(1, 50), (256, 50)]
    assert planner.steps == planner.sequences > 0
    assert planner.draft_tokens == output.finished.speculation.draft_tokens > 0
    (calibration,) = planner.calibrations
    assert calibration.drafter == "good"
    assert calibration.first_acceptance > 0.6  # the assumed acceptance of a first token
    assert calibration.response_time.ToNanoseconds() > 0 and calibration.proposal_interval.ToNanoseconds() > 0
    assert {each.rank for each in calibration.classes} == {0, 1, 2}
    assert all(0 < each.acceptance < 1 <= each.observations for each in calibration.classes)
    await verifier.pool.changes.detach("good")
    await verifier.until(lambda: not verifier.verifier.status().planner.calibrations)


async def test_it_tells_nothing_of_callers_that_draft(verifier: InProcessVerifier) -> None:
    async with verifier.running(order(max_tokens=3)) as running:
        with verifier.verifier.request_drafters.caller(running.sequence_id, lambda error: None):
            async for _ in running.events():
                assert not verifier.verifier.status().planner.calibrations
            assert verifier.engine.planner.models


async def test_it_tells_where_the_time_of_its_steps_goes(verifier: InProcessVerifier) -> None:
    await verifier.generate(order(max_tokens=5))
    times = verifier.verifier.status().times
    assert times.steps == 5
    for part in (times.plan, times.layout, times.forward, times.sample, times.walk, times.wire, times.event_loop):
        assert part.ToNanoseconds() > 0
    assert times.wait.ToNanoseconds() == 0


async def test_generate_over_the_servicer(verifier: InProcessVerifier) -> None:
    events = [event async for event in VerifierServicer(verifier.verifier).Generate(order(max_tokens=5), CONTEXT)]
    assert [events[0].WhichOneof("event"), events[-1].WhichOneof("event")] == ["started", "finished"]
    assert sum(len(event.chunk.token_ids) for event in events) == 5


async def test_a_caller_is_told_how_many_requests_there_are(verifier: InProcessVerifier) -> None:
    verifier.engine.hold(0)
    calls = [VerifierServicer(verifier.verifier).Generate(order(max_tokens=5), CONTEXT) for _ in range(3)]
    assert [(await anext(call)).started.requests for call in calls] == [1, 2, 3]
    for call in calls:
        await call.aclose()
    verifier.engine.go_on()
    await verifier.freed()


async def test_a_caller_that_closes_the_stream_frees_the_slots(verifier: InProcessVerifier) -> None:
    verifier.engine.hold(2)
    events = VerifierServicer(verifier.verifier).Generate(order(max_tokens=100), CONTEXT)
    kinds = [(await anext(events)).WhichOneof("event") for _ in range(2)]
    assert kinds == ["started", "chunk"]
    assert verifier.verifier.status().used_slots > 0
    await events.aclose()
    verifier.engine.go_on()
    await verifier.freed()
