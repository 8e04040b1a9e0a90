"""A client's knowledge of its verifiers: which of them get requests, and what they reported."""

from collections import Counter
from collections.abc import Sequence

import pytest

from draftwire import ModelMismatchError, SpreadPolicy, Verifier
from draftwire._calls.endpoints import Endpoints
from draftwire._calls.spreading import ranked


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def made(clock: Clock, *addresses: str) -> Endpoints:
    return Endpoints([Verifier.parse(each) for each in addresses], SpreadPolicy(), clock=clock)


def order(key: bytes, addresses: Sequence[str]) -> list[str]:
    return [each.address for each in ranked(key, [Verifier(address) for address in addresses])]


def test_requests_with_one_key_go_to_one_verifier_while_it_is_not_busy(clock: Clock) -> None:
    endpoints = made(clock, "a", "b", "c")
    best = order(b"key", "abc")[0]
    for _ in range(20):
        assert endpoints.take(b"key") == best
        endpoints.release(best)
    assert {each.address: each.requests for each in endpoints.statuses()}[best] == 20


def test_many_at_once_are_spread(clock: Clock) -> None:
    endpoints = made(clock, "a", "b", "c?weight=2")
    taken = Counter(endpoints.take(b"key") for _ in range(40))
    assert sum(taken.values()) == 40
    assert max(taken["a"], taken["b"]) <= 13  # 1.25 times 10, rounded up
    assert taken["c"] <= 25
    for address, count in taken.items():
        for _ in range(count):
            endpoints.release(address)
    assert all(each.in_flight == 0 for each in endpoints.statuses())


def test_what_others_bring_counts_while_it_is_fresh(clock: Clock) -> None:
    endpoints = made(clock, "a", "b")
    best, other = order(b"key", "ab")
    endpoints.told(endpoints.take(b"key"), "", 31)  # this one and 30 of other clients
    assert {each.address: each.others for each in endpoints.statuses()} == {best: 30, other: 0}
    assert [endpoints.take(b"key") for _ in range(5)] == [other] * 5
    clock.now += 10
    assert endpoints.take(b"key") == best  # the report is too old to count


def test_a_verifier_that_does_not_tell_its_load_counts_with_ours(clock: Clock) -> None:
    endpoints = made(clock, "a", "b")
    endpoints.told(endpoints.take(b"key"), "", None)
    assert all(each.others == 0 for each in endpoints.statuses())


def test_nothing_goes_to_one_that_is_lost_until_it_serves(clock: Clock) -> None:
    endpoints = made(clock, "a", "b", "c")
    endpoints.lost("b")
    assert [each.address for each in endpoints.statuses() if not each.reachable] == ["b"]
    assert "b" not in {endpoints.take(b"%d" % number) for number in range(200)}
    endpoints.serves("b")
    assert "b" in {endpoints.take(b"%d" % number) for number in range(200)}


def test_it_is_asked_for_its_health_with_growing_waits(clock: Clock) -> None:
    endpoints = made(clock, "a", "b")
    assert endpoints.due_probes() == []
    endpoints.lost("a")
    waits: list[float] = []
    for _ in range(8):
        begin = clock.now
        while not (due := endpoints.due_probes()):
            clock.now += 0.05
        assert due == ["a"]
        assert endpoints.due_probes() == []
        waits.append(clock.now - begin)
    assert waits == sorted(waits)
    assert waits[0] == 0.0
    assert 1.9 < waits[-1] < 2.2
    endpoints.serves("a")
    clock.now += 60
    assert endpoints.due_probes() == []


def test_where_all_are_lost_they_are_tried(clock: Clock) -> None:
    endpoints = made(clock, "a", "b")
    ranking = order(b"key", "ab")
    for address in "ab":
        endpoints.lost(address)
    first = endpoints.take(b"key")
    assert [first, endpoints.take(b"key", without={first})] == ranking
    assert endpoints.take(b"key", without={"a", "b"}) in "ab"


def test_one_that_was_tried_is_taken_last(clock: Clock) -> None:
    endpoints = made(clock, "a", "b", "c")
    ranking = order(b"key", "abc")
    assert endpoints.take(b"key", without={ranking[0]}) == ranking[1]
    endpoints.lost(ranking[1])
    assert endpoints.take(b"key", without={ranking[0]}) == ranking[2]
    endpoints.lost(ranking[2])
    assert endpoints.take(b"key", without={ranking[0], ranking[2]}) == ranking[1]  # as it was not tried
    assert endpoints.reachable(without=set(ranking[1:]))
    assert not endpoints.reachable(without=ranking[:1])


def test_two_models_behind_one_name_are_told(clock: Clock) -> None:
    endpoints = made(clock, "a", "b")
    endpoints.told("a", "x" * 64, 1)
    endpoints.told("b", "", 1)  # it does not report its model
    with pytest.raises(ModelMismatchError, match="b has the fingerprint yyyyyyyyyyyy, a has xxxxxxxxxxxx"):
        endpoints.told("b", "y" * 64, 1)
    endpoints.told("a", "x" * 64, 1)  # requests to it still work
    with pytest.raises(ModelMismatchError):
        endpoints.told("b", "y" * 64, 1)


def test_a_model_may_change_at_all_verifiers_in_turn(clock: Clock) -> None:
    endpoints = made(clock, "a", "b")
    endpoints.told("a", "old", 1)
    endpoints.told("b", "old", 1)
    endpoints.lost("a")
    endpoints.serves("a")
    with pytest.raises(ModelMismatchError):
        endpoints.told("a", "new", 1)
    endpoints.lost("b")  # it may come back with any model
    endpoints.serves("b")
    endpoints.told("a", "new", 1)
    endpoints.told("b", "new", 1)


def test_a_model_that_changed_everywhere_unseen_fails_one_request(clock: Clock) -> None:
    endpoints = made(clock, "a", "b")
    endpoints.told("a", "old", 1)
    endpoints.told("b", "old", 1)
    clock.now += 600  # both are restarted, while no call is there to notice it
    with pytest.raises(ModelMismatchError):
        endpoints.told("b", "new", 1)
    endpoints.told("b", "new", 1)  # also if no request goes to a, such as a standby
    endpoints.told("a", "new", 1)


def test_a_verifier_gone_from_behind_a_name_is_released(clock: Clock) -> None:
    endpoints = made(clock, "verifiers.test:1")
    endpoints.update({"verifiers.test:1": ("a", "b")})
    taken = [endpoints.take(b"%d" % number) for number in range(20)]
    endpoints.update({"verifiers.test:1": ("b", "c")})
    endpoints.told("a", "x", 5)
    endpoints.lost("a")
    endpoints.serves("a")
    assert endpoints.replaceable("a"), "any that is there may have the numerics it had"
    for address in taken:
        endpoints.release(address)
    assert [(each.address, each.in_flight) for each in endpoints.statuses()] == [("b", 0), ("c", 0)]
