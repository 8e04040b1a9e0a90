"""The limits of a key, kept to the request, with a clock that the test sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gateway_service.http.errors import GatewayError
from gateway_service.keys.account import Account
from gateway_service.keys.charge import Charge, ChoiceSize
from gateway_service.keys.grant import Grant
from gateway_service.keys.key_file import NamedKey
from gateway_service.keys.sliding_window import WINDOW_SECONDS
from gateway_service.observability.key_metrics import KeyMetrics
from tests.gateway_service.keys.clock import Clock


def opened() -> tuple[Account, Clock, CollectorRegistry]:
    clock, registry = Clock(), CollectorRegistry()
    return Account("alice", clock, KeyMetrics(registry)), clock, registry


def granted(account: Account, **limits: int) -> Grant:
    key = NamedKey("alice", **limits)  # type: ignore[arg-type]
    return Grant(key, account, lambda: key)


def refused_by(name: str, error: GatewayError) -> float:
    assert (error.status, error.code) == (429, "rate_limit_exceeded")
    assert name in error.message and "alice" in error.message
    assert error.retry_after_seconds is not None
    return error.retry_after_seconds


@given(st.integers(1, 8), st.lists(st.one_of(st.floats(0, 1), st.floats(0, 70)), max_size=60))
def test_no_minute_has_more_requests_and_none_is_refused_without_need(limit: int, pauses: list[float]) -> None:
    account, clock, _ = opened()
    key = NamedKey("alice", requests_per_minute=limit)
    admitted: list[float] = []

    def lately(seconds: float) -> int:
        return sum(time > clock.time - seconds for time in admitted)

    for pause in pauses:
        clock.time += pause
        try:
            account.count_request(key)
        except GatewayError as error:
            wait = refused_by("requests_per_minute", error)
            assert 0 < wait <= WINDOW_SECONDS
            assert lately(WINDOW_SECONDS + 0.11) >= limit
            clock.time += wait + 1e-6
            account.count_request(key)  # as the answer promised
        admitted.append(clock.time)
        assert lately(WINDOW_SECONDS - 1e-5) <= limit


REQUESTS = st.lists(
    st.tuples(st.floats(0, 30), st.integers(1, 40), st.integers(1, 60), st.floats(0, 1), st.integers(0, 4)), max_size=40
)


@given(REQUESTS)
def test_no_minute_has_more_tokens_if_requests_name_their_longest_output(
    requests: list[tuple[float, int, int, float, int]],
) -> None:
    """Each request has a prompt, a longest output, the share of it that comes, and the number of later requests after
    which it ends."""
    account, clock, _ = opened()
    limit = 100
    grant = granted(account, tokens_per_minute=limit)
    used: list[tuple[float, int]] = []
    running: list[tuple[int, Charge, int, int]] = []

    def end(charge: Charge, prompt: int, output: int) -> None:
        charge.add_output(0, output)
        charge.finish(0, prompt)
        charge.__exit__(None, None, None)

    for number, (pause, prompt, most, share, later) in enumerate(requests):
        clock.time += pause
        for each in [each for each in running if each[0] <= number]:
            running.remove(each)
            end(*each[1:])
        try:
            charge = Charge(grant, ["target"], [ChoiceSize(prompt, most)]).__enter__()
        except GatewayError as error:
            refused_by("tokens_per_minute", error)
            held = sum(tokens for time, tokens in used if time > clock.time - WINDOW_SECONDS - 0.11)
            assert held + sum(60 for _ in running) + prompt + most > limit  # only with need
            continue
        output = round(share * most)
        used.append((clock.time, prompt + output))
        running.append((number + later, charge, prompt, output))
    for each in running:
        end(*each[1:])
    for until, _ in used:
        assert sum(tokens for time, tokens in used if until - WINDOW_SECONDS < time <= until) <= limit
    clock.time += 2 * WINDOW_SECONDS
    assert account.tokens.used == 0


def test_an_output_without_a_maximum_counts_as_it_comes() -> None:
    account, clock, _ = opened()
    grant = granted(account, tokens_per_minute=100)
    with Charge(grant, ["target"], [ChoiceSize(10, None)]) as charge:
        assert account.tokens.used == 10
        charge.add_output(0, 60)
        assert account.tokens.used == 70
        with pytest.raises(GatewayError) as caught, Charge(grant, ["target"], [ChoiceSize(11, 20)]):
            pass
        assert refused_by("limit 100, used 70, requested 31", caught.value) == 60
        charge.add_output(0, 50)
        charge.finish(0, 15)
    assert account.tokens.used == 125
    assert account.headers(grant.key)["x-ratelimit-remaining-tokens"] == "0"


def test_what_was_not_used_is_taken_back() -> None:
    account, _, registry = opened()
    grant = granted(account, tokens_per_minute=100)
    with Charge(grant, ["target"], [ChoiceSize(10, 40), ChoiceSize(0, 40)]) as charge:  # two choices for one prompt
        assert account.tokens.used == 90
        charge.add_output(0, 5)
        charge.finish(0, 8)
        charge.add_output(1, 3)
    assert account.tokens.used == 8 + 5 + 3
    with pytest.raises(KeyError), Charge(grant, ["target"], [ChoiceSize(10, 40)]):
        raise KeyError  # before a token came
    assert account.tokens.used == 16
    for kind, tokens in (("prompt", 8), ("completion", 8)):
        labels = {"key": "alice", "kind": kind}
        assert registry.get_sample_value("draftwire:gateway_key_tokens_total", labels) == tokens


def test_a_request_that_is_too_large_is_not_told_to_try_again() -> None:
    account, _, registry = opened()
    grant = granted(account, tokens_per_minute=100, max_running=2)
    for sizes in ([ChoiceSize(10, 91)], [ChoiceSize(1, 1)] * 3):
        with pytest.raises(GatewayError) as caught, Charge(grant, ["target"], sizes):
            pass
        assert (caught.value.status, caught.value.code) == (400, "request_too_large")
        assert caught.value.retry_after_seconds is None
    for limit in ("tokens_per_minute", "max_running"):
        labels = {"key": "alice", "limit": limit}
        assert registry.get_sample_value("draftwire:gateway_key_refusals_total", labels) == 1


def test_most_running() -> None:
    account, _, registry = opened()
    grant = granted(account, max_running=3)
    two = [ChoiceSize(1, 1), ChoiceSize(0, 1)]
    with Charge(grant, ["target"], two):
        with pytest.raises(GatewayError) as caught, Charge(grant, ["target"], two):
            pass
        refused_by("max_running", caught.value)
        with Charge(grant, ["target"], two[:1]):
            assert registry.get_sample_value("draftwire:gateway_key_running", {"key": "alice"}) == 3
    assert registry.get_sample_value("draftwire:gateway_key_running", {"key": "alice"}) == 0


def test_a_request_ends_with_its_key() -> None:
    account, clock, _ = opened()
    keys: list[NamedKey | None] = [NamedKey("alice", models=frozenset({"target"}))]
    assert keys[0] is not None
    grant = Grant(keys[0], account, lambda: keys[0])
    for now in (None, NamedKey("alice", models=frozenset({"another"}))):
        keys[0] = grant.key
        with Charge(grant, ["target"], [ChoiceSize(1, None)]) as charge:
            clock.time += 2
            charge.add_output(0, 1)
            keys[0] = now
            charge.add_output(0, 1)  # the file is looked at once a second
            clock.time += 1
            with pytest.raises(GatewayError) as caught:
                charge.add_output(0, 1)
            assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
        assert account.tokens.used
        clock.time += 61
