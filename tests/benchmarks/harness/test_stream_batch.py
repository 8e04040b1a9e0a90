"""Rates of requests that run side by side."""

import pytest

from benchmarks.harness.stream_batch import Arrival, Stream, StreamBatch, quantile


def stream(*arrivals: tuple[float, int]) -> Stream:
    tokens = tuple(range(sum(count for _, count in arrivals)))
    return Stream(tuple(Arrival(*arrival) for arrival in arrivals), tokens, len(arrivals), 0, 0, 0)


def test_a_stream_alone_counts_from_its_first_tokens() -> None:
    batch = StreamBatch((stream((1.0, 3), (2.0, 4), (4.0, 6)),))
    assert batch.window == (1.0, 4.0)
    assert (batch.seconds, batch.tokens) == (3.0, 10.0)


def test_what_one_does_before_or_after_the_others_counts_for_nothing() -> None:
    early = stream((0.0, 1), (1.0, 9), (3.0, 4), (4.0, 2))
    late = stream((2.0, 1), (3.0, 1), (4.0, 1), (6.0, 90))
    batch = StreamBatch((early, late))
    assert batch.window == (2.0, 4.0)
    assert batch.tokens == pytest.approx(2 + 2 + 1 + 1)  # half of the four tokens that came a second after the start


def test_streams_that_never_met_have_no_rate() -> None:
    batch = StreamBatch((stream((0.0, 1), (1.0, 1)), stream((2.0, 1), (3.0, 1))))
    with pytest.raises(ValueError, match="2 requests never ran all at once"):
        batch.seconds  # noqa: B018


def test_what_a_caller_waits_for() -> None:
    one = Stream((Arrival(3.0, 2), Arrival(3.5, 3)), (1, 2, 3, 4, 5), 2, 0, 0, 0, asked_at=1.0)
    other = Stream((Arrival(4.0, 1), Arrival(6.0, 4)), (1, 2, 3, 4, 5), 2, 0, 0, 0, asked_at=2.0)
    assert (one.first_token_seconds, one.gaps) == (2.0, [0.5, 0.0, 0.0])
    assert StreamBatch((one, other)).whole_rate == 10 / 5.0


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 2), (0.75, 3), (0.95, 4), (1.0, 4)])
def test_quantiles(share: float, expected: float) -> None:
    assert quantile([4, 1, 3, 2], share) == expected
