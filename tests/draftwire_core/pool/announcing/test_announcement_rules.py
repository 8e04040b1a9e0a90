"""Rules for announcements: nobody can direct the verifier, its prompts and its token to an address of their choice."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from draftwire_core.pool.announcing.announcement_rules import AnnouncementRules
from draftwire_core.pool.routing import roster
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.security.caller import Caller
from draftwire_core.runtime.security.roles import Role
from tests.harness.services.in_process_verifier import InProcessVerifier
from tests.harness.services.services import Services
from verifier_service.service import announcement_rules
from verifier_service.settings import VerifierSettings


def caller(name: str, role: Role = Role.DRAFT) -> Caller:
    return Caller(name, frozenset({role}))


async def test_only_who_announced_a_drafter_speaks_for_it(verifier: InProcessVerifier, listening: Any) -> None:
    listening("a:1")
    verifier.pool.membership.register("a:1", "me", leaving=False, caller=caller("mine"))
    for leaving in (False, True):
        with pytest.raises(ServiceError, match="not announced with the token of another") as caught:
            verifier.pool.membership.register("a:1", "me", leaving, {"gpu": "yes"}, caller("another"))
        assert caught.value.reason_name == "DRAFTER_EXISTS"
    assert not verifier.state("me").labels
    verifier.pool.membership.register("a:1", "me", leaving=False, caller=caller("mine"))
    verifier.pool.membership.register("a:1", "me", leaving=True, caller=caller("operator", Role.ADMIN))
    await verifier.until(lambda: verifier.pool.describe() == [])
    verifier.pool.membership.register("a:1", "me", leaving=False, caller=caller("another"))


SPELLINGS = [
    ("a.internal:1", "A.Internal.:1"),
    ("127.0.0.1:1", "127.0.0.1:01"),
    ("127.0.0.1:1", "localhost:1"),
    ("localhost:1", "0.0.0.0:1"),
    ("[fd00::1]:1", "[FD00:0::1]:1"),
    ("[fd00::1]:1", "[fd00::1%25lo]:1"),
    ("localhost:1", "[::1%00.gpu.internal]:1"),
]


@pytest.mark.parametrize(("address", "again"), SPELLINGS)
async def test_an_address_belongs_to_its_first_name(verifier: InProcessVerifier, address: str, again: str) -> None:
    register = verifier.pool.membership.register
    register(address, "me", leaving=False, caller=caller("mine"))
    for name in ("other", ""):
        with pytest.raises(ServiceError, match="belongs to drafter me, which was not announced with the") as caught:
            register(again, name, leaving=False, caller=caller("another"))
        assert caught.value.reason_name == "DRAFTER_EXISTS"
    assert [each.name for each in verifier.pool.describe()] == ["me"]
    register(again, "mine too", leaving=False, caller=caller("mine"))
    register(again, "the operator's", leaving=False, caller=caller("operator", Role.ADMIN))
    for name in ("me", "mine too", "the operator's"):
        verifier.pool.membership.dismiss(verifier.pool.roster.named(name))
    register(again, "other", leaving=False, caller=caller("another"))  # the first name is gone


async def test_an_attached_address_belongs_to_its_name(verifier: InProcessVerifier, listening: Any) -> None:
    listening("a:1")
    await verifier.pool.membership.attach("a:1", "me")
    with pytest.raises(ServiceError, match="address: a:1 belongs to drafter me"):
        verifier.pool.membership.register("a:1", "other", leaving=False, caller=caller("another"))


async def test_one_that_was_attached_does_not_leave_at_a_strangers_word(
    verifier: InProcessVerifier, listening: Any
) -> None:
    listening("a:1")
    await verifier.pool.membership.attach("a:1", "me")
    with pytest.raises(ServiceError):
        verifier.pool.membership.register("a:1", "me", leaving=True, caller=caller("another"))
    verifier.pool.membership.register("a:1", "me", leaving=False, caller=caller("another"))
    assert verifier.state("me").announced
    verifier.pool.membership.register("a:1", "me", leaving=True, caller=caller("another"))
    await asyncio.sleep(0)
    assert (verifier.state("me").announced, verifier.state("me").state) == (False, DrafterState.DRAFTER_STATE_READY)
    verifier.pool.membership.register("a:1", "me", leaving=False, caller=caller("mine"))


async def test_one_that_was_dismissed_is_brought_back_by_its_own_token_alone(
    verifier: InProcessVerifier, listening: Any
) -> None:
    listening("a:1")
    register = verifier.pool.membership.register
    register("a:1", "me", leaving=False, caller=caller("mine"))
    verifier.pool.membership.detach(verifier.pool.roster.named("me"))
    for leaving in (True, False):
        with pytest.raises(ServiceError, match="not announced with the token of another"):
            register("b:1", "me", leaving=leaving, caller=caller("another"))
    register("a:1", "me", leaving=False, caller=caller("mine"))
    assert verifier.pool.describe() == [], "it stays dismissed"
    register("a:1", "me", leaving=True, caller=caller("mine"))
    register("a:1", "me", leaving=False, caller=caller("mine"))
    assert [each.name for each in verifier.pool.describe()] == ["me"]


async def test_one_that_was_attached_between_two_dismissals_is_still_its_announcers(
    verifier: InProcessVerifier, listening: Any
) -> None:
    listening("a:1")
    register = verifier.pool.membership.register
    register("a:1", "me", leaving=False, caller=caller("mine"))
    verifier.pool.membership.detach(verifier.pool.roster.named("me"))
    verifier.pool.membership.detach(await verifier.pool.membership.attach("a:1", "me"))
    for leaving in (True, False):
        with pytest.raises(ServiceError, match="not announced with the token of another"):
            register("a:1", "me", leaving=leaving, caller=caller("another"))
    register("a:1", "me", leaving=False, caller=caller("mine"))
    assert verifier.pool.describe() == [], "it stays dismissed"


@pytest.mark.parametrize("name", ["a" * 1025, "two\nlines"])
async def test_a_name_that_does_not_fit_into_a_log(verifier: InProcessVerifier, name: str) -> None:
    for address, given in (("a:1", name), (f"{name}:1", "")):
        with pytest.raises(ServiceError, match="at most 1024 printable characters") as caught:
            verifier.pool.membership.register(address, given, leaving=False)
        assert caught.value.reason_name == "INVALID_FIELD"
    assert verifier.pool.describe() == []


async def test_hosts_that_may_be_announced(services: Services, checkpoint: Path) -> None:
    rules = AnnouncementRules(["drafters.internal", "*.gpu.internal", "10.1.0.0/16", "[fd00::1]"])
    async with services.in_process_verifier(checkpoint, announcements=rules) as verifier:
        for address in ("169.254.169.254:80", "10.2.0.1:1", "gpu.internal:1", "evilgpu.internal:1", "localhost:22"):
            with pytest.raises(ServiceError, match="--announced-host") as caught:
                verifier.pool.membership.register(address, "", leaving=False)
            assert caught.value.reason_name == "INVALID_FIELD"
        escaped = ["10.2.0.1%00.gpu.internal:1", "[10.2.0.1%00:a.gpu.internal]:1", "10.1.0.%31:1", "%61.gpu.internal:1"]
        for address in escaped:
            with pytest.raises(ServiceError, match="address: must be HOST:PORT"):
                verifier.pool.membership.register(address, "", leaving=False)
        assert verifier.pool.describe() == [] and not verifier.network.attempts
        allowed = ["drafters.internal:1", "a.GPU.internal:1", "10.1.2.3:1", "[fd00::1]:1"]
        for address in allowed:
            verifier.pool.membership.register(address, "", leaving=False)
        assert [drafter.address for drafter in verifier.pool.describe()] == allowed


@pytest.mark.parametrize("host", ["", "a b", "10.0.0.0/99", "*.", "*", "host:1"])
def test_what_is_no_host(host: str) -> None:
    with pytest.raises(StartupError, match=r"--announced-host: must be a name, \*\.DOMAIN"):
        announcement_rules(VerifierSettings(model="any", announced_host=(host,)))


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({}, False),
        ({"token_file": "t"}, True),
        ({"token_file": "t", "tls_ca": "ca.pem"}, False),
        ({"token_file": "t", "accepted_tokens": "accepted.toml"}, False),
    ],
)
async def test_no_token_is_shown_in_the_clear_to_whoever_asks_for_it(
    services: Services, checkpoint: Path, settings: dict[str, Any], refused: bool
) -> None:
    rules = announcement_rules(VerifierSettings(model="any", **settings))
    async with services.in_process_verifier(checkpoint, announcements=rules) as verifier:
        if not refused:
            verifier.pool.membership.register("a:1", "", leaving=False)
            await verifier.until(lambda: verifier.network.attempts)
            return
        with pytest.raises(ServiceError, match="receive this verifier's token") as caught:
            verifier.pool.membership.register("a:1", "", leaving=False)
        assert caught.value.reason_name == "NOT_ENABLED"
        assert not verifier.network.attempts


async def test_coming_and_going_leaves_nothing(verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each announcement has a new name; nothing is kept of a drafter that has left."""
    monkeypatch.setattr(roster, "_FORGET_SECONDS", 0.0)
    tasks = len(asyncio.all_tasks())
    for number in range(100):
        verifier.pool.membership.register(f"nowhere-{number}:1", "", leaving=False)
        verifier.pool.membership.register(f"nowhere-{number}:1", "", leaving=True)
        await verifier.until(lambda: verifier.pool.describe() == [])
    await verifier.until(lambda: len(asyncio.all_tasks()) <= tasks)
    pool = verifier.pool
    assert (
        not pool.roster.alive and not pool.membership._heartbeats._expiry and not pool.membership._heartbeats._dismissed
    )
