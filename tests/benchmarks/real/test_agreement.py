"""Agreement of two models on a text, and the guesses of a translated drafter, by a model that knows the text."""

import pytest

from benchmarks.real.agreement import Written, agreement, groups, guesses, guessing, verifications
from draftwire_core.engine.drafters.translation.translating import TranslatingDrafter
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.known_text import KnownText
from tests.harness.engine.translation import token_map
from tests.harness.models.byte_tokenizers import TEXT

GREEDY = SamplingParams(temperature=0.0)


@pytest.mark.parametrize("draft", ["draft", "fallback"])
def test_who_knows_a_text_agrees_with_it_and_guesses_it(draft: str) -> None:
    translation = token_map("target", draft)
    tokens = translation.target.encode(TEXT[1].encode())[:50]
    model = KnownText(translation, tokens)
    known = Written("chat", tokens[:8], tokens[8:30], GREEDY)
    other = Written("chat", tokens[:8], [*tokens[8:14], tokens[15]], GREEDY)
    agreed = agreement(model, translation, [known, other])  # type: ignore[arg-type]
    assert all(agreed[0]) and len(agreed[0]) == len(known.output)
    assert agreed[1] == [True] * 6 + [False]
    found = guesses(guessing(model, translation), [known], len(translation.target))  # type: ignore[arg-type]
    assert sum(each[:1] == [token] for each, token in zip(found[0], known.output, strict=True)) > 18
    steps = verifications(TranslatingDrafter(model, translation), [known], len(translation.target))  # type: ignore[arg-type]
    assert 3 <= steps < 11
    assert model.pool.used == 0


def test_texts_without_an_output_are_left_out() -> None:
    assert [*groups([Written("chat", [1], [], GREEDY)])] == []
