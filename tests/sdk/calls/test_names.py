"""Verifiers behind a DNS name: what is looked up, when, and where calls then go."""

import asyncio
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from grpc import StatusCode

from draftwire import AsyncClient, Client, DeadlineExceededError, RetryPolicy, UnavailableError, Verifier
from draftwire._calls import endpoints as endpoints_module
from draftwire._calls import names as names_module
from draftwire._calls.endpoints import NAMES_SECONDS, Endpoints
from draftwire._calls.names import choose, is_name, resolve
from tests.harness.stand_ins.fake_verifier import PROMPT, FakeVerifier, expected_ids, rich_status, text_of
from tests.harness.waiting import PATIENCE
from tests.sdk.conftest import QUICK, by_rank

NAME = "verifiers.test:50051"


@pytest.mark.parametrize("address", ["host:1", "a.b-c.example:50051", "localhost:50051"])
def test_names(address: str) -> None:
    assert is_name(address)


@pytest.mark.parametrize(
    "address",
    ["10.0.0.1:1", "[::1]:50051", "unix:/tmp/x", "unix:x:1", "dns:///host:1", "ipv4:10.0.0.1:1", "host", ":1"],
)
def test_what_is_no_name(address: str) -> None:
    assert not is_name(address)


def infos(*hosts: str) -> list[tuple[Any, ...]]:
    """Returns hosts in the form of `getaddrinfo`."""
    return [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (host, 5, 0, 0))
        if ":" in host
        else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 5))
        for host in hosts
    ]


@pytest.mark.parametrize(
    ("hosts", "chosen"),
    [
        (["10.0.0.1", "10.0.0.2", "10.0.0.1"], ["10.0.0.1:5", "10.0.0.2:5"]),
        (["fd00::1", "fd00::2", "10.0.0.1", "10.0.0.2"], ["[fd00::1]:5", "[fd00::2]:5"]),
        (["fd00::1", "10.0.0.1", "10.0.0.2"], ["10.0.0.1:5", "10.0.0.2:5"]),
        (["::1", "127.0.0.1"], [NAME]),  # one machine with two kinds of address is one verifier
        (["10.0.0.1"], [NAME]),
        ([], [NAME]),
    ],
)
def test_addresses_of_one_family_are_verifiers(hosts: list[str], chosen: list[str]) -> None:
    assert choose(NAME, infos(*hosts)) == tuple(chosen)


def test_a_name_nobody_knows_is_left_to_grpc() -> None:
    assert resolve("nobody.invalid:1") == ()
    endpoints = Endpoints([Verifier("nobody.invalid:1")])
    endpoints.update({"nobody.invalid:1": ()})
    assert endpoints.addresses == ("nobody.invalid:1",)


def test_a_lookup_that_takes_too_long_is_left_to_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(names_module, "LONGEST_LOOKUP_SECONDS", 0.05)
    monkeypatch.setattr(names_module, "_look_up", lambda _: release.wait(30) and ("never",))
    assert resolve(NAME) == ()
    release.set()


def test_the_address_in_use_stays_in_use() -> None:
    endpoints = Endpoints([Verifier(NAME), Verifier("10.1.1.1:9")])
    assert endpoints.stale
    assert endpoints.current == NAME
    endpoints.update({NAME: ("a", "b")})
    assert not endpoints.stale
    assert endpoints.addresses == ("a", "b", "10.1.1.1:9")
    assert endpoints.authority("b") == NAME
    assert endpoints.authority("10.1.1.1:9") is None
    endpoints.lost("a")
    assert endpoints.stale
    assert endpoints.current == "b"
    endpoints.update({NAME: ("c", "b")})
    assert endpoints.current == "b"
    endpoints.lost("b")
    endpoints.update({NAME: ("d", "e")})
    assert endpoints.current == "10.1.1.1:9"
    endpoints.lost("10.1.1.1:9")
    endpoints.update({NAME: ("f",)})
    assert endpoints.current == "f"


