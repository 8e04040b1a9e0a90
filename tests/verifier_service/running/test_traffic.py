"""Following the served traffic: it is opt-in, what is reported, what is private, and followers that do not read."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from draftwire.v1.verifier_service_pb2 import FollowTrafficRequest, FollowTrafficResponse, ServedRequest
from draftwire_core.runtime.errors import ServiceError
from tests.harness.services.in_process_verifier import PATIENCE, PROMPT, InProcessVerifier, order, sampled
from tests.harness.services.services import Services
from tests.harness.stand_ins.scripted_caller import ScriptedCaller
from tests.harness.verifier.call_context import ONE
from tests.harness.verifier.verify_call import call
from verifier_service.running.traffic import Traffic
from verifier_service.servicer import VerifierServicer


@pytest.fixture
async def sharing(services: Services, checkpoint: Path) -> AsyncIterator[InProcessVerifier]:
    async with services.in_process_verifier(checkpoint, share_traffic=True) as made:
        yield made


def follow(verifier: InProcessVerifier) -> AsyncIterator[FollowTrafficResponse]:
    return VerifierServicer(verifier.verifier).FollowTraffic(FollowTrafficRequest(), ONE)


async def test_it_is_off_unless_shared(verifier: InProcessVerifier) -> None:
    with pytest.raises(ServiceError) as caught:
        await anext(follow(verifier))
    assert (caught.value.code.name, caught.value.reason_name) == ("FAILED_PRECONDITION", "NOT_ENABLED")
    assert "--share-traffic" in caught.value.message


async def test_finished_requests_are_told(sharing: InProcessVerifier) -> None:
    await sharing.generate(order(max_tokens=5))  # before anybody follows
    stream = follow(sharing)
    assert await anext(stream) == FollowTrafficResponse()
    output = await sharing.generate(order(max_tokens=7, sampling=sampled()))
    async with sharing.running(order()):
        pass  # requests that their callers end are not reported
    other = await sharing.generate(order([5, 6, 7], max_tokens=3))
    told: list[ServedRequest] = []
    while len(told) < 2:
        response = await anext(stream)
        assert response.dropped == 0
        told += response.requests
    assert [list(each.prompt_token_ids) for each in told] == [PROMPT, [5, 6, 7]]
    assert [list(each.token_ids) for each in told] == [output.token_ids, other.token_ids]
    assert [each.speculation.steps for each in told] == [7, 3]
    await stream.aclose()
    assert not sharing.verifier.traffic.followed


async def test_private_requests_are_not_told(sharing: InProcessVerifier) -> None:
    stream = follow(sharing)
    await anext(stream)
    private, timed = order(max_tokens=5, private=True), order(private=True)
    timed.max_time.FromMilliseconds(100)
    await sharing.generate(private)
    async with asyncio.timeout(PATIENCE), call(sharing) as caller:
        await ScriptedCaller().run(caller, private)
    sharing.engine.hold(2)
    await sharing.generate(timed)
    sharing.engine.go_on()
    await sharing.generate(order([5, 6, 7], max_tokens=3))
    told = [list(each.prompt_token_ids) for each in (await anext(stream)).requests]
    assert told == [[5, 6, 7]]
    await stream.aclose()


async def test_private_texts_are_drafted_for_nobody_else(sharing: InProcessVerifier) -> None:
    await sharing.pool.membership.attach("local:suffix?shared=true", "memory")
    alone = (await sharing.generate(order(private=True))).finished.speculation.accepted_tokens
    for private in (True, False):
        output = await sharing.generate(order(private=private))
        assert output.finished.speculation.accepted_tokens == alone
    for private in (True, False):
        output = await sharing.generate(order(private=private))
        assert output.finished.speculation.accepted_tokens > alone, "others' texts are drafted for both"


async def test_a_drafters_share_is_told(sharing: InProcessVerifier, checkpoint: Path) -> None:
    await sharing.pool.membership.attach("local:suffix?shared=true", "memory")
    stream = follow(sharing)
    await anext(stream)
    await sharing.generate(order())
    output = await sharing.generate(order())
    told: list[ServedRequest] = []
    while len(told) < 2:
        told += (await anext(stream)).requests
    assert told[1].speculation == output.finished.speculation
    assert told[1].speculation.accepted_tokens > 0
    assert [list(each.drafters) for each in told] == [["memory"], ["memory"]]
    await stream.aclose()


async def test_who_does_not_read_misses_some_and_is_told_so() -> None:
    traffic = Traffic(shared=True)
    stream = traffic.follow()
    await anext(stream)
    for number in range(300):
        traffic.tell(ServedRequest(token_ids=[number]))
    told: list[int] = []
    while len(told) < 256:
        response = await anext(stream)
        assert response.dropped == 44 and len(response.requests) <= 16
        told += [each.token_ids[0] for each in response.requests]
    assert told == list(range(256))
    traffic.tell(ServedRequest(token_ids=[300]))
    assert [each.token_ids[0] for each in (await anext(stream)).requests] == [300]
    await stream.aclose()


async def test_followers_are_few() -> None:
    traffic = Traffic(shared=True)
    streams = [traffic.follow() for _ in range(8)]
    for stream in streams:
        await anext(stream)
    with pytest.raises(ServiceError) as caught:
        await anext(traffic.follow())
    assert caught.value.reason_name == "AT_CAPACITY"
    traffic.end()
    for stream in streams:
        with pytest.raises(ServiceError) as ended:
            await anext(stream)
        assert ended.value.reason_name == "SHUTTING_DOWN"
    assert not traffic.followed
