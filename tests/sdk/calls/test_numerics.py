"""A request continues only on verifiers with the numerics that it began with."""

import asyncio
from typing import Any

import pytest
from grpc import StatusCode

from draftwire import (
    AsyncClient,
    Client,
    Generation,
    ModelMismatchError,
    NumericsMismatchError,
    RetryPolicy,
    Speculation,
    Verifier,
)
from draftwire._calls import upkeep
from draftwire._calls.endpoints import Endpoints
from draftwire._calls.failover import Attempts
from tests.harness.stand_ins.fake_verifier import PROMPT, FakeVerifier, expected_ids, rich_status
from tests.sdk.conftest import QUICK, in_order

OTHER = "other arithmetic, by its hash"
ANEW = RetryPolicy(
    attempts_per_address=QUICK.attempts_per_address,
    initial_backoff=QUICK.initial_backoff,
    max_backoff=QUICK.max_backoff,
    on_other_numerics="restart",
)


def lose(verifier: FakeVerifier, tokens: int = 4) -> None:
    """Makes the verifier break off after `tokens` tokens and refuse all later calls."""
    verifier.break_after = [tokens]
    verifier.as_it_breaks = lambda: verifier.failures.extend([rich_status(StatusCode.UNAVAILABLE, "gone")] * 20)


def ask(with_asyncio: bool, addresses: Any, retry: RetryPolicy, **options: Any) -> Generation:
    async def ask_with_asyncio() -> Generation:
        async with AsyncClient(addresses, retry=retry) as client:
            return await client.generate(PROMPT, **options)

    if with_asyncio:
        return asyncio.run(ask_with_asyncio())
    with Client(addresses, retry=retry) as client:
        return client.generate(PROMPT, **options)


@pytest.mark.parametrize("with_asyncio", [False, True])
@pytest.mark.parametrize("speculation", [None, Speculation(drafter="good")], ids=["spread", "at the one in use"])
def test_a_text_does_not_change_in_the_middle(
    verifier: FakeVerifier, second_verifier: FakeVerifier, with_asyncio: bool, speculation: Speculation | None
) -> None:
    lose(verifier)
    second_verifier.numerics = OTHER
    addresses = in_order(verifier.address, second_verifier.address)
    with pytest.raises(NumericsMismatchError) as refused:
        ask(with_asyncio, addresses, QUICK, max_tokens=11, seed=3, speculation=speculation)
    assert isinstance(refused.value, ModelMismatchError)
    said = str(refused.value)
    for each in (verifier.address, second_verifier.address, OTHER[:12], verifier.numerics[:12]):
        assert each in said
    assert refused.value.metadata == {"numerics": OTHER, "began_with": verifier.numerics}
    assert second_verifier.is_idle()


@pytest.mark.parametrize("retry", [QUICK, ANEW], ids=["fail", "restart"])
def test_a_stream_hands_out_nothing_of_the_other(
    verifier: FakeVerifier, second_verifier: FakeVerifier, retry: RetryPolicy
) -> None:
    lose(verifier)
    second_verifier.numerics = OTHER
    with Client(in_order(verifier.address, second_verifier.address), retry=retry) as client:
        tokens: list[int] = []
        with pytest.raises(NumericsMismatchError):
            for chunk in client.stream(PROMPT, max_tokens=11, seed=3):
                tokens += chunk.token_ids
        assert tokens == expected_ids(3, 4)
        assert client.generate(PROMPT, max_tokens=11, seed=3).token_ids == expected_ids(3, 11)  # a new request
        assert [each.in_flight for each in client.verifiers] == [0, 0]
        assert client.verifiers[1].numerics == OTHER


@pytest.mark.parametrize("with_asyncio", [False, True])
def test_another_that_is_equal_is_preferred(
    verifier: FakeVerifier, second_verifier: FakeVerifier, with_asyncio: bool
) -> None:
    second_verifier.numerics = OTHER
    with FakeVerifier() as third:
        lose(verifier)
        addresses = in_order(verifier.address, second_verifier.address, third.address)
        r = ask(with_asyncio, addresses, QUICK, max_tokens=11, seed=3)
        assert (r.token_ids, r.resumes, r.restarts) == (expected_ids(3, 11), 1, 0)
        assert list(third.requests[-1].resume_token_ids) == expected_ids(3, 4)


