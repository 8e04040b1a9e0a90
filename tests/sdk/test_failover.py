"""Going on elsewhere: which address is next, and that no token is lost, doubled or different."""

import time

import pytest
from grpc import StatusCode

from draftwire import AsyncClient, Client, InvalidFieldError, RetryPolicy, ShuttingDownError, UnavailableError
from draftwire.failover import Attempts, Endpoints
from tests.sdk.conftest import QUICK
from tests.sdk.fake_verifier import PROMPT, PROMPT_IDS, FakeVerifier, expected_ids, rich_status, text_of

NOBODY = "127.0.0.1:1"
LOST = UnavailableError("lost")


def attempts(*addresses: str, policy: RetryPolicy = QUICK, repeatable: bool = True) -> Attempts:
    return Attempts(Endpoints(addresses), policy, repeatable=repeatable)


def test_addresses_are_taken_in_turn_and_then_with_growing_waits() -> None:
    tried = attempts("a", "b", policy=RetryPolicy(attempts_per_address=3, initial_backoff=1.0, max_backoff=1.5))
    seen = [(tried.next_address(), tried.failed(LOST)) for _ in range(5)]
    with pytest.raises(UnavailableError):
        tried.failed(LOST)
    assert [address for address, _ in seen] == ["a", "b", "a", "b", "a"]
    waits = [wait for _, wait in seen]
    assert waits[0] == waits[2] == waits[4] == 0.0
    assert 0.8 <= waits[1] <= 1.2
    assert 1.2 <= waits[3] <= 1.8


def test_one_address_is_tried_again_after_a_wait() -> None:
    tried = attempts("a")
    assert tried.failed(LOST) > 0
    assert tried.failed(LOST) > 0
    with pytest.raises(UnavailableError):
        tried.failed(LOST)


def test_progress_counts_afresh() -> None:
    tried = attempts("a", "b")
    for _ in range(20):
        tried.next_address()
        tried.failed(LOST)
        tried.succeeded()


def test_a_wait_ends_at_the_deadline() -> None:
    tried = attempts("a", policy=RetryPolicy(initial_backoff=60, max_backoff=60))
    assert tried.failed(LOST, time.monotonic() + 0.5) <= 0.5


def test_answers_are_not_tried_again() -> None:
    with pytest.raises(InvalidFieldError):
        attempts("a", "b").failed(InvalidFieldError("no"))


def test_calls_that_must_not_run_twice_move_on_only_when_refused() -> None:
    endpoints = Endpoints(("a", "b"))
    with pytest.raises(UnavailableError):
        Attempts(endpoints, QUICK, repeatable=False).failed(LOST)
    assert endpoints.current == "b"  # the next call tries the other one
    refused = ShuttingDownError("going", reason="SHUTTING_DOWN")
    assert Attempts(endpoints, QUICK, repeatable=False).failed(refused) == 0.0


def test_many_calls_that_fail_together_move_on_once() -> None:
    endpoints = Endpoints(("a", "b", "c"))
    for _ in range(5):
        endpoints.leave("a")
    assert endpoints.current == "b"