def test_a_lookup_that_fails_changes_nothing() -> None:
    endpoints = Endpoints([Verifier(NAME, weight=2.0)])
    endpoints.update({NAME: ("a", "b")})
    endpoints.lost("a")
    endpoints.update({NAME: ()})
    assert endpoints.addresses == ("a", "b")
    assert [each.reachable for each in endpoints.statuses()] == [False, True]
    assert {each.weight for each in endpoints.statuses()} == {2.0}


def test_names_are_looked_up_again_beside_the_calls() -> None:
    now = 100.0
    endpoints = Endpoints([Verifier(NAME)], clock=lambda: now)
    assert not endpoints.old()  # never resolved: the call itself does that
    endpoints.update({NAME: ("a",)})
    assert not endpoints.old()
    now += NAMES_SECONDS
    assert endpoints.old()
    assert not endpoints.old()  # a lookup is in progress
    now += NAMES_SECONDS
    endpoints.update({NAME: ("a", "b")})
    assert not endpoints.old()
    assert endpoints.addresses == ("a", "b")


def test_addresses_alone_are_never_looked_up() -> None:
    now = 100.0
    endpoints = Endpoints([Verifier("10.0.0.1:1"), Verifier("10.0.0.2:1")], clock=lambda: now)
    endpoints.lost("10.0.0.1:1")
    assert not endpoints.stale
    now += NAMES_SECONDS
    assert not endpoints.old()


