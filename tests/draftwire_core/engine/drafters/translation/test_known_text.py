"""What is drafted for a target by a model that knows its text by heart, in tokens of another vocabulary."""

import pytest
import torch

from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.translation.local_translating import RoundTranslatingDrafter
from draftwire_core.engine.drafters.translation.translating import TranslatingDrafter
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import generate_all
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.attached_engine import Attached
from tests.harness.engine.engines import packed
from tests.harness.engine.known_text import KnownText, KnownTextDrafting
from tests.harness.engine.special_models import quick_model
from tests.harness.engine.translation import KINDS, token_map, vocabulary
from tests.harness.models.byte_tokenizers import TEXT

PAIRS = [(target, draft) for target in KINDS for draft in KINDS if target != draft]
LEAST = 0.8
"""Share of the tokens that are drafted rightly. The vocabularies are small: many a token ends within a word."""


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_most_of_a_known_text_is_drafted(target: str, draft: str) -> None:
    translation = token_map(target, draft)
    text = TEXT[1].encode() + b"    if self:\n        return other\n\n" + TEXT[0].encode()
    tokens = [*translation.target.opening, *translation.target.encode(text)]
    assert KnownTextDrafting(translation, tokens).share >= LEAST


@pytest.mark.parametrize(("target", "draft", "passes"), [("draft", "fallback", 0.69), ("fallback", "target", 0.83)])
def test_an_answer_is_the_pass_of_the_child_that_it_spells(target: str, draft: str, passes: float) -> None:
    """passes: of the draft model for each token; with one for each answer and one for each child they are 0.72 and
    0.91."""
    translation = token_map(target, draft)
    text = TEXT[1].encode() + b"    if self:\n        return other\n\n" + TEXT[0].encode()
    known = KnownTextDrafting(translation, [*translation.target.opening, *translation.target.encode(text)])
    assert known.passes <= passes * (known.accepted + known.steps)


def test_a_question_promises_children_and_grandchildren() -> None:
    translation = token_map("target", "draft")
    tokens = translation.target.encode(TEXT[0].encode())
    model = KnownText(translation, tokens)
    drafter = RoundTranslatingDrafter(model, translation, TreeGrowth())  # type: ignore[arg-type]
    drafter.open(0, DraftSpec(tokens[:8], SamplingParams(temperature=0.0), 8, len(tokens), len(translation.target)))
    while not drafter._questions.of(0):
        drafter.grow()
    questions = len(drafter._questions.of(0))
    outlook = drafter.outlook()
    assert len(outlook.gains) >= (questions + 1) * TreeGrowth().width
    assert sum(outlook.gains[: TreeGrowth().width]) < sum(outlook.gains[-TreeGrowth().width :])


def test_special_tokens_of_the_same_role_are_drafted() -> None:
    translation = token_map("target", "spaced")
    word = translation.target.encode(b" other one")
    tokens = [*word, 0, *word, 0, *word, 0]
    known = KnownTextDrafting(translation, tokens, prompt=2)
    assert not known.wrong


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("draft", ["draft", "spaced"])
def test_no_token_changes(draft: str, temperature: float) -> None:
    target = quick_model(vocab_size=len(vocabulary("target")))
    texts = [vocabulary("target").encode(text.encode())[:12] for text in TEXT]
    specs = [
        SequenceSpec(index, text, len(text) + 16, SamplingParams(temperature=temperature, seed=index))
        for index, text in enumerate(texts)
    ]
    torch.manual_seed(1)
    outputs = []
    for drafts in (False, True):
        engine = Attached(packed(target), StepCost([1], [1.0]), EngineLimits(max_tree_nodes=6))
        if drafts:
            model = packed(quick_model(vocab_size=len(vocabulary(draft))))
            engine.add_drafter("translating", TranslatingDrafter(model, token_map("target", draft)))
        outputs.append(generate_all(engine, specs))
    assert outputs[0] == outputs[1]


def test_noise_chooses_no_longer_token_that_the_model_does_not_expect() -> None:
    """Where a draft token has mostly been a whole token, the learned shares of longer ones are small, not zero."""
    translation = token_map("target", "draft")
    longer = [pieces for pieces in translation.pieces if len(pieces) > 1]
    token = next(
        token
        for token, pieces in enumerate(translation.pieces)
        if len(pieces) == 1
        and translation.draft.encode(translation.target.spellings[token] * 25) == [pieces[0]] * 25
        and any(each[0] == pieces[0] for each in longer)
        and not any(each[:2] == (pieces[0], pieces[0]) for each in longer)
    )
    wrong = 0
    for seed in range(100):
        drafter = TranslatingDrafter(KnownText(translation, [token] * 25), translation)  # type: ignore[arg-type]
        sampling = SamplingParams(temperature=1.0, seed=seed)
        drafter.open(0, DraftSpec([token] * 18, sampling, 4, 24, len(translation.target)))
        proposal = None
        while proposal is None:
            proposal = drafter.grow().proposals.get(0)
        wrong += proposal.token_ids[0] != token
    assert not wrong
