"""Clients of several verifiers without a model: where requests go, and what happens when one drains."""

import asyncio
import time
from collections.abc import Callable

import grpc
import pytest
from grpc import StatusCode

from draftwire import AsyncClient, Client, DraftwireError, ModelMismatchError, Speculation, Verifier
from tests.harness.stand_ins.fake_verifier import PROMPT, FakeVerifier, expected_ids, rich_status
from tests.sdk.conftest import QUICK, by_rank

PATIENCE = 30.0
DRAINING = rich_status(StatusCode.UNAVAILABLE, "going", "SHUTTING_DOWN")
FULL = rich_status(StatusCode.RESOURCE_EXHAUSTED, "full", "AT_CAPACITY")


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_prompts_that_begin_alike_go_to_one_verifier(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    fakes = {fake.address: fake for fake in (verifier, second_verifier)}
    with Client(list(fakes), retry=QUICK) as client:
        for family in range(12):
            prefix = f"{family} " + "shared " * 50
            for ending in "xyz":
                client.generate(prefix + ending, max_tokens=2)
            best, other = by_rank(prefix, *fakes.values())
            assert [request.text for request in best.requests[-3:]] == [prefix + ending for ending in "xyz"]
        assert all(fake.requests for fake in fakes.values())
        assert [each.requests for each in client.verifiers] == [len(fake.requests) for fake in fakes.values()]


async def test_requests_at_once_are_spread_by_weight(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    verifier.delay = second_verifier.delay = 0.01
    both = [verifier.address, Verifier(second_verifier.address, weight=3)]
    async with AsyncClient(both, retry=QUICK) as client:
        results = await client.generate_batch([PROMPT] * 16, max_tokens=12, seed=4)
        assert all(each.token_ids == expected_ids(4, 12) for each in results)
        assert [each.in_flight for each in client.verifiers] == [0, 0]
    assert len(verifier.requests) <= 5  # 1.25 times 4
    assert len(second_verifier.requests) <= 15
    assert verifier.requests


def test_one_that_drains_gets_nothing_until_it_serves(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    draining, other = by_rank(PROMPT, verifier, second_verifier)
    draining.failures, draining.serving = [DRAINING], False
    with Client([verifier.address, second_verifier.address], retry=QUICK) as client:
        for _ in range(3):
            assert client.generate(PROMPT, max_tokens=4, seed=1).token_ids == expected_ids(1, 4)
        eventually(lambda: draining.health_checks and client.generate(PROMPT, max_tokens=2))
        assert draining.requests[1:] == []
        draining.serving = True
        eventually(lambda: client.generate(PROMPT, max_tokens=2) and len(draining.requests) > 1)


async def test_one_that_drains_gets_nothing_until_it_serves_with_asyncio(
    verifier: FakeVerifier, second_verifier: FakeVerifier
) -> None:
    draining, other = by_rank(PROMPT, verifier, second_verifier)
    draining.failures, draining.serving = [DRAINING], False
    async with AsyncClient([verifier.address, second_verifier.address], retry=QUICK) as client:
        async with asyncio.timeout(PATIENCE):
            while draining.health_checks < 2:
                await client.generate(PROMPT, max_tokens=2)
            assert draining.requests[1:] == []
            draining.serving = True
            while len(draining.requests) < 2:
                await client.generate(PROMPT, max_tokens=2)


async def test_a_client_is_closed_while_it_asks(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    best = by_rank(PROMPT, verifier, second_verifier)[0]
    best.failures, best.health_delay = [DRAINING], 30.0
    async with AsyncClient([verifier.address, second_verifier.address], retry=QUICK) as client:
        await client.generate(PROMPT, max_tokens=2)
        await client.generate(PROMPT, max_tokens=2)
    with Client([verifier.address, second_verifier.address], retry=QUICK) as again:
        best.failures = [DRAINING]
        again.generate(PROMPT, max_tokens=2)
        again.generate(PROMPT, max_tokens=2)


def test_a_verifier_that_cannot_tell_its_health_serves(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    best = by_rank(PROMPT, verifier, second_verifier)[0]
    best.failures, best.health_code = [DRAINING], grpc.StatusCode.UNIMPLEMENTED
    with Client([verifier.address, second_verifier.address], retry=QUICK) as client:
        eventually(lambda: client.generate(PROMPT, max_tokens=2) and len(best.requests) > 1)


def test_what_a_verifier_tells_of_its_load_counts(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    best, other = by_rank(PROMPT, verifier, second_verifier)
    best.told_requests = 40
    with Client([verifier.address, second_verifier.address], retry=QUICK) as client:
        for _ in range(4):
            client.generate(PROMPT, max_tokens=2)
        assert {each.address: each.others for each in client.verifiers} == {best.address: 39, other.address: 0}
    assert (len(best.requests), len(other.requests)) == (1, 3)


async def test_a_full_verifier_sends_its_requests_on(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    best, other = by_rank(PROMPT, verifier, second_verifier)
    best.failures = [FULL]
    async with AsyncClient([best.address, other.address], retry=QUICK) as client:
        result = await client.generate(PROMPT, max_tokens=4, seed=1)
        assert all(each.reachable for each in client.verifiers)
        assert client.address == best.address  # where its caller may have attached drafters
    assert (result.token_ids, result.resumes) == (expected_ids(1, 4), 0)
    assert len(other.requests) == 1


def test_a_request_that_names_a_drafter_goes_where_the_pool_is_managed(
    verifier: FakeVerifier, second_verifier: FakeVerifier
) -> None:
    with Client([verifier.address, second_verifier.address], retry=QUICK) as client:
        client.drafters.attach("localhost:50052", "good")
        for number in range(8):
            client.generate(f"{number}", max_tokens=2, speculation=Speculation(drafter="good"))
        assert client.address == verifier.address
    assert len(verifier.requests) == 8
    assert second_verifier.calls == []


def test_texts_to_score_are_spread(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    with Client([verifier.address, second_verifier.address], retry=QUICK) as client:
        for number in range(16):
            with pytest.raises(DraftwireError, match="not implemented"):
                client.score([number + 1] * 70)
        assert all(each.requests for each in client.verifiers)
        assert all(each.in_flight == 0 for each in client.verifiers)


def test_a_position_after_the_text_is_refused_by_the_verifier(client: Client) -> None:
    with pytest.raises(DraftwireError, match="not implemented"):
        client.score([1, 2], first_position=3)


@pytest.mark.parametrize("with_asyncio", [False, True])
def test_verifiers_with_two_models_are_refused(
    verifier: FakeVerifier, second_verifier: FakeVerifier, with_asyncio: bool
) -> None:
    verifier.fingerprint = "another target"
    prompts = [f"{number}" for number in range(20)]

    async def ask() -> None:
        async with AsyncClient([verifier.address, second_verifier.address], retry=QUICK) as client:
            for prompt in prompts:
                await client.generate(prompt, max_tokens=2)

    with pytest.raises(ModelMismatchError, match="serve different target models"):
        if with_asyncio:
            asyncio.run(ask())
        else:
            with Client([verifier.address, second_verifier.address], retry=QUICK) as client:
                for prompt in prompts:
                    client.generate(prompt, max_tokens=2)


def test_streams_that_are_dropped_are_no_load(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    verifier.hang_after = second_verifier.hang_after = 2
    with Client([verifier.address, second_verifier.address], retry=QUICK) as client:
        streams = [client.stream(PROMPT, max_tokens=8) for _ in range(6)]
        assert sum(each.in_flight for each in client.verifiers) == 6
        for stream in streams[:2]:
            stream.close()
        with streams[2]:
            next(streams[2])
        del stream
        del streams
        assert sum(each.in_flight for each in client.verifiers) == 0


async def test_streams_that_are_dropped_are_no_load_with_asyncio(
    verifier: FakeVerifier, second_verifier: FakeVerifier
) -> None:
    verifier.hang_after = second_verifier.hang_after = 2
    async with AsyncClient([verifier.address, second_verifier.address], retry=QUICK) as client:
        streams = [client.stream(PROMPT, max_tokens=8) for _ in range(6)]
        waiting = asyncio.create_task(anext(streams[3]))
        await waiting
        assert sum(each.in_flight for each in client.verifiers) == 6
        streams[0].cancel()
        await streams[1].aclose()
        async with streams[2]:
            await anext(streams[2])
        del waiting, streams
        assert sum(each.in_flight for each in client.verifiers) == 0
