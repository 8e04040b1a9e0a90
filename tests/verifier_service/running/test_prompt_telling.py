"""Reports of a prompt are bounded in size, in order, and complete."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from draftwire.v1.verifier_service_pb2 import PromptReport
from draftwire_core.engine.sampling.log_probs import LogProbs
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.models.byte_tokenizers import END, backend
from verifier_service.running import prompt_telling
from verifier_service.running.prompt_telling import PromptTelling

TEXT = "naïve 日本 🐍 self(other)"


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend("target"), eos_token=END["target"]))


def told(tokens: list[int], first: int, top: int) -> LogProbs:
    """Returns log-probabilities that identify their tokens."""
    places = np.arange(first, first + len(tokens))
    return LogProbs(
        token_ids=np.array(tokens, dtype=np.int64),
        log_probs=-places.astype(np.float32),
        ranks=places,
        top_ids=np.tile(np.arange(top), (len(tokens), 1)),
        top_log_probs=np.zeros((len(tokens), top), dtype=np.float32),
    )


def collect(telling: PromptTelling) -> list[PromptReport]:
    reports = []
    while telling.ready:
        reports.append(telling.next())
    return reports


@pytest.mark.parametrize("top", [None, 0, 3])
@given(most=st.integers(1, 60), steps=st.lists(st.integers(1, 12), min_size=30, max_size=30), known=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_the_parts_are_the_whole(top: int | None, most: int, steps: list[int], known: int) -> None:
    prompt = tokenizer().encode(TEXT)
    following = [*prompt, *[5] * known]  # output that a resumed request already has is reported with the prompt
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_telling, "MOST_ENTRIES", most)
        telling = PromptTelling(prompt, tokenizer(), top)
        limit = max(1, most // (1 + (top or 0)))
        reports, first = collect(telling), 1
        while top is not None and first < len(following):
            part = following[first : first + steps.pop()]
            telling.take(told(part, first, top))
            first += len(part)
            reports += collect(telling)
    assert [token for report in reports for token in report.token_ids] == prompt
    assert "".join(report.text for report in reports) == TEXT
    assert all(len(report.token_ids) == limit for report in reports[:-1])
    assert len(reports[-1].token_ids) <= limit
    offsets = [offset for report in reports for offset in report.text_offsets]
    texts = [text for report in reports for text in report.token_texts]
    for text, offset in zip(texts, offsets, strict=True):
        assert "\N{REPLACEMENT CHARACTER}" in text or TEXT.startswith(text, offset)
    log_probs = [each for report in reports for each in report.log_probs]
    if top is None:
        assert not log_probs
        return
    assert not log_probs[0].HasField("token")
    assert [each.token.token_id for each in log_probs[1:]] == prompt[1:]
    assert [each.token.log_prob for each in log_probs[1:]] == [-place for place in range(1, len(prompt))]
    assert {len(each.top) for each in log_probs[1:]} == {top}


def test_a_short_prompt_comes_in_one() -> None:
    prompt = tokenizer().encode(TEXT)
    telling = PromptTelling(prompt, tokenizer(), 3)
    for first in range(1, len(prompt)):
        assert not telling.ready
        telling.take(told(prompt[first : first + 1], first, 3))
    (report,) = collect(telling)
    assert len(report.token_ids) == len(report.log_probs) == len(prompt)
