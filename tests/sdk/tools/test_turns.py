"""The stopwatch: rates of requests that run side by side, and the order of turns."""

from collections import Counter
from itertools import pairwise, permutations

import pytest

from draftwire_tools.turns import Arrival, Batch, Request, quantile, turned, turns


def request(*arrivals: tuple[float, int]) -> Request:
    tokens = tuple(range(sum(count for _, count in arrivals)))
    return Request(tuple(Arrival(*arrival) for arrival in arrivals), tokens)


def test_a_request_alone_counts_from_its_first_tokens() -> None:
    batch = Batch((request((1.0, 3), (2.0, 4), (4.0, 6)),))
    assert batch.window == (1.0, 4.0)
    assert (batch.seconds, batch.tokens) == (3.0, 10.0)


def test_what_one_does_before_or_after_the_others_counts_for_nothing() -> None:
    early = request((0.0, 1), (1.0, 9), (3.0, 4), (4.0, 2))
    late = request((2.0, 1), (3.0, 1), (4.0, 1), (6.0, 90))
    batch = Batch((early, late))
    assert batch.window == (2.0, 4.0)
    assert batch.tokens == pytest.approx(2 + 2 + 1 + 1)  # half of the four tokens that came a second after the start


def test_requests_that_never_met_have_no_rate() -> None:
    batch = Batch((request((0.0, 1), (1.0, 1)), request((2.0, 1), (3.0, 1))))
    with pytest.raises(ValueError, match="2 requests never ran all at once"):
        batch.seconds  # noqa: B018


def test_what_a_caller_waits_for() -> None:
    one = Request((Arrival(3.0, 2), Arrival(3.5, 3)), (1, 2, 3, 4, 5), asked_at=1.0)
    assert (one.first_token_seconds, one.gaps) == (2.0, [0.5, 0.0, 0.0])


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 2), (0.75, 3), (0.95, 4), (1.0, 4)])
def test_quantiles(share: float, expected: float) -> None:
    assert quantile([4, 1, 3, 2], share) == expected


def test_each_way_does_each_work_in_each_run() -> None:
    planned = list(turns("abc", ["first", "second"], range(2)))
    assert [(each.run, each.number, each.work) for each in planned[::3]] == [
        (run, number, work) for run in range(2) for number, work in enumerate(["first", "second"])
    ]
    orders = ["".join(each.way for each in planned[first : first + 3]) for first in range(0, len(planned), 3)]
    assert {"".join(sorted(order)) for order in orders} == {"abc"}
    assert len(set(orders)) == 3


@pytest.mark.parametrize("count", range(1, 9))
def test_each_has_each_place_and_follows_each_other_equally_often(count: int) -> None:
    turns = count * (1 + count % 2)
    orders = [turned(range(count), by) for by in range(turns)]
    assert all(sorted(order) == list(range(count)) for order in orders)
    for place in range(count):
        assert set(Counter(order[place] for order in orders).values()) == {turns // count}
    pairs = Counter(pair for order in orders for pair in pairwise(order))
    assert set(pairs) == set(permutations(range(count), 2))
    assert len(set(pairs.values())) <= 1
