"""Distributions of a reference in llama-perplexity's format, and distances from them."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers.log_probabilities import Reference, first_scored, quality, write

LOGITS = np.random.default_rng(0).normal(0, 3, (3, 5)).astype(np.float32)


def test_a_distribution_has_no_distance_from_itself() -> None:
    reference = Reference.of(LOGITS)
    text = LOGITS.argmax(1)
    found = quality([LOGITS + 7], [reference], [text])
    assert found.divergence == pytest.approx(0, abs=1e-4)  # a step of 16 bits
    losses = np.log(np.exp(LOGITS.astype(np.float64)).sum(1)) - LOGITS.max(1)
    assert found.perplexity == pytest.approx(np.exp(losses.mean()), rel=1e-6)
    assert found.positions == 3


def test_a_distance_is_that_of_the_definition() -> None:
    half, skewed = np.zeros((1, 2), np.float32), np.log(np.array([[0.9, 0.1]], np.float32))
    found = quality([skewed], [Reference.of(half)], [np.array([1])])
    assert found.divergence == pytest.approx(0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1), rel=1e-5)
    assert found.perplexity == pytest.approx(10, rel=1e-5)


def test_the_file_has_the_layout_of_llama_perplexity(tmp_path: Path) -> None:
    tokens = np.arange(8)[None]
    write(tmp_path / "file", tokens, 5, [Reference.of(LOGITS)])
    data = (tmp_path / "file").read_bytes()
    assert first_scored(8) == 4  # positions 4 to 6
    assert data[:8] == b"_logits_" and np.frombuffer(data[8:52], np.int32).tolist() == [8, 5, 1, *range(8)]
    rows = np.frombuffer(data[52:], np.uint16).reshape(3, 4 + 6)  # two floats, and an even number of counts
    step, floor = rows[:, :4].copy().view(np.float32).T
    decoded = step[:, None] * rows[:, 4:9] + floor[:, None]
    np.testing.assert_allclose(decoded, Reference.of(LOGITS).log_probabilities, atol=1e-6)
