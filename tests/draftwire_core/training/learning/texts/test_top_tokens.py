"""The target's likeliest tokens of a text: as they are served, as they are stored, and as they are learned."""

from dataclasses import replace

import numpy as np
import pytest

from draftwire import ServedRequest, SpeculationStats, TokenLogProb, TokenLogProbs
from draftwire_core.training.learning.texts.top_tokens import TOP, TopTokens

SERVED = ServedRequest([1, 2], [5, 6, 7], SpeculationStats(1, 0, 0, 0, 0, []), [])
OWN = np.array([5, 6, 7], np.int32)


def served(count: int, top: int = 2) -> ServedRequest:
    """Returns a request with likeliest tokens for its last positions."""
    numbers = count * top
    return replace(SERVED, top=top, top_token_ids=range(10, 10 + numbers), top_log_probs=[-0.5, -1.5] * (numbers // 2))


def test_the_last_positions_have_those_that_are_reported() -> None:
    whole = TopTokens.served(served(3))
    assert whole.token_ids.tolist() == [[10, 11], [12, 13], [14, 15]]
    assert whole.log_probs.tolist() == [[-0.5, -1.5]] * 3
    late = TopTokens.served(served(1))
    assert late.token_ids.tolist() == [[0, 0], [0, 0], [10, 11]]
    assert np.isneginf(late.log_probs[:2]).all()


@pytest.mark.parametrize(
    "request_",
    [SERVED, served(4), replace(served(3), top_token_ids=[1, 2, 3, 4, 5]), replace(served(3), top_log_probs=[-1.0])],
)
def test_a_verifier_that_reports_none_or_does_not_fit_leaves_the_tokens_alone(request_: ServedRequest) -> None:
    assert TopTokens.served(request_).token_ids.shape == (3, 0)


def test_those_of_a_request_of_the_learners_own() -> None:
    def row(*tokens: int) -> TokenLogProbs:
        likeliest = [TokenLogProb(token, -token / 10, "", b"") for token in tokens]
        return TokenLogProbs(likeliest[0], 1, likeliest)

    found = TopTokens.reported([row(4, 9), row(*range(1, 12))])
    assert found.token_ids.tolist() == [[4, 9, 0, 0, 0, 0, 0, 0], [*range(1, 9)]]
    assert found.log_probs[0, :3].tolist() == [np.float16(-0.4), np.float16(-0.9), -np.inf]


@pytest.mark.parametrize("top", [0, 3])
def test_what_is_stored_is_read(top: int) -> None:
    values = np.arange(4 * top, dtype=np.float32).reshape(4, top)
    stored = TopTokens(values.astype(np.int32), -values.astype(np.float16) / 7)
    data = stored.encoded()
    assert len(data) == TopTokens.size_of(4, top)
    again = TopTokens.decoded(data, 4, top)
    assert np.array_equal(again.token_ids, stored.token_ids)
    assert np.array_equal(again.log_probs, stored.log_probs)


def test_probabilities_are_those_among_the_likeliest_tokens() -> None:
    token_ids, log_probs = TopTokens.served(served(3)).targets(OWN, 100)
    assert token_ids.shape == log_probs.shape == (3, 1 + TOP)
    assert token_ids[:, 0].tolist() == OWN.tolist()
    share = 1 / (1 + np.exp(-1.0))
    assert np.exp(log_probs[1, :3]) == pytest.approx([0.0, share, 1 - share], abs=1e-6)
    assert np.exp(log_probs).sum(1) == pytest.approx([1.0] * 3)


def test_where_none_are_known_the_texts_token_is_certain() -> None:
    for some in (TopTokens.none(3), TopTokens.served(served(1))):
        token_ids, log_probs = some.targets(OWN, 100)
        assert np.exp(log_probs[:2]).tolist() == [[1.0] + [0.0] * TOP] * 2
        assert token_ids[:, 0].tolist() == OWN.tolist()


def test_tokens_that_the_draft_model_lacks_have_no_probability() -> None:
    token_ids, log_probs = TopTokens.served(served(3)).targets(OWN, 13)
    assert np.exp(log_probs[1, :3]).tolist() == [0.0, 1.0, 0.0]
    assert np.exp(log_probs[2, :3]).tolist() == [1.0, 0.0, 0.0]
    assert token_ids.max() < 13


def test_more_than_are_learned_are_cut() -> None:
    token_ids, log_probs = TopTokens.served(served(3, TOP + 2)).targets(OWN, 1000)
    assert token_ids[0, 1:].tolist() == [*range(10, 10 + TOP)]
    assert np.exp(log_probs).sum(1) == pytest.approx([1.0] * 3)