class Zone:
    """The addresses of the name, with a count of lookups."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: tuple[str, ...] = ()
        self.lookups = 0
        monkeypatch.setattr(names_module, "_look_up", self.look_up)

    def look_up(self, name: str) -> tuple[str, ...]:
        assert name == NAME
        self.lookups += 1
        return self.addresses


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch, verifier: FakeVerifier, second_verifier: FakeVerifier) -> Zone:
    made = Zone(monkeypatch)
    made.addresses = (verifier.address, second_verifier.address)
    return made


def test_a_stream_goes_on_behind_the_name(zone: Zone, verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    first, second = by_rank(PROMPT, verifier, second_verifier)
    first.break_after = [4]
    with Client(NAME, retry=QUICK, insecure=True) as client:
        assert client.address == NAME
        r = client.generate(PROMPT, max_tokens=11, seed=3)
        assert [each.address for each in client.verifiers] == list(zone.addresses)
        client.model_info()
    assert r.token_ids == expected_ids(3, 11)
    assert (r.text, r.resumes) == (text_of(r.token_ids), 1)
    assert zone.lookups == 2  # at first, and after the verifier in use was lost
    assert [request.resumable for request in first.requests + second.requests] == [True, True]


@pytest.mark.parametrize("with_asyncio", [False, True])
def test_a_lookup_ends_with_the_timeout_of_its_call(monkeypatch: pytest.MonkeyPatch, with_asyncio: bool) -> None:
    left = threading.Event()
    monkeypatch.setattr(names_module, "_look_up", lambda _: left.wait(2 * names_module.LONGEST_LOOKUP_SECONDS) and ())

    async def ask() -> None:
        async with AsyncClient(NAME, insecure=True) as client:
            try:
                await client.generate(PROMPT, timeout=0.2)
            finally:
                left.set()  # the loop waits for its threads

    begun = time.monotonic()
    with pytest.raises(DeadlineExceededError):
        if with_asyncio:
            asyncio.run(ask())
        else:
            with Client(NAME, insecure=True) as client:
                client.generate(PROMPT, timeout=0.2)
    left.set()
    assert time.monotonic() - begun < names_module.LONGEST_LOOKUP_SECONDS


async def test_a_stream_goes_on_behind_the_name_with_asyncio(
    zone: Zone, verifier: FakeVerifier, second_verifier: FakeVerifier
) -> None:
    by_rank(PROMPT, verifier, second_verifier)[0].break_after = [4]
    async with AsyncClient(f"dns:///{NAME}?weight=2", retry=QUICK, insecure=True) as client:
        r = await client.generate(PROMPT, max_tokens=11, seed=3)
        results = await client.generate_batch(["a", "b", "c"], max_tokens=4, seed=1)
        assert {each.weight for each in client.verifiers} == {2.0}
    assert (r.token_ids, r.resumes) == (expected_ids(3, 11), 1)
    assert [each.token_ids for each in results] == [expected_ids(1, 4, [ord(letter)]) for letter in "abc"]
    assert zone.lookups == 2


async def test_a_verifier_that_is_new_behind_the_name_is_found(
    zone: Zone, verifier: FakeVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone.addresses = (verifier.address, "127.0.0.1:1")
    async with AsyncClient(NAME, retry=QUICK, insecure=True) as client:
        await client.generate(PROMPT, max_tokens=4)
        with FakeVerifier() as third:
            zone.addresses = (third.address, verifier.address)
            monkeypatch.setattr(endpoints_module, "NAMES_SECONDS", 0.0)
            for number in range(200):  # enough keys that the new one gets its share of them
                await client.generate(f"{number}", max_tokens=2)
                if third.requests:
                    break
    assert third.requests


async def test_streams_that_begin_together_look_up_once(zone: Zone) -> None:
    async with AsyncClient(NAME, retry=QUICK, insecure=True) as client:
        results = await client.generate_batch(["a", "b", "c"], max_tokens=4, seed=1)
    assert len(results) == 3
    assert zone.lookups == 1


async def test_a_stream_cancelled_before_the_name_is_known(zone: Zone, verifier: FakeVerifier) -> None:
    async with AsyncClient(NAME, retry=QUICK, insecure=True) as client:
        stream = client.stream(PROMPT, max_tokens=4)
        stream.cancel()
        assert await anext(stream, None) is None
    assert verifier.requests == []


def test_a_verifier_that_moved_is_found_again(zone: Zone, verifier: FakeVerifier) -> None:
    verifier.break_after = [4]
    verifier.break_status = rich_status(StatusCode.UNAVAILABLE, "going", "SHUTTING_DOWN")
    with FakeVerifier() as third:
        zone.addresses = (verifier.address, "127.0.0.1:1")
        with Client(NAME, retry=RetryPolicy(initial_backoff=0.01), insecure=True) as client:
            stream = client.stream(PROMPT, max_tokens=20, seed=1)
            next(stream)
            zone.addresses = (third.address, "127.0.0.1:1")
            for _ in stream:
                pass
    assert stream.result.token_ids == expected_ids(1, 20)
    assert len(third.requests) == 1


async def test_health_checks_find_the_verifiers_that_have_moved(
    zone: Zone, verifier: FakeVerifier, second_verifier: FakeVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that is not ready gets no requests: nothing else would look the name up again."""
    monkeypatch.setattr(endpoints_module, "NAMES_SECONDS", 0.0)
    zone.addresses = (verifier.address, "127.0.0.1:1")
    async with AsyncClient(NAME, retry=QUICK, insecure=True) as client:
        await client.model_info()
        verifier.fails_on["GetModelInfo"] = rich_status(StatusCode.UNAVAILABLE, "going", "SHUTTING_DOWN")
        zone.addresses = (second_verifier.address, "127.0.0.1:1")
        async with asyncio.timeout(PATIENCE):
            while client.verifiers[0].address != second_verifier.address:
                with suppress(UnavailableError):
                    await client.model_info(address=client.verifiers[0].address)


async def test_health_checks_find_a_verifier_that_was_lost(verifier: FakeVerifier) -> None:
    """Without requests, as at night, metrics would call it lost for hours after it has returned."""
    verifier.fails_on["GetModelInfo"] = rich_status(StatusCode.UNAVAILABLE, "loading", "SHUTTING_DOWN")
    async with AsyncClient(verifier.address, retry=QUICK) as client:
        with pytest.raises(UnavailableError):
            await client.model_info()
        assert not client.verifiers[0].reachable
        del verifier.fails_on["GetModelInfo"]
        async with asyncio.timeout(PATIENCE):
            while not client.verifiers[0].reachable:
                await client.model_info(address=verifier.address)
