"""Rates of timed batches."""

from benchmarks.harness.rates import whole_rate
from draftwire_tools.turns import Arrival, Batch, Request


def test_the_whole_rate_counts_from_the_first_request_to_the_last_token() -> None:
    one = Request((Arrival(3.0, 2), Arrival(3.5, 3)), (1, 2, 3, 4, 5), asked_at=1.0)
    other = Request((Arrival(4.0, 1), Arrival(6.0, 4)), (1, 2, 3, 4, 5), asked_at=2.0)
    assert whole_rate([Batch((one, other))]) == 10 / 5.0
