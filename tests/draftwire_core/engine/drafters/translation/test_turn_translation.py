"""The target's turn markers, read as those of the draft model."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.model.context_window import ContextWindow
from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.drafters.translation.translated_draft import TranslatedDraft
from draftwire_core.engine.drafters.translation.translating import TranslatingDrafter
from draftwire_core.engine.drafters.translation.turn_translation import TurnTranslation
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.turn_markers import START, Turn
from draftwire_core.engine.text.vocabulary import Vocabulary, special_symbol
from tests.harness.engine.drafter_reader import DrafterReader
from tests.harness.engine.engines import packed
from tests.harness.engine.special_models import quick_model
from tests.harness.models.byte_tokenizers import backend

END = special_symbol(0)
"""The one special token of either vocabulary."""
TARGET = {
    Turn.START_USER: f"{START}[ask] ",
    Turn.USER_PROMPT: f"{END}\n[self]\n\n",
    Turn.USER_ASSISTANT: f"{END}\n[self]\n",
    Turn.ASSISTANT_USER: f"{END}{END}[ask] ",
    Turn.USER: "[other] ",
    Turn.PROMPT: "[a",  # too little to be a marker
}
DRAFT = {
    Turn.START_USER: f"{START}You are self.{END}other:",
    Turn.USER_PROMPT: f"{END}self, think:",
    Turn.USER_ASSISTANT: f"{END}self:",
    Turn.ASSISTANT_USER: f"{END}\nother:",
    Turn.USER: "other:",
    Turn.PROMPT: "self:",
}
PARTS = st.lists(
    st.sampled_from(
        [None, b"\n", b"[self]\n", b"[self", b"]", b"[ask] ", b"[as", b"k] ", b"[other] ", b" import", b"\xe6"]
    ),
    max_size=14,
)


def chatting(kind: str, turns: dict[Turn, str]) -> Vocabulary:
    made = Vocabulary(backend(kind), {"eos": 0})
    made.turns = turns
    return made


TOKEN_MAP = TokenMap(chatting("target", TARGET), chatting("draft", DRAFT))


def spec(tokens: list[int]) -> DraftSpec:
    return DraftSpec(tokens, SamplingParams(temperature=0.0), 8, 1000, len(TOKEN_MAP.target))


def opened(tokens: list[int]) -> TranslatedDraft:
    return TranslatedDraft(spec(tokens), TOKEN_MAP, ContextWindow(1000, 1000))


def read(draft: TranslatedDraft) -> str:
    return TOKEN_MAP.draft.symbols(draft.tokens)


def tokens_of(parts: list[bytes | None]) -> list[int]:
    encoded = ([0] if part is None else TOKEN_MAP.target.encode(part) for part in parts)
    return [token for part in encoded for token in part]


def test_each_marker_becomes_the_draft_models() -> None:
    asked = tokens_of([b"[ask] ", b"imp", None, b"\n[self]\n", b"ort", None, None, b"[ask] x[other] y"])
    assert read(opened(asked)) == f"You are self.{END}other:imp{END}self:ort{END}\nother:xother:y"


def test_a_longer_marker_counts_and_what_is_none_is_read_as_text() -> None:
    assert read(opened(tokens_of([b"x", None, b"\n[self]\n\ny"]))) == f"x{END}self, think:y"
    assert read(opened(tokens_of([b"[a", None, b"\n[sel", None]))) == f"[a{END}\n[sel{END}"


def test_a_prompt_that_begins_more_than_the_draft_model_knows_keeps_it_as_text() -> None:
    alike = {**DRAFT, Turn.USER_PROMPT: DRAFT[Turn.USER_ASSISTANT]}
    made = TurnTranslation.of({**TARGET, Turn.USER_PROMPT: f"{TARGET[Turn.USER_ASSISTANT]}<think>"}, alike, {})
    assert made is not None
    assert made.translate(f"x{END}\n[self]\n<think>") == f"x{END}self:<think>"
    assert TurnTranslation.of(TARGET, {}, {}) is None


@given(parts=PARTS, seed=st.integers(0, 99))
@example(parts=[b"[ask] ", None, b"\n[self]\n", b"\n", None, None, b"[as", b"k] "], seed=3)
@example(parts=[b"x", None, None, b"\n[self]\n", b"]"], seed=1)
def test_any_verdicts_give_the_same_context(parts: list[bytes | None], seed: int) -> None:
    tokens = tokens_of([b"[as", *parts])
    rng = random.Random(seed)
    at = rng.randint(1, len(tokens))
    draft = opened(tokens[:at])
    while at < len(tokens):
        step = rng.randint(1, 4)
        draft.commit(tokens[at : at + step])
        at += step
    assert TOKEN_MAP.turns is not None
    assert read(draft) == read(opened(tokens)) == TOKEN_MAP.turns.translate(START + TOKEN_MAP.target.symbols(tokens))


@pytest.mark.parametrize("seed", range(3))
def test_markers_that_are_drafted_are_replaced_once_committed(seed: int) -> None:
    """Nodes below a marker that a verdict has completed stay in the tree, and are read after the marker."""
    rng = random.Random(seed)
    drafter = TranslatingDrafter(packed(quick_model(vocab_size=len(TOKEN_MAP.draft)), 800), TOKEN_MAP)
    tokens = tokens_of([b"[ask] import"])
    reader = DrafterReader(drafter, tokens, max_tree_nodes=8, max_length=400, vocab_size=len(TOKEN_MAP.target))
    reader.grow()
    draft = drafter._drafts[reader.key]
    ahead = tokens_of([None, b"\n[self]\n", b"\n", b"ort", None, None, b"[ask] self"])
    survived = 0
    while ahead:
        node = draft.tree.root
        for token in ahead[:6]:  # as if the model had drafted it
            child, new = draft.tree.add(node, token, -0.1, "draft")
            if new:
                draft.spell(child, node, TOKEN_MAP.spelled(token))
            node = child
        for _ in range(rng.randint(0, 4)):
            drafter.grow()
        step = rng.randint(1, 3)
        verdict, ahead = ahead[:step], ahead[step:]
        before = read(draft)
        tokens += verdict
        drafter.commit(reader.key, len(tokens), verdict)
        assert read(draft) == read(opened(tokens))
        survived += draft.tree.size > 0 and not read(draft).startswith(before)
        held = [slot for node in draft.tree.nodes() for slot in draft.spelling(node).slots]
        assert len(held) + len(draft.slots) == drafter.model.pool.used
    assert survived
    drafter.close(reader.key)
    assert drafter.model.pool.used == 0
