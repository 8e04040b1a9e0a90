"""Translation between the tokenizers of published models."""

from functools import cache

import pytest

from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.drafters.translation.translating import TranslatingDrafter
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import generate_all
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.vocabulary import Vocabulary
from tests.harness.engine.attached_engine import Attached
from tests.harness.engine.engines import packed
from tests.harness.engine.known_text import KnownTextDrafting
from tests.harness.engine.special_models import quick_model
from tests.harness.engine.texts import TEXTS
from tests.harness.models.real_tokenizers import NAMES, real_tokenizer

pytestmark = pytest.mark.slow

LEAST = 0.9
"""Share of the tokens of each text that are drafted rightly by a model that knows it by heart."""
BUNDLED = ("target", "draft-other")
"""Vocabularies of Python code, in which a token of Chinese characters is more draft tokens than may draft it."""
NORMALISING = ("claude",)
"""Vocabularies whose tokenizer replaces characters (NFKC), such as wide punctuation and fractions: a text that has them
is another one in its tokens."""
UNLIKE = {(draft, "asian") for draft in BUNDLED + NORMALISING} | {(draft, "figures") for draft in NORMALISING}
"""Drafters' vocabularies and the texts that they cannot spell well."""


@cache
def vocabulary(name: str) -> Vocabulary:
    return real_tokenizer(name).vocabulary()


def small_model(name: str, slots: int) -> PackedModel:
    return packed(quick_model(vocab_size=len(vocabulary(name))), slots)


@pytest.mark.parametrize("target", NAMES)
def test_every_other_drafts_a_known_text_and_changes_no_token(target: str) -> None:
    encoded = {kind: real_tokenizer(target).encode(text)[:150] for kind, text in TEXTS.items()}
    model = small_model(target, 2000)
    specs = [
        SequenceSpec(index, tokens[:12], 20, SamplingParams(temperature=0.8 * (index % 2), seed=index))
        for index, tokens in enumerate(encoded.values())
    ]
    limits = EngineLimits(max_tree_nodes=4)
    plain = generate_all(Attached(model, StepCost([1], [1.0]), limits), specs)
    shares: dict[tuple[str, str], float] = {}
    for draft in NAMES:
        if draft == target:
            continue
        token_map = TokenMap(vocabulary(target), vocabulary(draft))
        engine = Attached(model, StepCost([1], [1.0]), limits)
        engine.add_drafter("translating", TranslatingDrafter(small_model(draft, 2000), token_map))
        assert generate_all(engine, specs) == plain, draft
        for kind, tokens in encoded.items():
            if (draft, kind) not in UNLIKE:
                shares[draft, kind] = KnownTextDrafting(token_map, tokens).share
    few = {case: round(share, 2) for case, share in shares.items() if share < LEAST}
    assert not few
