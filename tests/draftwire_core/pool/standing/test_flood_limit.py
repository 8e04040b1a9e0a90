"""Bounds on a drafter's messages."""

import pytest

from draftwire.v1.drafter_service_pb2 import DraftResponse, Pong
from draftwire.v1.proposal_pb2 import DraftDistribution, Proposal, ProposalBatch
from draftwire_core.pool.standing.flood_limit import FloodLimit
from draftwire_core.runtime.errors import ServiceError
from tests.harness.verifier.simulated_clocks import SimulatedClocks

EMPTY = DraftResponse(proposals=ProposalBatch())


def flood(limit: FloodLimit) -> int:
    """How many messages more the drafter may send."""
    for count in range(1_000_000):
        try:
            limit.spend(EMPTY)
        except ServiceError:
            return count
    raise AssertionError("there is no end to it")


@pytest.fixture
def time() -> SimulatedClocks:
    return SimulatedClocks()


@pytest.fixture
def limit(time: SimulatedClocks) -> FloodLimit:
    return FloodLimit(lambda: time.now)


def test_silence_is_not_saved_up_for_a_flood(limit: FloodLimit) -> None:
    limit.opened(64)
    for _ in range(10_000):
        limit.told(64)
    assert flood(limit) <= 1024 + 16 * 128 + 2


def test_nor_are_sequences_that_are_over(limit: FloodLimit, time: SimulatedClocks) -> None:
    for _ in range(1000):
        time.now += 1
        limit.opened(64)
        limit.told(64)
        limit.closed(64)
    assert flood(limit) <= 1024 + 6 * (16 * 128 + 2)


def test_what_is_under_way_when_sequences_end_may_come(limit: FloodLimit) -> None:
    for _ in range(16):
        limit.opened(64)
        for _ in range(16):
            limit.told(64)
    for _ in range(16):
        limit.closed(64)
    limit.opened(64)
    assert flood(limit) > 16 * 16 * 64


def test_a_ping_is_answered_once(limit: FloodLimit) -> None:
    for number in range(5000):
        limit.asked()
        limit.spend(DraftResponse(pong=Pong(number=number)))
    with pytest.raises(ServiceError, match="sends more than it was asked for"):
        limit.spend(DraftResponse(pong=Pong(number=4999)))


def test_megabytes_count_whatever_they_are(limit: FloodLimit) -> None:
    limit.spend(EMPTY, 1000 << 20)
    with pytest.raises(ServiceError):
        limit.spend(EMPTY, 100 << 20)


def test_distributions_are_as_many_as_nodes_may_be(limit: FloodLimit) -> None:
    """Empty ones take two bytes each, and microseconds once they are read."""
    many = Proposal(token_ids=[3], parent_ids=[0], distributions=[DraftDistribution()] * 5000)
    with pytest.raises(ServiceError, match="sends more than it was asked for"):
        limit.spend(DraftResponse(proposals=ProposalBatch(proposals=[many])), 10_000)


def test_an_answer_to_a_ping_is_short(limit: FloodLimit) -> None:
    with pytest.raises(ServiceError, match="sends more than it was asked for"):
        for number in range(100):
            limit.asked()
            limit.spend(DraftResponse(pong=Pong(number=number)), 16 << 20)
