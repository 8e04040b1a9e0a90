"""Following the served traffic: it is opt-in, what is reported, what is private, and followers that do not read."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from draftwire.v1.verifier_service_pb2 import FollowTrafficRequest, FollowTrafficResponse, ServedRequest
from draftwire_core.engine.engine import settlement
from draftwire_core.runtime.errors import ServiceError
from tests.harness.services.in_process_verifier import PATIENCE, PROMPT, InProcessVerifier, order, sampled
from tests.harness.services.services import Services
from tests.harness.stand_ins.scripted_caller import ScriptedCaller
from tests.harness.verifier.call_context import ONE
from tests.harness.verifier.verify_call import call
from verifier_service.running import traffic as traffic_module
from verifier_service.running.traffic import Traffic
from verifier_service.servicer import VerifierServicer


@pytest.fixture
async def sharing(services: Services, checkpoint: Path) -> AsyncIterator[InProcessVerifier]:
    async with services.in_process_verifier(checkpoint, share_traffic=True) as made:
        yield made


def follow(verifier: InProcessVerifier, *, likeliest: bool = False) -> AsyncIterator[FollowTrafficResponse]:
    return VerifierServicer(verifier.verifier).FollowTraffic(FollowTrafficRequest(likeliest=likeliest), ONE)


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


async def told_by(stream: AsyncIterator[FollowTrafficResponse], count: int) -> list[ServedRequest]:
    told: list[ServedRequest] = []
    while len(told) < count:
        told += (await anext(stream)).requests
    return told


class TestLikeliest:
    """The target's likeliest tokens, for learners."""

    async def test_who_asks_is_told_them_and_no_output_changes(self, sharing: InProcessVerifier) -> None:
        await sharing.pool.membership.attach("local:suffix?shared=true", "memory")
        requests = [order(sampling=sampled(), log_probs=count) for count in (8, 2)] + [order(sampling=sampled())]
        before = [await sharing.generate(each) for each in requests]
        learner, other = follow(sharing, likeliest=True), follow(sharing)
        await anext(learner)
        await anext(other)
        outputs = [await sharing.generate(each) for each in requests]
        for output, plain in zip(outputs, before, strict=True):
            assert (output.token_ids, output.text, output.log_probs) == (plain.token_ids, plain.text, plain.log_probs)
        assert any(outputs[0].sources), "also of draft tokens"
        expected = [token.token_id for each in before[0].log_probs for token in each.top]
        values = [token.log_prob for each in before[0].log_probs for token in each.top]
        for served in await told_by(learner, 3):
            assert (served.top, list(served.top_token_ids)) == (8, expected)
            assert list(served.top_log_probs) == pytest.approx(values, abs=1e-4)
        assert {(each.top, len(each.top_token_ids), len(each.top_log_probs)) for each in await told_by(other, 3)} == {
            (0, 0, 0)
        }
        await learner.aclose()
        await other.aclose()

    async def test_nothing_is_computed_for_nobody(
        self, sharing: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody learns, or the request is private."""
        monkeypatch.setattr(settlement, "likeliest", pytest.fail)
        stream = follow(sharing)
        await anext(stream)
        await sharing.generate(order(max_tokens=3))
        learner = follow(sharing, likeliest=True)
        await anext(learner)
        await sharing.generate(order(max_tokens=3, private=True))
        await learner.aclose()
        await sharing.generate(order(max_tokens=3))
        assert len(await told_by(stream, 2)) == 2
        await stream.aclose()

    async def test_of_a_resumed_request_those_of_the_last_positions(self, sharing: InProcessVerifier) -> None:
        stream = follow(sharing, likeliest=True)
        await anext(stream)
        whole = await sharing.generate(order(max_tokens=20))
        await sharing.generate(order(max_tokens=20, resume_token_ids=whole.token_ids[:8]))
        first, second = await told_by(stream, 2)
        assert list(second.token_ids) == list(first.token_ids) == whole.token_ids
        assert list(second.top_token_ids) == list(first.top_token_ids)[8 * 8 :]
        await stream.aclose()

    async def test_up_to_a_stop_string(self, sharing: InProcessVerifier) -> None:
        plain = await sharing.generate(order())
        await sharing.pool.membership.attach("local:suffix?shared=true", "memory")
        stream = follow(sharing, likeliest=True)
        await anext(stream)
        for _ in range(2):
            await sharing.generate(order(stop=[plain.text[10:20]]))
        for served in await told_by(stream, 2):
            assert len(served.top_token_ids) == 8 * len(served.token_ids) < 8 * len(plain.token_ids)
        await stream.aclose()

    async def test_what_waits_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(traffic_module, "_MOST_LIKELIEST", 20)
        traffic = Traffic(shared=True)
        stream = traffic.follow(likeliest=True)
        await anext(stream)
        for _ in range(4):
            traffic.tell(ServedRequest(token_ids=[1], top=8, top_token_ids=range(8), top_log_probs=[-3.0] * 8))
        assert [each.top for each in await told_by(stream, 4)] == [8, 8, 0, 0]
        traffic.tell(ServedRequest(token_ids=[1], top=8, top_token_ids=range(8), top_log_probs=[-3.0] * 8))
        assert [each.top for each in await told_by(stream, 1)] == [8]
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


async def test_a_message_of_long_requests_has_few() -> None:
    traffic = Traffic(shared=True)
    stream = traffic.follow()
    await anext(stream)
    for _ in range(16):
        traffic.tell(ServedRequest(prompt_token_ids=[1 << 16] * 400_000))  # 1.2 MB each, of a context of a million
    assert len((await anext(stream)).requests) == 1
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
