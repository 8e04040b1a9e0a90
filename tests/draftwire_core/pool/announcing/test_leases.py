"""A drafter that is attached with a lease stays as long as somebody renews it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from draftwire.v1 import drafter_pool_service_pb2 as pb
from draftwire_core.pool.announcing.leases import Leases
from draftwire_core.pool.drafter.service_drafter import ServiceDrafter
from draftwire_core.pool.servicer import DrafterPoolServicer
from draftwire_core.runtime.errors import ServiceError
from tests.harness.services.in_process_verifier import InProcessVerifier, order

SHORT = Duration(nanos=50_000_000)
LONG = Duration(seconds=1000)
SHORTEST = Duration(nanos=1)


@pytest.fixture
def attach(verifier: InProcessVerifier, listening: Any) -> Callable[..., Any]:
    """Calls AttachDrafter for the drafter a:1."""
    listening("a:1")

    def call(**fields: Any) -> Any:
        return DrafterPoolServicer(verifier.pool).AttachDrafter(pb.AttachDrafterRequest(address="a:1", **fields), None)

    return call


def names(verifier: InProcessVerifier) -> list[str]:
    return [each.name for each in verifier.pool.describe()]


async def test_it_is_detached_when_nobody_renews_its_lease(verifier: InProcessVerifier, attach: Any) -> None:
    assert (await attach(lease=SHORT, name="mine")).drafter.name == "mine"
    await verifier.until(lambda: not names(verifier))
    with pytest.raises(ServiceError) as caught:
        await attach(lease=SHORT, name="mine", renewal=True)
    assert caught.value.reason_name == "DRAFTER_NOT_FOUND"
    assert names(verifier) == [], "a renewal attaches nothing"


async def test_it_stays_while_it_is_renewed(verifier: InProcessVerifier, attach: Any) -> None:
    await attach(lease=SHORT)
    await attach(lease=LONG, renewal=True)
    await attach(lease=SHORT, renewal=True)  # does not shorten it
    await asyncio.sleep(0.2)
    assert names(verifier) == ["a:1"]


async def test_a_request_goes_on_when_the_lease_ends(verifier: InProcessVerifier, attach: Any) -> None:
    plain = await verifier.plain(order(max_tokens=60))
    await attach(lease=SHORT)
    output = await verifier.generate(order(max_tokens=60))
    assert output.token_ids == plain.token_ids
    await verifier.until(lambda: not names(verifier))


@pytest.mark.parametrize("first", [True, False], ids=["before the lease", "after it"])
async def test_it_ends_no_attachment_for_good(verifier: InProcessVerifier, attach: Any, first: bool) -> None:
    for fields in ({}, {"lease": SHORT}) if first else ({"lease": SHORT}, {}):
        await attach(**fields)
    await attach(lease=SHORT, renewal=True)
    await asyncio.sleep(0.2)
    assert names(verifier) == ["a:1"]


async def test_one_that_announces_itself_stays(verifier: InProcessVerifier, attach: Any) -> None:
    verifier.pool.membership.register("a:1", "", leaving=False)
    await attach(lease=SHORT)
    await verifier.until(lambda: not verifier.pool.roster.named("a:1").given)
    assert names(verifier) == ["a:1"]


async def test_detaching_ends_it_and_a_swap_does_not(verifier: InProcessVerifier, attach: Any, listening: Any) -> None:
    listening("b:1")
    await attach(lease=LONG)
    await verifier.pool.changes.swap("a:1", "b:1")
    answer = await attach(lease=SHORT, renewal=True)  # though it is not attached now
    assert not answer.HasField("drafter")
    await verifier.pool.changes.swap("b:1", "a:1")
    assert "a:1" in verifier.pool.membership._leases
    await verifier.pool.changes.detach("a:1")
    assert "a:1" not in verifier.pool.membership._leases
    with pytest.raises(ServiceError):
        await attach(lease=SHORT, renewal=True)


async def test_an_attachment_that_fails_leaves_no_lease(verifier: InProcessVerifier, attach: Any) -> None:
    """It would end an attachment of somebody else later, and could be renewed."""
    await verifier.network.kill("a:1")
    with pytest.raises(ServiceError, match="not ready"):
        await attach(lease=LONG)
    with pytest.raises(ServiceError) as caught:
        await attach(lease=LONG, renewal=True)
    assert caught.value.reason_name == "DRAFTER_NOT_FOUND"
    assert names(verifier) == []


@pytest.mark.parametrize("seconds", [1e-9, 4e-4, 1.0])
async def test_any_lease_can_be_ended_and_renewed(seconds: float) -> None:
    """Also one that is due at once, of which the loop knows no time."""
    ended: list[str] = []
    leases = Leases(ended.append)
    leases.renew("a", seconds)
    leases.renew("a", seconds)
    left = leases.end("a")
    assert left == pytest.approx(seconds, abs=0.1)
    leases.renew("a", -1e-3)
    assert "a" in leases
    leases.shut_down()
    await asyncio.sleep(0.01)
    assert not ended
    assert leases.end("a") is None


async def test_the_shortest_lease_of_a_drafter_that_cannot_be_reached(verifier: InProcessVerifier, attach: Any) -> None:
    await verifier.network.kill("a:1")
    verifier.pool.membership.register("a:1", "", leaving=False)
    await verifier.until(verifier.pool.roster.named("a:1").contact.done)
    with pytest.raises(ServiceError, match="connection refused"):
        await attach(lease=SHORTEST)
    assert "a:1" not in verifier.pool.membership._leases
    assert names(verifier) == ["a:1"], "it still announces itself"


async def test_one_that_is_about_to_leave_is_not_renewed(verifier: InProcessVerifier, attach: Any) -> None:
    await attach(lease=LONG)
    verifier.pool.membership._leases.end("a:1")
    verifier.pool.membership._lease_ended("a:1")
    assert names(verifier) == ["a:1"]
    with pytest.raises(ServiceError) as caught:
        await attach(lease=LONG, renewal=True)
    assert caught.value.reason_name == "DRAFTER_NOT_FOUND"
    with pytest.raises(ServiceError) as caught:
        await attach(lease=LONG)
    assert caught.value.reason_name == "DRAFTER_UNREACHABLE"
    await verifier.until(lambda: not names(verifier))
    assert "a:1" not in verifier.pool.membership._leases


class TestALeaseThatEndsWhileTheDrafterIsAttachedForGood:
    async def test_is_over(self, verifier: InProcessVerifier, attach: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        await attach(lease=SHORT)
        monkeypatch.setattr(ServiceDrafter, "wait_ready", lambda _: asyncio.sleep(0.2))
        await attach()
        await asyncio.sleep(0.05)
        assert verifier.state("a:1").state == pb.DrafterState.DRAFTER_STATE_READY

    async def test_goes_on_if_that_fails(
        self, verifier: InProcessVerifier, attach: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await attach(lease=SHORT)
        (drafter,) = verifier.pool.roster.members
        monkeypatch.setattr(drafter, "_state", pb.DrafterState.DRAFTER_STATE_UNREACHABLE)
        with pytest.raises(ServiceError, match="not ready"):
            await attach()
        await verifier.until(lambda: not names(verifier))


@pytest.mark.parametrize("seconds", [0, -1, 86401])
async def test_what_is_no_lease(verifier: InProcessVerifier, attach: Any, seconds: int) -> None:
    with pytest.raises(ServiceError, match="lease: must be above 0 and at most 86400 s") as caught:
        await attach(lease=Duration(seconds=seconds))
    assert caught.value.reason_name == "INVALID_FIELD"
    assert names(verifier) == []


async def test_a_renewal_names_a_lease(verifier: InProcessVerifier, attach: Any) -> None:
    with pytest.raises(ServiceError, match="lease: is missing"):
        await attach(renewal=True)
