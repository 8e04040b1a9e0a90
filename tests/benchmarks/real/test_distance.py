"""Distances of outputs and logits."""

import numpy as np
import pytest

from benchmarks.real.distance import divergences, equal_outputs, parting


def test_outputs_are_equal_if_all_their_tokens_are() -> None:
    assert equal_outputs([[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 5], [5, 6]]) == 2
    assert parting([1, 2, 3], [1, 2, 3]) is None
    assert parting([1, 2, 3], [1, 4, 3]) == 1


def test_divergences_are_those_of_the_definition_after_each_token() -> None:
    reference = np.log(np.array([[0.5, 0.5], [0.9, 0.1]], np.float32))
    logits = np.log(np.array([[0.9, 0.1], [0.9, 0.1]], np.float32)) + 7
    expected = 0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1)
    np.testing.assert_allclose(divergences(reference, logits), [expected, 0], atol=1e-6)


def test_other_numbers_of_positions_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="zip"):
        divergences(np.zeros((2, 3)), np.zeros((1, 3)))