def test_the_one_that_began_may_come_back(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    verifier.break_after = [4]
    second_verifier.numerics = OTHER
    with Client(in_order(verifier.address, second_verifier.address), retry=QUICK) as client:
        r = client.generate(PROMPT, max_tokens=11, seed=3)
    assert (r.token_ids, r.resumes) == (expected_ids(3, 11), 1)
    assert len(verifier.requests) == 2


def test_one_that_comes_back_with_other_numerics(verifier: FakeVerifier) -> None:
    verifier.break_after = [4]
    verifier.as_it_breaks = lambda: setattr(verifier, "numerics", OTHER)
    with Client(verifier.address, retry=QUICK) as client, pytest.raises(NumericsMismatchError):
        client.generate(PROMPT, max_tokens=11, seed=3)


@pytest.mark.parametrize("with_asyncio", [False, True])
def test_a_whole_result_may_be_begun_anew(
    verifier: FakeVerifier, second_verifier: FakeVerifier, with_asyncio: bool
) -> None:
    lose(verifier)
    second_verifier.numerics = OTHER
    addresses = in_order(verifier.address, second_verifier.address)
    r = ask(with_asyncio, addresses, ANEW, max_tokens=11, seed=3, logprobs=0)
    assert (r.token_ids, r.resumes, r.restarts) == (expected_ids(3, 11), 0, 1)
    assert len(r.token_texts) == len(r.logprobs) == 11
    refused, anew = second_verifier.requests
    assert (len(refused.resume_token_ids), len(anew.resume_token_ids), anew.sampling.seed) == (4, 0, 3)


@pytest.mark.parametrize("numerics", [("", OTHER), (OTHER, "")])
def test_one_that_reports_none_is_equal_to_none_but_such(
    verifier: FakeVerifier, second_verifier: FakeVerifier, numerics: tuple[str, str]
) -> None:
    lose(verifier)
    verifier.numerics, second_verifier.numerics = numerics
    with Client(in_order(verifier.address, second_verifier.address), retry=QUICK) as client:
        with pytest.raises(NumericsMismatchError, match="not reported"):
            client.generate(PROMPT, max_tokens=11, seed=3)
        verifier.numerics = second_verifier.numerics = ""
        verifier.failures.clear()
        verifier.as_it_breaks = lambda: None
        verifier.break_after = second_verifier.break_after = [2]
        assert client.generate(PROMPT, max_tokens=11, seed=3).resumes > 0


def test_a_verifier_that_nobody_can_stand_in_for_is_told_so(
    verifier: FakeVerifier, second_verifier: FakeVerifier
) -> None:
    """A verifier without a possible replacement finishes its requests at shutdown and does not hand them over."""
    second_verifier.numerics = OTHER
    with Client([verifier.address, second_verifier.address], retry=QUICK) as client:
        for number in range(20):
            client.generate(f"{number}", max_tokens=2)
        assert verifier.requests[0].resumable and not verifier.requests[-1].resumable
        second_verifier.numerics = verifier.numerics
        for number in range(20):
            client.generate(f"{number}", max_tokens=2)
        assert verifier.requests[-1].resumable


def test_the_choice_is_of_those_that_may_go_on() -> None:
    endpoints = Endpoints(in_order("a", "b", "c"))
    endpoints.told("b", "x", 1, "other")
    assert endpoints.take(b"", without={"a"}, numerics="one") == "c"  # its numerics are unknown
    endpoints.told("c", "x", 1, "another")
    assert endpoints.take(b"", without={"a"}, numerics="one") in "bc"  # the known numerics may be outdated
    assert endpoints.take(b"", without={"a"}, never={"b"}, numerics="one") == "c"
    assert endpoints.take(b"", without={"a", "c"}, never={"b", "c"}) == "a"
    endpoints.lost("b")
    assert endpoints.statuses()[1].numerics == ""
    endpoints.told("a", "x", 1, "one")
    assert endpoints.replaceable("a")  # b may come back with other numerics
    endpoints.computes("b", "other")
    assert not endpoints.replaceable("a")


def test_those_that_may_go_on_vanish_from_behind_their_name() -> None:
    endpoints = Endpoints([Verifier("verifiers.test:1")])
    endpoints.update({"verifiers.test:1": ("a", "b")})
    tried = Attempts(endpoints, QUICK, key=b"")
    refused = NumericsMismatchError("others", metadata={"numerics": OTHER})
    one = tried.next_address()
    assert tried.failed(refused) == 0.0
    assert {one, tried.next_address()} == {"a", "b"}
    tried.end()
    endpoints.update({"verifiers.test:1": (one,)})
    with pytest.raises(NumericsMismatchError):
        tried.next_address()


@pytest.mark.parametrize("with_asyncio", [False, True])
def test_a_whole_result_is_begun_anew_where_they_vanish(
    verifier: FakeVerifier, second_verifier: FakeVerifier, with_asyncio: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verifier that began stays away; then the name no longer resolves to its address."""
    lose(verifier)
    second_verifier.numerics = OTHER
    first, second = verifier.address, second_verifier.address
    found = [(first,), (first, second), (second,)]

    def resolve(name: str, seconds: float | None) -> tuple[str, ...]:
        return found.pop(0) if len(found) > 1 else found[0]

    async def resolve_async(name: str, seconds: float | None) -> tuple[str, ...]:
        return resolve(name, seconds)

    monkeypatch.setattr(upkeep, "resolve", resolve)
    monkeypatch.setattr(upkeep, "resolve_async", resolve_async)
    r = ask(with_asyncio, "localhost:1", ANEW, max_tokens=11, seed=3)
    assert (r.token_ids, r.resumes, r.restarts) == (expected_ids(3, 11), 0, 1)
    assert found == [(second,)]
    with pytest.raises(NumericsMismatchError):
        found[:0] = [(first,), (first, second)]
        verifier.failures.clear()
        lose(verifier)
        ask(with_asyncio, "localhost:1", QUICK, max_tokens=11, seed=3)


def test_the_word_for_it_is_checked() -> None:
    with pytest.raises(ValueError, match="on_other_numerics must be 'fail' or 'restart', got 'ignore'"):
        RetryPolicy(on_other_numerics="ignore")  # type: ignore[arg-type]
