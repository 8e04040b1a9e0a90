"""Distances of outputs and logits."""

import numpy as np
import pytest

from benchmarks.real.distance import (
    BASE,
    OURS,
    PROMPTS,
    Answers,
    compare,
    divergences,
    equal_outputs,
    parting,
    ratio,
    share,
)


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


def test_the_interval_of_a_share_is_wilsons() -> None:
    assert share(5, 8) == "5 of 8 (31 to 86 %)"
    assert share(8, 8) == "8 of 8 (68 to 100 %)"
    assert share(0, 48) == "0 of 48 (0 to 7 %)"


def test_the_interval_of_a_ratio_draws_whole_texts() -> None:
    one, other = np.array([1.0, 1.0, 4.0, 4.0]), np.array([2.0, 2.0, 2.0, 2.0])
    assert ratio(one, other, [2, 2]) == "1.250 (0.500 to 2.000)"
    assert ratio(one, other, [4]) == "1.250 (1.250 to 1.250)"
    assert ratio(other, other, [2, 2]) == "1.000 (1.000 to 1.000)"


def test_engines_are_compared_with_llama_cpp_and_with_float32() -> None:
    reference = np.array([[0.0, 1.0], [1.0, 0.0]], np.float32)
    outputs = [[1, 2]] * len(PROMPTS) + [[3, 4]] * 2
    base = Answers(outputs, reference * 1.5)
    ours = Answers([[1, 3], *outputs[1:-1], [3, 5]], reference * 2)
    found = compare(reference, {OURS: ours, BASE: base, "another": base}, [1, 1])
    assert found[f"{OURS}: equal outputs"] == len(PROMPTS) - 1
    assert found[f"{OURS}: equal outputs of all"] == share(len(PROMPTS), len(PROMPTS) + 2)
    assert found["another: equal outputs"] == len(PROMPTS)
    assert found["another: divergence, largest"] == found[f"{BASE}: divergence, largest"]
    assert found[f"another: divergence from {BASE}, mean"] == pytest.approx(0, abs=1e-12)
    assert found[f"{OURS}: divergence, mean"] == pytest.approx(divergences(reference, ours.logits).mean())
    assert found[f"{OURS}: divergence from {BASE}, mean"] == pytest.approx(divergences(base.logits, ours.logits).mean())
