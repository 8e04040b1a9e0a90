"""Translation between the tokenizers of published models, from each to each other."""

from functools import cache
from itertools import combinations

import pytest

from draftwire_core.engine.drafters.translation.token_map import Spelled, TokenMap
from draftwire_core.engine.drafters.translation.translating import TranslatingDrafter
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine, generate_all
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

TOKENS = 64
"""Tokens of each text that are drafted by a model that knows it by heart."""
LEAST = 0.9
"""Share of them that are drafted rightly."""
PROMPT, OUTPUT = 12, 8
"""Tokens of the requests to random models."""
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


@cache
def model(name: str) -> PackedModel:
    """A random model, which is a target in some tests and a draft model in others."""
    return packed(quick_model(vocab_size=len(vocabulary(name)), tie_word_embeddings=True), 2000)


@cache
def encoded(name: str) -> dict[str, list[int]]:
    """The first tokens of each text, by its kind."""
    return {kind: real_tokenizer(name).encode(text)[:TOKENS] for kind, text in TEXTS.items()}


def outputs(engine: VerificationEngine, target: str) -> list[list[int]]:
    specs = [
        SequenceSpec(index, tokens[:PROMPT], PROMPT + OUTPUT, SamplingParams(temperature=0.8 * (index % 2), seed=index))
        for index, tokens in enumerate(encoded(target).values())
    ]
    return generate_all(engine, specs)


def engine_of(target: str) -> Attached:
    return Attached(model(target), StepCost([1], [1.0]), EngineLimits(max_tree_nodes=4))


@cache
def plain(target: str) -> list[list[int]]:
    return outputs(engine_of(target), target)


@pytest.fixture(scope="module", params=combinations(NAMES, 2), ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[tuple[str, str], Spelled]:
    """Two tokenizers, and their tokens in those of the other, which serve both directions."""
    one, other = request.param
    return (one, other), Spelled.of(vocabulary(one), vocabulary(other))


@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
def test_it_drafts_a_known_text_and_changes_no_token(pair: tuple[tuple[str, str], Spelled], back: bool) -> None:
    (target, draft), spelled = pair
    if back:
        target, draft, spelled = draft, target, Spelled(spelled.draft, spelled.target)
    token_map = TokenMap(vocabulary(target), vocabulary(draft), spelled)
    drafter = TranslatingDrafter(model(draft), token_map)
    engine = engine_of(target)
    engine.add_drafter("translating", drafter)
    assert outputs(engine, target) == plain(target)
    kinds = [kind for kind in TEXTS if (draft, kind) not in UNLIKE]
    shares = {kind: KnownTextDrafting(token_map, encoded(target)[kind]).share for kind in kinds}
    assert {kind: round(share, 2) for kind, share in shares.items() if share < LEAST} == {}
