"""A text in the draft model's tokens is what the translating drafter has read of it when it is served."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.translation.translating import TranslatingDrafter
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.training.learning.texts.draft_text import DraftText, read_text
from draftwire_core.training.learning.texts.top_tokens import TopTokens
from tests.harness.engine.engines import packed
from tests.harness.engine.special_models import quick_model
from tests.harness.engine.translation import KINDS, token_map, vocabulary
from tests.harness.models.byte_tokenizers import TEXT


@pytest.mark.parametrize("draft", [kind for kind in KINDS if kind != "target"])
def test_it_is_read_as_a_drafter_reads_it_that_serves(draft: str) -> None:
    translation = token_map("target", draft)
    tokens = [*translation.target.opening, *translation.target.encode(TEXT[1].encode() + b"\n\n" + TEXT[0].encode())]
    model = packed(quick_model(vocab_size=len(vocabulary(draft))))
    for first in (1, 9, len(tokens) - 1):
        drafter = TranslatingDrafter(model, translation)
        drafter.open("a", DraftSpec(tokens[:first], SamplingParams(), 8, len(tokens) + 8))
        for end in range(first + 1, len(tokens) + 1):
            drafter.commit("a", end, [tokens[end - 1]])
        read = read_text(tokens[:first], tokens[first:], translation, TopTokens.none(len(tokens) - first))
        assert read is not None
        assert read.tokens.tolist() == drafter._drafts["a"].tokens
        prompt = translation.draft.spell(read.tokens[: read.first].tolist())
        if read.first > 1:  # the first token is never learned, and has a whole line in one of these vocabularies
            assert translation.target.spell(tokens[:first]).startswith(prompt), "no token of the output is left out"


def test_without_translation_the_tokens_are_the_targets() -> None:
    read = read_text([4, 5], [6, 7, 8], None, TopTokens.none(3))
    assert read is not None
    assert (read.tokens.tolist(), read.first, read.positions) == ([4, 5, 6, 7, 8], 2, 3)
    assert read_text([4, 5], [], None, TopTokens.none(0)) is None


@given(st.integers(2, 12), st.integers(2, 60), st.integers(1, 59))
def test_windows_have_each_token_of_the_output_once(size: int, length: int, first: int) -> None:
    first = min(first, length - 1)
    tokens = np.arange(100, 100 + length, dtype=np.int32)
    top = TopTokens(tokens[first:, None] + 300, np.zeros((length - first, 1), np.float16))
    text = DraftText(tokens, first, top)
    windows = list(text.windows(size, 1000))
    learned = [token for window in windows for token in window.token_ids[:, 0].tolist()]
    assert learned == text.tokens[text.first :].tolist()
    for window in windows:
        assert len(window.tokens) <= size
        assert window.tokens[0] == 100
        assert all(after == before + 1 for before, after in pairwise(window.tokens[1:].tolist()))
        assert window.first + window.positions == len(window.tokens)
        assert (window.token_ids[:, 1] == window.token_ids[:, 0] + 300).all()
        assert np.exp(window.log_probs[:, :2]).tolist() == [[0, 1]] * window.positions
    assert all(window.first >= size // 2 for window in windows[1:]), "half of it is what is before"


def test_without_translation_the_likeliest_tokens_are_the_targets() -> None:
    top = TopTokens(np.array([[6, 9], [7, 1], [2, 8]], np.int32), np.full((3, 2), -0.7, np.float16))
    read = read_text([4, 5], [6, 7, 8], None, top)
    assert read is not None
    assert read.top.token_ids.tolist() == top.token_ids.tolist()


@pytest.mark.parametrize("draft", [kind for kind in KINDS if kind != "target"])
def test_likeliest_tokens_give_their_probability_to_the_draft_tokens_that_they_begin_with(draft: str) -> None:
    translation = token_map("target", draft)
    target = translation.target
    tokens = [*target.opening, *target.encode(f"{TEXT[1]}\n\n{TEXT[0]}".encode())]
    first = 9
    output = tokens[first:]
    others = [len(target) + 5, target.by_spelling[b"a"]]  # an id of padding, and a token that has one piece
    ids = np.array([[token, *others] for token in output], np.int32)
    top = TopTokens(ids, np.tile(np.array([-0.5, -1.5, -2.5], np.float16), (len(output), 1)))
    read = read_text(tokens[:first], output, translation, top)
    assert read is not None
    known = np.isfinite(read.top.log_probs).any(1)
    assert known.mean() > 0.3
    spelled = translation.draft.spell
    places = {len(target.spell(tokens[:end])): end - first for end in range(first, len(tokens))}
    for position in range(read.positions):
        index = places.get(len(spelled(read.tokens[: read.first + position].tolist())))
        own = int(read.tokens[read.first + position])
        begins = index is not None and translation.pieces[output[index]][:1] == (own,)
        assert known[position] == begins
        if begins:
            assert read.top.token_ids[position].tolist() == [own, 0, translation.pieces[others[1]][0]]
            assert read.top.log_probs[position].tolist() == [-0.5, -np.inf, -2.5]
