"""The benchmark of learning: texts with probabilities, and the comparison of two trainings."""

import numpy as np
import pytest

from benchmarks.real.learning import compared, texts_with_probabilities
from tests.harness.engine.engines import packed, random_tokens, tiny_model


def test_texts_come_with_the_probabilities_of_their_tokens() -> None:
    model = packed(tiny_model("Llama"), 1000)
    prompts = [random_tokens(length, seed=length) for length in (5, 9)]
    texts = texts_with_probabilities(model, prompts, 8)
    assert [text.prompt.tolist() for text in texts] == prompts
    assert [text.top.token_ids.shape for text in texts] == [(len(text.output), 8) for text in texts]
    greedy = texts[0]
    assert greedy.top.token_ids[:, 0].tolist() == greedy.output.tolist(), "at temperature 0"
    assert (np.diff(greedy.top.log_probs.astype(np.float32), axis=1) <= 0).all()


def test_the_difference_comes_with_its_error() -> None:
    figures = compared({"before": [True] * 4, "tokens": [True, False] * 2, "probabilities": [True, True, True, False]})
    assert (figures["before"], figures["tokens"], figures["probabilities"]) == (1.0, 0.5, 0.75)
    assert figures["probabilities - tokens"] == pytest.approx(0.25)
    assert figures["standard error of that"] == pytest.approx(np.std([0, 1, 0, 0]) / 2, abs=1e-3)
    assert compared({"before": [True], "tokens": [True]}) == {"before": 1.0, "tokens": 1.0}
