"""Requests divided by shares."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway_service.models.models import Shares

WEIGHTS = st.lists(st.integers(0, 20), min_size=1, max_size=5).filter(any)


@given(WEIGHTS, st.integers(1, 100))
def test_every_prefix_of_the_choices_has_the_shares(weights: list[int], number: int) -> None:
    shares = Shares([float(weight) for weight in weights])
    counted = Counter(shares.choose() for _ in range(number))
    for index, weight in enumerate(weights):
        expected = number * weight / sum(weights)
        assert abs(counted[index] - expected) <= len(weights)
        assert weight or not counted[index]


@given(WEIGHTS)
def test_a_round_is_exact(weights: list[int]) -> None:
    shares = Shares([float(weight) for weight in weights])
    counted = Counter(shares.choose() for _ in range(sum(weights)))
    assert [counted[index] for index in range(len(weights))] == weights
