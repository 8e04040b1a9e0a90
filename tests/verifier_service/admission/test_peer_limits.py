"""Limits on the requests of one peer, which leave other peers unaffected."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from draftwire.v1 import verifier_service_pb2 as pb
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.security.caller import Caller, peer_name, set_caller
from draftwire_core.runtime.security.roles import Role
from tests.harness.services.in_process_verifier import InProcessVerifier, order
from tests.harness.services.services import Services
from tests.harness.verifier.call_context import ONE, ONE_AGAIN, OTHER, From
from verifier_service.admission.peer_limits import PeerLimits
from verifier_service.servicer import VerifierServicer


def call(verifier: InProcessVerifier, context: From, max_tokens: int = 10) -> AsyncIterator[pb.GenerateResponse]:
    return VerifierServicer(verifier.verifier).Generate(order(max_tokens=max_tokens), context)


async def begun(*calls: AsyncIterator[pb.GenerateResponse]) -> None:
    for each in calls:
        assert (await anext(each)).WhichOneof("event") == "started"


async def refused(each: AsyncIterator[pb.GenerateResponse]) -> str:
    with pytest.raises(ServiceError) as caught:
        await anext(each)
    assert (caught.value.code.name, caught.value.reason_name) == ("RESOURCE_EXHAUSTED", "AT_CAPACITY")
    assert caught.value.retry_after_seconds
    return caught.value.message


async def tokens(each: AsyncIterator[pb.GenerateResponse]) -> int:
    return sum([len(event.chunk.token_ids) async for event in each])


async def test_requests_of_one_host(services: Services, checkpoint: Path) -> None:
    async with services.in_process_verifier(checkpoint, max_requests_per_peer=2) as verifier:
        verifier.engine.hold(1)
        first, second, other = call(verifier, ONE), call(verifier, ONE_AGAIN), call(verifier, OTHER)
        await begun(first, second, other)
        assert await refused(call(verifier, ONE)) == (
            "2 requests of 10.0.0.7 are running or waiting; at most 2 may "
            "(--max-requests-per-peer, or max_requests in the file of --accepted-tokens)"
        )
        await first.aclose()
        third = call(verifier, ONE)
        await begun(third)
        verifier.engine.go_on()
        assert await asyncio.gather(*map(tokens, (second, third, other))) == [10] * 3
        # Requests that have ended and been read no longer count, even while their streams are open.
        assert await asyncio.gather(*(tokens(call(verifier, ONE)) for _ in range(2))) == [10] * 2


async def test_output_that_nobody_reads_counts_until_somebody_does(services: Services, checkpoint: Path) -> None:
    async with services.in_process_verifier(checkpoint, max_requests_per_peer=1) as verifier:
        unread = call(verifier, ONE)
        await begun(unread)
        await verifier.freed()
        await refused(call(verifier, ONE))
        assert [event.WhichOneof("event") async for event in unread][-1] == "finished"
        assert await tokens(call(verifier, ONE)) == 10
        unread = call(verifier, ONE)
        await begun(unread)
        await verifier.freed()
        await unread.aclose()
        assert await tokens(call(verifier, ONE)) == 10


async def test_tokens_of_one_host(services: Services, checkpoint: Path) -> None:
    async with services.in_process_verifier(checkpoint, max_tokens_per_peer=50) as verifier:
        assert verifier.verifier.model.limits.max_sequence_tokens == 50
        verifier.engine.hold(1)
        first, other = call(verifier, ONE, 24), call(verifier, OTHER, 44)  # 30 and 50 with the prompt
        await begun(first, other)
        assert "have up to 30 tokens; 21 more would exceed the limit of 50" in await refused(call(verifier, ONE, 15))
        second = call(verifier, ONE, 14)
        await begun(second)
        verifier.engine.go_on()
        assert await asyncio.gather(*map(tokens, (first, second, other))) == [24, 14, 44]


async def test_a_request_that_is_too_large_for_any_peer_is_no_matter_of_capacity(
    services: Services, checkpoint: Path
) -> None:
    async with services.in_process_verifier(checkpoint, max_tokens_per_peer=50) as verifier:
        with pytest.raises(ServiceError) as caught:
            await anext(call(verifier, ONE, 45))
        assert (caught.value.code.name, caught.value.reason_name) == ("INVALID_ARGUMENT", "CONTEXT_EXCEEDED")
        assert (
            "50 tokens that the KV cache and the limits of the verifier leave for one request" in caught.value.message
        )


async def test_no_limit_by_default(verifier: InProcessVerifier) -> None:
    assert await asyncio.gather(*(tokens(call(verifier, ONE)) for _ in range(15))) == [10] * 15


def known_as(name: str, client: str | None = None, **limits: int) -> None:
    set_caller(Caller(name, frozenset({Role.GENERATE}), client=client, **limits))


@pytest.fixture
def no_caller() -> Iterator[None]:
    yield
    set_caller(None)


def test_a_token_counts_from_wherever_it_calls(no_caller: None) -> None:
    known_as("alice")
    limits = PeerLimits(max_requests=1)
    limits.add(1, peer_name("ipv4:10.0.0.7:1"), 10)
    with pytest.raises(ServiceError, match="1 requests of alice"):
        limits.add(2, peer_name("ipv4:10.0.0.8:1"), 10)
    known_as("bob")
    limits.add(3, peer_name("ipv4:10.0.0.7:1"), 10)


def test_a_callers_own_limits_stand_in_place_of_the_services(no_caller: None) -> None:
    limits = PeerLimits(max_requests=1, max_tokens=100)
    known_as("alice", max_requests=0, max_tokens=30)
    limits.add(1, "alice", 10)
    limits.add(2, "alice", 20)
    with pytest.raises(ServiceError, match="exceed the limit of 30") as refused:
        limits.add(3, "alice", 1)
    assert refused.value.reason_name == "AT_CAPACITY"
    limits.remove(2)
    with pytest.raises(ServiceError, match="at most 30") as refused:
        limits.add(4, "alice", 31)
    assert refused.value.reason_name == "CONTEXT_EXCEEDED"
    limits.add(5, "alice", 20)


def test_each_client_of_a_gateway_is_a_peer_and_all_are_within_the_gateways_own_limits(no_caller: None) -> None:
    limits = PeerLimits(max_requests=2, max_tokens=100)
    host, numbers = "ipv4:10.0.0.7:1", count()

    def add(client: str, tokens: int = 10) -> None:
        known_as("gateway", client, max_requests=4, max_tokens=150)
        limits.add(next(numbers), peer_name(host), tokens)

    add("alice")
    add("alice")
    with pytest.raises(ServiceError, match="2 requests of gateway/alice are running"):
        add("alice")
    with pytest.raises(ServiceError, match="gateway/bob may have at most 100") as refused:
        add("bob", 101)
    assert refused.value.reason_name == "CONTEXT_EXCEEDED"
    add("bob", 100)
    with pytest.raises(ServiceError, match="requests of gateway have up to 120 tokens; 31 more"):
        add("carol", 31)
    add("carol")
    with pytest.raises(ServiceError, match="4 requests of gateway are running"):
        add("dave")
    known_as("alice")  # a token of this name has nothing to do with the gateway's client
    limits.add(next(numbers), peer_name(host), 100)
