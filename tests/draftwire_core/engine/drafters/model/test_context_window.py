"""A draft model reads the newest part of a text that is longer than its context."""

import random

import pytest
import torch

from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.model.context_window import ContextWindow
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter, ModelDraft
from draftwire_core.engine.drafters.model.local_model import LocalModelDrafter
from draftwire_core.engine.model.packed_batch import PackedBatch
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.drafter_reader import DrafterReader
from tests.harness.engine.early_exit_engine import engine_with
from tests.harness.engine.engines import GREEDY, VOCABULARY, generate, packed, random_tokens, specs_of, tiny_model
from tests.harness.engine.recurrent_models import recurrent_model
from tests.harness.engine.special_models import quick_model

CONTEXT = 64
NODES = 12


class Watched(PackedModel):
    """A model that records the largest position and the most slots in use of its passes."""

    last_position = most_slots = 0

    def forward(self, batch: PackedBatch) -> torch.Tensor:
        self.last_position = max(self.last_position, int(batch.positions.max()))
        self.most_slots = max(self.most_slots, self.pool.used)
        return super().forward(batch)


class TestWindow:
    @pytest.mark.parametrize("size", [1, 2, 3, 8, 64])
    def test_it_keeps_the_first_token_and_the_newest(self, size: int) -> None:
        window = ContextWindow.of(size, DraftSpec([1], GREEDY, NODES, 10 * size + 10))
        assert 1 <= window.most <= size
        assert window.newest(range(window.most)) is None
        newest = window.newest(range(window.most + 1))
        assert newest is not None and 1 <= len(newest) <= max(1, window.most // 2)
        assert newest[-1] == window.most
        if len(newest) > 1:
            assert newest == [0, *range(window.most + 2 - len(newest), window.most + 1)]

    def test_a_text_that_fits_may_fill_it(self) -> None:
        assert ContextWindow.of(64, DraftSpec([1], GREEDY, NODES, 64)).most == 64
        assert ContextWindow.of(64, DraftSpec([1], GREEDY, NODES, 65)).most == 64 - NODES
        assert ContextWindow.of(64, DraftSpec([1], GREEDY, 500, 65)).most == 48


KINDS = {
    "rotary positions": lambda: tiny_model("Llama"),
    "learned positions": lambda: tiny_model("GPT2"),
    "a sliding window": lambda: tiny_model("Mistral"),
    "recurrent states": lambda: recurrent_model("Qwen3_5"),
}


LIMITS = {"context": (400, CONTEXT), "cache": (CONTEXT + NODES, None)}
"""Slots and context length of the draft model, of which one makes it turn to the newest part."""


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        ("rotary positions", "cache"),
        ("learned positions", "context"),
        ("a sliding window", "context"),
        ("recurrent states", "cache"),
    ],
)
def test_it_drafts_as_one_that_is_given_the_window_alone(kind: str, limit: str) -> None:
    check_window(kind, limit, 20)


@pytest.mark.slow
class TestEveryKind:
    @pytest.mark.parametrize("kind", list(KINDS))
    @pytest.mark.parametrize("limit", LIMITS)
    def test_it_drafts_as_one_that_is_given_the_window_alone(self, kind: str, limit: str) -> None:
        check_window(kind, limit, 50)


def check_window(kind: str, limit: str, verdicts: int) -> None:
    slots, context = LIMITS[limit]
    rng = random.Random(7)
    made = KINDS[kind]()
    model, alone = Watched(made, slots, context_length=context), DraftModelDrafter(packed(KINDS[kind](), 400))
    drafter = DraftModelDrafter(model)
    prompt = random_tokens(90, seed=1)
    reader = DrafterReader(drafter, prompt, max_tree_nodes=NODES, vocab_size=VOCABULARY, sampling=GREEDY)
    reader.grow()
    fresh, compared, turned = True, 0, 0
    for _ in range(verdicts):
        draft = drafter._drafts[reader.key]
        assert isinstance(draft, ModelDraft)
        kept = len(draft.tokens)
        assert draft.tokens == [reader.tokens[0], *reader.tokens[len(reader.tokens) - kept + 1 :]]
        assert len(draft.slots) == kept <= CONTEXT
        assert model.pool.used == kept + sum(node.slot >= 0 for node in draft.tree.nodes())
        if fresh:  # else a tree that survived the last verdict may have been drafted from another window
            alone.open(0, DraftSpec(draft.tokens, GREEDY, 1, 10_000))
            while not (proposals := alone.grow().proposals):
                pass
            alone.close(0)
            first = next(child for child in reader.tree.root.children.values() if child.rank == 0)
            assert first.token == proposals[0].token_ids[0]
            compared += 1
        path = reader.likeliest()[: rng.randrange(1, 4)]
        fresh = not path or rng.random() < 0.7
        unlikely = [token for token in range(3, VOCABULARY) if not reader.tree.walk([*path, token])[len(path) :]]
        reader.commit([*path, rng.choice(unlikely)] if fresh else path)
        turned += len(draft.tokens) < kept
    assert compared > verdicts * 2 // 5 and turned > verdicts // 20
    assert model.last_position < CONTEXT and model.most_slots <= CONTEXT + NODES
    drafter.close(reader.key)
    assert model.pool.used == 0


PROMPTS = [random_tokens(length, seed=length) for length in (60, 5, 300, 90)]
SAMPLING = [GREEDY, SamplingParams(temperature=0.8, seed=3), GREEDY, SamplingParams(temperature=0.3, top_p=0.9, seed=5)]


@pytest.fixture
def times_as_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepCost, "observe", lambda *_: 0.0)


@pytest.mark.usefixtures("times_as_said")
class TestInTheVerifier:
    def test_outputs_are_the_plain_ones_and_drafts_go_on(self) -> None:
        check_outputs(50, together=True)


@pytest.mark.slow
@pytest.mark.usefixtures("times_as_said")
class TestLongOutputs:
    @pytest.mark.parametrize("together", [True, False])
    def test_they_are_the_plain_ones_and_drafts_go_on(self, together: bool) -> None:
        check_outputs(250, together=together)


def check_outputs(count: int, *, together: bool) -> None:
    specs = specs_of(PROMPTS, count, SAMPLING)
    # Small weights: what a text says far behind matters little, so that the window's guesses are often right.
    target = packed(quick_model(initializer_range=0.05), 2000)
    plain = generate(engine_with(None, target), specs).tokens
    draft = Watched(quick_model(initializer_range=0.05), 2000, context_length=CONTEXT)
    engine = engine_with(None, target)
    engine.add_drafter("draft", LocalModelDrafter(draft, 0.01))
    result = generate(engine, specs, together=together)
    assert result.tokens == plain
    # All but the first 4 tokens of the first output are beyond the draft model's context.
    assert result.accepted > count
    assert draft.last_position < CONTEXT
    assert draft.most_slots <= len(specs) * (CONTEXT + engine.limits.max_tree_nodes)
    assert draft.pool.used == 0