@pytest.mark.parametrize("policy", [{"attempts_per_address": 0}, {"initial_backoff": -1.0}, {"max_backoff": -1.0}])
def test_policies_are_checked(policy: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        RetryPolicy(**policy)


def test_the_first_reachable_verifier_is_used(verifier: FakeVerifier) -> None:
    with Client([NOBODY, verifier.address], retry=QUICK) as client:
        assert client.generate(PROMPT, max_tokens=4, seed=1).resumes == 0
        assert client.address == verifier.address
        assert client.model_info().vocab_size == 128


def test_a_verifier_that_shuts_down_is_left(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    verifier.failures.append(rich_status(StatusCode.UNAVAILABLE, "going", "SHUTTING_DOWN"))
    with Client([verifier.address, second_verifier.address], retry=QUICK) as client:
        assert client.generate(PROMPT, max_tokens=4, seed=1).token_ids == expected_ids(1, 4)
        assert client.address == second_verifier.address


@pytest.mark.parametrize("prompt", [PROMPT, PROMPT_IDS])
def test_a_broken_stream_goes_on_elsewhere(
    verifier: FakeVerifier, second_verifier: FakeVerifier, prompt: str | list[int]
) -> None:
    verifier.break_after = [4]
    with Client([verifier.address, second_verifier.address], retry=QUICK) as client:
        with client.stream(prompt, max_tokens=11, seed=3, stop="!", request_id="mine") as stream:
            chunks = list(stream)
        r = stream.result
    ids = expected_ids(3, 11)
    assert r.token_ids == ids
    assert r.text == "".join(c.text for c in chunks) == text_of(ids)
    assert [i for c in chunks for i in c.token_ids] == ids
    assert r.resumes == 1
    assert r.usage.completion_tokens == 11
    assert 0 < r.usage.first_token_seconds <= r.usage.total_seconds < 5
    assert (r.speculation.steps, r.speculation.tokens) == (4, 7)
    assert r.speculation.acceptance_length == 7 / 4
    (again,) = second_verifier.requests
    assert list(again.token_ids.ids) == PROMPT_IDS
    assert list(again.resume_token_ids) == ids[:4]
    assert (again.sampling.seed, again.max_tokens, list(again.stop), again.request_id) == (3, 11, ["!"], "mine")


def test_a_broken_stream_goes_on_at_the_same_verifier(client: Client, verifier: FakeVerifier) -> None:
    verifier.break_after = [2, 0, 2, 0, 4, 2]
    r = client.generate(PROMPT, max_tokens=20)
    assert r.token_ids == expected_ids(r.seed, 20)
    assert r.text == text_of(r.token_ids)
    assert r.resumes == 6


def test_a_break_before_the_first_token_is_no_resume(client: Client, verifier: FakeVerifier) -> None:
    verifier.break_after = [0]
    r = client.generate(PROMPT, max_tokens=4)
    assert r.resumes == 0
    assert not verifier.requests[1].resume_token_ids


def test_a_break_after_the_last_token(client: Client, verifier: FakeVerifier) -> None:
    verifier.break_after = [5]
    r = client.generate(PROMPT, max_tokens=5, seed=2)
    assert r.token_ids == list(verifier.requests[1].resume_token_ids) == expected_ids(2, 5)
    assert r.text == text_of(r.token_ids)


def test_a_stream_that_breaks_without_progress_ends_with_an_error(client: Client, verifier: FakeVerifier) -> None:
    verifier.break_after = [2, 0, 0, 0]
    with pytest.raises(UnavailableError):
        client.generate(PROMPT, max_tokens=20)
    assert len(verifier.requests) == 3  # the first, and QUICK's attempts less one without a token


def test_a_verifier_that_dies(second_verifier: FakeVerifier) -> None:
    first = FakeVerifier().start()
    first.delay = 0.02
    with Client([first.address, second_verifier.address], retry=QUICK) as client:
        stream = client.stream(PROMPT, max_tokens=40, seed=8)
        next(stream)
        first.stop()
        for _ in stream:
            pass
    assert stream.result.token_ids == expected_ids(8, 40)
    assert stream.result.resumes == 1


def test_watching_reconnects(client: Client, verifier: FakeVerifier) -> None:
    verifier.break_after = [0]
    with client.drafters.watch() as states:
        assert [len(next(states)) for _ in range(4)] == [1, 0, 1, 0]


async def test_asyncio_goes_on_elsewhere(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    verifier.break_after = [4]
    async with AsyncClient([NOBODY, verifier.address, second_verifier.address], retry=QUICK) as client:
        r = await client.generate(PROMPT, max_tokens=11, seed=3)
    assert r.token_ids == expected_ids(3, 11)
    assert r.text == text_of(r.token_ids)
    assert r.resumes == 1
    assert list(second_verifier.requests[0].resume_token_ids) == r.token_ids[:4]


async def test_asyncio_gives_up(verifier: FakeVerifier) -> None:
    verifier.break_after = [2, 0, 0, 0]
    async with AsyncClient(verifier.address, retry=QUICK) as client:
        with pytest.raises(UnavailableError):
            await client.generate(PROMPT, max_tokens=20)
