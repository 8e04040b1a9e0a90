"""Failover: which address is next, and that no token is lost, doubled or different."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from draftwire import (
    AsyncClient,
    AtCapacityError,
    Client,
    DrafterNotFoundError,
    InvalidFieldError,
    ModelMismatchError,
    RetryPolicy,
    ShuttingDownError,
    Speculation,
    UnavailableError,
)
from draftwire._calls.endpoints import Endpoints
from draftwire._calls.failover import Attempts
from draftwire.errors import DraftwireError, from_status
from tests.harness.stand_ins.fake_verifier import PROMPT, PROMPT_IDS, FakeVerifier, expected_ids, rich_status, text_of
from tests.sdk.conftest import QUICK, in_order

NOBODY = "127.0.0.1:1"
LOST = UnavailableError("lost")


def attempts(*addresses: str, policy: RetryPolicy = QUICK, repeatable: bool = True) -> Attempts:
    return Attempts(Endpoints(in_order(*addresses)), policy, repeatable=repeatable)


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


def test_a_wait_that_a_server_asks_for_is_one_that_a_thread_can_wait() -> None:
    tried = attempts("a")
    tried.next_address()
    tried.succeeded()
    wait = tried.failed(AtCapacityError("full", retry_after_seconds=1e12))
    assert wait == threading.TIMEOUT_MAX
    threading.Condition().acquire(timeout=wait)  # refuses what is longer


def test_a_client_that_waits_for_a_verifier_for_an_hour() -> None:
    tried = attempts("a", policy=RetryPolicy(attempts_per_address=2000))
    for _ in range(1999):
        tried.next_address()
        assert tried.failed(LOST) <= 2.4


def test_a_wait_ends_at_the_deadline() -> None:
    tried = attempts("a", policy=RetryPolicy(initial_backoff=60, max_backoff=60))
    assert tried.failed(LOST, time.monotonic() + 0.5) <= 0.5


@pytest.mark.parametrize(
    "answer",
    [
        InvalidFieldError("no"),
        AtCapacityError("full"),
        from_status(rich_status(StatusCode.INTERNAL, "ours", "INTERNAL")),
        from_status(rich_status(StatusCode.DEADLINE_EXCEEDED, "late")),
    ],
    ids=lambda error: error.code.name,
)
def test_answers_are_not_tried_again(answer: DraftwireError) -> None:
    with pytest.raises(type(answer)):
        attempts("a", "b").failed(answer)


@pytest.mark.parametrize(
    "code", [StatusCode.UNAVAILABLE, StatusCode.CANCELLED, StatusCode.INTERNAL, StatusCode.UNKNOWN]
)
def test_a_stream_that_is_reset_is_no_answer(code: StatusCode) -> None:
    assert attempts("a", "b").failed(from_status(rich_status(code, "RST_STREAM"))) == 0.0


def test_a_request_that_has_begun_waits_for_a_place() -> None:
    tried = attempts("a", "b")
    tried.succeeded()
    full = AtCapacityError("full", retry_after_seconds=2.0)
    for _ in range(10):
        assert tried.next_address() == "a"
        assert tried.failed(full) == 0.0  # the other one may have room at once
        assert tried.next_address() == "b"
        assert 1.6 <= tried.failed(full) <= 2.4


def test_it_waits_for_the_verifier_that_has_a_place_first() -> None:
    tried = attempts("a", "b")
    tried.succeeded()
    for soon in (1.0, 2.0):
        tried.next_address()
        assert tried.failed(AtCapacityError("full", retry_after_seconds=soon)) == 0.0
        tried.next_address()
        assert 0.8 * soon <= tried.failed(AtCapacityError("full", retry_after_seconds=60.0)) <= 1.2 * soon


def test_a_call_that_stays_is_repeated_where_it_began() -> None:
    endpoints = Endpoints(in_order("a", "b"))
    tried = Attempts(endpoints, QUICK, stays=True)
    for _ in range(QUICK.attempts_per_address - 1):
        assert tried.next_address() == "a"
        assert tried.failed(LOST) > 0
    assert tried.next_address() == "a"
    with pytest.raises(UnavailableError, match="no answer from a: lost"):
        tried.failed(UnavailableError("lost"))
    assert endpoints.current == "b"


def test_calls_that_must_not_run_twice_move_on_only_when_refused() -> None:
    endpoints = Endpoints(in_order("a", "b"))
    with pytest.raises(UnavailableError):
        Attempts(endpoints, QUICK, repeatable=False).failed(LOST)
    assert endpoints.current == "b"  # the next call tries the other one
    refused = ShuttingDownError("going", reason="SHUTTING_DOWN")
    assert Attempts(endpoints, QUICK, repeatable=False).failed(refused) == 0.0


def test_many_calls_that_fail_together_move_on_once() -> None:
    endpoints = Endpoints(in_order("a", "b", "c"))
    for _ in range(5):
        endpoints.lost("a")
    assert endpoints.current == "b"


@pytest.mark.parametrize("policy", [{"attempts_per_address": 0}, {"initial_backoff": -1.0}, {"max_backoff": -1.0}])
def test_policies_are_checked(policy: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        RetryPolicy(**policy)


def test_the_first_reachable_verifier_is_used(verifier: FakeVerifier) -> None:
    with Client(in_order(NOBODY, verifier.address), retry=QUICK) as client:
        assert client.generate(PROMPT, max_tokens=4, seed=1).resumes == 0
        assert client.address == verifier.address
        assert client.model_info().vocab_size == 128


def test_a_verifier_that_shuts_down_is_left(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    verifier.failures.append(rich_status(StatusCode.UNAVAILABLE, "going", "SHUTTING_DOWN"))
    with Client(in_order(verifier.address, second_verifier.address), retry=QUICK) as client:
        assert client.generate(PROMPT, max_tokens=4, seed=1).token_ids == expected_ids(1, 4)
        assert client.address == second_verifier.address


BREAKS = [
    rich_status(StatusCode.UNAVAILABLE, "the connection broke"),
    rich_status(StatusCode.UNAVAILABLE, "going", "SHUTTING_DOWN"),
    rich_status(StatusCode.CANCELLED, "the server stops"),
    rich_status(StatusCode.INTERNAL, "RST_STREAM with error code 2"),
    rich_status(StatusCode.UNKNOWN, "stream removed"),
]


@pytest.mark.parametrize("status", BREAKS, ids=lambda status: status.message)
def test_however_it_breaks(verifier: FakeVerifier, second_verifier: FakeVerifier, status: Status) -> None:
    verifier.break_after, verifier.break_status = [4], status
    with Client(in_order(verifier.address, second_verifier.address), retry=QUICK) as client:
        r = client.generate(PROMPT, max_tokens=11, seed=3)
    assert (r.token_ids, r.text, r.resumes) == (expected_ids(3, 11), text_of(expected_ids(3, 11)), 1)


@pytest.mark.parametrize("status", BREAKS, ids=lambda status: status.message)
async def test_however_it_breaks_with_asyncio(
    verifier: FakeVerifier, second_verifier: FakeVerifier, status: Status
) -> None:
    verifier.break_after, verifier.break_status = [4, 2, 2], status
    async with AsyncClient(in_order(verifier.address, second_verifier.address), retry=QUICK) as client:
        results = await client.generate_batch([PROMPT] * 3, max_tokens=11, seed=3)
        chat = await client.chat([{"role": "user", "content": "hi"}], max_tokens=4, seed=1)
    for r in results:
        assert (r.token_ids, r.text, r.resumes) == (expected_ids(3, 11), text_of(expected_ids(3, 11)), 1)
    assert chat.token_ids == expected_ids(1, 4, [ord(letter) for letter in "userhi"])


def test_a_conversation_is_resumed_as_the_tokens_it_was(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    verifier.break_after = [2]
    prompt = [ord(letter) for letter in "userhi"]
    with Client(in_order(verifier.address, second_verifier.address), retry=QUICK) as client:
        r = client.chat([{"role": "user", "content": "hi"}], max_tokens=6, seed=1)
    assert (r.token_ids, r.resumes) == (expected_ids(1, 6, prompt), 1)
    assert list(second_verifier.requests[0].token_ids.ids) == prompt


def test_only_a_request_with_somewhere_to_go_is_resumable(
    client: Client, verifier: FakeVerifier, second_verifier: FakeVerifier
) -> None:
    client.generate(PROMPT, max_tokens=2)
    with Client(in_order(verifier.address, second_verifier.address)) as other:
        other.generate(PROMPT, max_tokens=2)
    with Client(["localhost" + verifier.address.removeprefix("127.0.0.1")]) as named:  # has two kinds of address
        named.generate(PROMPT, max_tokens=2)
    assert [request.resumable for request in verifier.requests] == [False, True, False]


def test_a_request_that_goes_on_elsewhere_waits_for_a_place(
    verifier: FakeVerifier, second_verifier: FakeVerifier
) -> None:
    verifier.break_after = [4]
    full = rich_status(StatusCode.RESOURCE_EXHAUSTED, "full", "AT_CAPACITY", retry_after=0.01)
    second_verifier.failures = [full] * 5
    lost = rich_status(StatusCode.UNAVAILABLE, "gone")
    with Client(in_order(verifier.address, second_verifier.address), retry=QUICK) as client:
        stream = client.stream(PROMPT, max_tokens=11, seed=3)
        next(stream)
        verifier.failures = [lost] * 20
        for _ in stream:
            pass
    assert stream.result.token_ids == expected_ids(3, 11)
    assert len(second_verifier.requests) == 6


def test_a_request_that_has_not_begun_is_told_when_all_are_full(
    verifier: FakeVerifier, second_verifier: FakeVerifier
) -> None:
    verifier.failures.append(rich_status(StatusCode.RESOURCE_EXHAUSTED, "full", "AT_CAPACITY", retry_after=0.5))
    with Client(in_order(verifier.address, second_verifier.address), retry=QUICK) as client:
        assert client.generate(PROMPT, max_tokens=4, seed=1).token_ids == expected_ids(1, 4)
        assert len(second_verifier.requests) == 1
        for fake, seconds in ((verifier, 0.5), (second_verifier, 0.25)):
            fake.failures.append(rich_status(StatusCode.RESOURCE_EXHAUSTED, "full", "AT_CAPACITY", retry_after=seconds))
        with pytest.raises(AtCapacityError) as told:
            client.generate(PROMPT, max_tokens=4)
        assert told.value.retry_after_seconds == 0.25  # the shorter one of the two
        assert [each.in_flight for each in client.verifiers] == [0, 0]


def test_one_that_is_away_is_not_asked_for_a_place(verifier: FakeVerifier) -> None:
    full = rich_status(StatusCode.RESOURCE_EXHAUSTED, "full", "AT_CAPACITY")
    with Client(in_order(NOBODY, verifier.address), retry=QUICK) as client:
        client.generate(PROMPT, max_tokens=4)
        verifier.failures.append(full)
        with pytest.raises(AtCapacityError):
            client.generate(PROMPT, max_tokens=4)
        assert [each.requests for each in client.verifiers] == [1, 2]


def test_a_named_drafter_is_not_asked_for_elsewhere(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    verifier.break_after = [4]
    mine = Speculation(drafter="good", max_draft_tokens=3)
    with Client(in_order(verifier.address, second_verifier.address), retry=QUICK) as client:
        assert client.generate(PROMPT, max_tokens=11, speculation=mine).resumes == 1
        second_verifier.failures.append(rich_status(StatusCode.NOT_FOUND, "no drafter good", "DRAFTER_NOT_FOUND"))
        with pytest.raises(DrafterNotFoundError):
            client.generate(PROMPT, max_tokens=4, speculation=mine)
    resumed, fresh = (request.speculation for request in second_verifier.requests)
    assert (resumed.HasField("drafter"), resumed.max_draft_tokens, fresh.drafter) == (False, 3, "good")


def test_another_target_is_noticed(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    verifier.break_after = [4]
    second_verifier.fingerprint = "another target"
    with Client(in_order(verifier.address, second_verifier.address), retry=QUICK) as client:
        stream = client.stream(PROMPT, max_tokens=11, seed=3)
        tokens = []
        with pytest.raises(ModelMismatchError, match="differs from the one that began it"):
            for chunk in stream:
                tokens += chunk.token_ids
        assert tokens == expected_ids(3, 4)  # no tokens of the other target
        assert client.generate(PROMPT, max_tokens=4, seed=3).token_ids == expected_ids(3, 4)  # a new request may use it
    assert second_verifier.is_idle()


@pytest.mark.parametrize("fingerprints", [("", "x"), ("x", ""), ("x", "x")])
def test_a_target_that_is_not_told_is_taken(
    verifier: FakeVerifier, second_verifier: FakeVerifier, fingerprints: tuple[str, str]
) -> None:
    verifier.break_after = [4]
    verifier.fingerprint, second_verifier.fingerprint = fingerprints
    with Client(in_order(verifier.address, second_verifier.address), retry=QUICK) as client:
        assert client.generate(PROMPT, max_tokens=11).resumes == 1


def test_all_verifiers_come_back(verifier: FakeVerifier) -> None:
    verifier.break_after = [4]
    verifier.failures = []
    patient = RetryPolicy(attempts_per_address=500, initial_backoff=0.01, max_backoff=0.02)
    with Client(in_order(NOBODY, verifier.address), retry=patient) as client:
        stream = client.stream(PROMPT, max_tokens=11, seed=3)
        next(stream)
        verifier.failures = [rich_status(StatusCode.UNAVAILABLE, "not yet")] * 30
        for _ in stream:
            pass
    assert stream.result.token_ids == expected_ids(3, 11)
    assert not verifier.failures


@pytest.mark.parametrize("prompt", [PROMPT, PROMPT_IDS])
def test_a_broken_stream_goes_on_elsewhere(
    verifier: FakeVerifier, second_verifier: FakeVerifier, prompt: str | list[int]
) -> None:
    verifier.break_after = [4]
    begun = time.monotonic()
    with Client(in_order(verifier.address, second_verifier.address), retry=QUICK) as client:
        with client.stream(prompt, max_tokens=11, seed=3, stop="!", request_id="mine") as stream:
            chunks = list(stream)
        r = stream.result
    ids = expected_ids(3, 11)
    assert r.token_ids == ids
    assert r.text == "".join(c.text for c in chunks) == text_of(ids)
    assert [i for c in chunks for i in c.token_ids] == ids
    assert r.resumes == 1
    assert r.usage.completion_tokens == 11
    assert 0 < r.usage.first_token_seconds <= r.usage.total_seconds <= 1 + time.monotonic() - begun
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
    assert len(verifier.requests) == 3  # the first request, and QUICK's attempts minus one without progress


def test_a_verifier_that_dies(second_verifier: FakeVerifier) -> None:
    first = FakeVerifier().start()
    first.delay = 0.02
    with Client(in_order(first.address, second_verifier.address), retry=QUICK) as client:
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
    async with AsyncClient(in_order(NOBODY, verifier.address, second_verifier.address), retry=QUICK) as client:
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


class TestARequestThatEndsItsVerifiers:
    """A request that crashes verifiers is sent to two at most; the error names them."""

    POISON = "poison"

    @pytest.fixture
    def four(self) -> Iterator[list[FakeVerifier]]:
        with ExitStack() as running:
            fakes = [running.enter_context(FakeVerifier()) for _ in range(4)]
            for fake in fakes:
                fake.dies_on = self.POISON
            yield fakes

    def check(self, caught: UnavailableError, fakes: list[FakeVerifier]) -> None:
        assert [len(fake.requests) for fake in fakes] == [1, 1, 0, 0]
        assert caught.code == StatusCode.UNAVAILABLE
        for fake in fakes[:2]:
            assert fake.address in caught.message
        assert "not sent again" in caught.message

    def test_it_does_not_go_to_a_third(self, four: list[FakeVerifier]) -> None:
        with Client(in_order(*(fake.address for fake in four)), retry=QUICK) as client:
            with pytest.raises(UnavailableError) as caught:
                client.generate(self.POISON, max_tokens=4)
            self.check(caught.value, four)
            assert client.generate(PROMPT, max_tokens=4, seed=1).token_ids == expected_ids(1, 4)
            assert [each.in_flight for each in client.verifiers] == [0] * 4

    async def test_nor_with_asyncio(self, four: list[FakeVerifier]) -> None:
        async with AsyncClient(in_order(*(fake.address for fake in four)), retry=QUICK) as client:
            with pytest.raises(UnavailableError) as caught:
                await client.generate(self.POISON, max_tokens=4)
            self.check(caught.value, four)
            assert (await client.generate(PROMPT, max_tokens=4, seed=1)).token_ids == expected_ids(1, 4)

    def test_those_that_never_had_it_do_not_count(self, four: list[FakeVerifier]) -> None:
        four[0].failures = [rich_status(StatusCode.UNAVAILABLE, "not reached")] * 2
        with Client(in_order(NOBODY, four[0].address), retry=QUICK) as client:
            assert client.generate(PROMPT, max_tokens=4, seed=1).token_ids == expected_ids(1, 4)
        with Client(in_order(NOBODY, "127.0.0.1:9", four[1].address), retry=QUICK) as client:
            assert client.generate(PROMPT, max_tokens=4, seed=1).token_ids == expected_ids(1, 4)

    def test_nor_do_those_that_shut_down(self, four: list[FakeVerifier]) -> None:
        for fake in four[:3]:
            fake.break_after, fake.break_status = [0], rich_status(StatusCode.UNAVAILABLE, "going", "SHUTTING_DOWN")
        with Client(in_order(*(fake.address for fake in four)), retry=QUICK) as client:
            assert client.generate(PROMPT, max_tokens=4, seed=1).token_ids == expected_ids(1, 4)
        assert [len(fake.requests) for fake in four] == [1, 1, 1, 1]

    def test_one_that_comes_back_each_time_is_not_ended_again_and_again(self, four: list[FakeVerifier]) -> None:
        four[0].break_after = [0] * 10
        with Client(four[0].address, retry=QUICK) as client:
            with pytest.raises(UnavailableError, match="not sent again"):
                client.generate(PROMPT, max_tokens=4)
        assert len(four[0].requests) == 2

    def test_tokens_between_losses_count_them_afresh(self, client: Client, verifier: FakeVerifier) -> None:
        verifier.break_after = [0, 2, 0, 2, 2, 0, 2, 0, 0]
        stream = client.stream(PROMPT, max_tokens=20, seed=1)
        tokens: list[int] = []
        with pytest.raises(UnavailableError, match="not sent again"):
            for chunk in stream:
                tokens += chunk.token_ids
        assert tokens == expected_ids(1, 8)
        assert len(verifier.requests) == 9

    def test_how_many_is_set(self, client: Client, verifier: FakeVerifier) -> None:
        verifier.break_after = [0] * 3
        patient = RetryPolicy(fruitless_losses=4, attempts_per_address=9, initial_backoff=0.01)
        with Client(verifier.address, retry=patient) as own:
            assert own.generate(PROMPT, max_tokens=4, seed=1).token_ids == expected_ids(1, 4)
        with pytest.raises(ValueError, match="losses"):
            RetryPolicy(fruitless_losses=0)
