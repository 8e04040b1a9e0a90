"""A recurrent head beside a target: it drafts from the target's states and its own, and no token depends on it."""

from pathlib import Path

import pytest
import torch

from draftwire_core.engine.drafters.drafter import DraftSpec, EngineState, StateDrafter
from draftwire_core.engine.drafters.recurrent.recurrent import RecurrentDrafter, RecurrentOptions, recurrent_drafter
from draftwire_core.engine.drafters.recurrent.recurrent_head import RecurrentHead
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.errors import ModelLoadError
from draftwire_core.engine.model.backends.sharded_backend import ShardedBackend
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.training.learning.target_reader import TargetReader
from tests.harness.engine.engines import GREEDY, engine_of, generate, packed, random_tokens, specs_of, tiny_model
from tests.harness.models.recurrent_training import trained_head

PROMPTS = [random_tokens(length, seed=length) for length in (9, 3, 40, 20)]
SPECS = specs_of(PROMPTS, 40, GREEDY)
MIXED = specs_of(PROMPTS, 14, [GREEDY, SamplingParams(temperature=0.8, seed=1)] * 2)


@pytest.fixture(scope="module")
def plain() -> dict[int, list[int]]:
    return generate(engine_of(packed(tiny_model("Llama"), 1000)), SPECS).tokens


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, plain: dict[int, list[int]]) -> Path:
    """A head that has learned the target's output for the prompts."""
    texts = [(list(spec.tokens), plain[spec.sequence_id]) for spec in SPECS]
    return trained_head(tiny_model("Llama"), texts, tmp_path_factory.mktemp("head"))


@pytest.fixture(scope="module")
def useless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head as it is before it has learned anything."""
    directory = tmp_path_factory.mktemp("useless")
    made = RecurrentHead(64, 32, 300, 20)
    made.draft_with(torch.arange(40, 60), torch.randn(20, 64))
    made.save(directory, "", torch.float32)
    return directory


def engine_with(*heads: str, slots: int = 1000, **limits: int) -> VerificationEngine:
    """An engine of which each sequence has all the drafters."""
    engine = engine_of(packed(tiny_model("Llama"), slots), **limits)
    for head in heads:
        engine.add_drafter(head or "blank", recurrent_drafter(RecurrentOptions(head), engine.model))
    return engine


def run(engine: VerificationEngine, specs: list) -> tuple[dict[int, list[int]], int]:
    """Returns all tokens, and the number of steps."""
    tokens: dict[int, list[int]] = {spec.sequence_id: [] for spec in specs}
    for spec in specs:
        engine.add(spec)
        for source in engine._local._drafters:
            engine.attach(spec.sequence_id, source)
    steps = 0
    while engine.running:
        steps += 1
        for outcome in engine.step().outcomes:
            tokens[outcome.sequence_id] += outcome.tokens
    return tokens, steps


def test_the_tokens_are_those_of_plain_decoding(head: Path, plain: dict[int, list[int]]) -> None:
    engine = engine_with(str(head))
    tokens, steps = run(engine, SPECS)
    assert tokens == plain
    assert steps < 30, "a head that knows the text saves steps"
    assert engine.model.pool.used == 0
    assert not engine._local.busy


@pytest.mark.parametrize("limits", [{}, {"slots": 120, "max_tree_nodes": 8}])
def test_sampled_and_greedy_together(head: Path, useless: Path, limits: dict[str, int]) -> None:
    expected = generate(engine_of(packed(tiny_model("Llama"), 1000)), MIXED).tokens
    assert run(engine_with(str(head), str(useless), "", **limits), MIXED)[0] == expected


def drafter_of(head: Path, model: PackedModel) -> RecurrentDrafter:
    """A drafter next to steps that take so long that drafting always pays."""
    loaded = RecurrentHead.load(str(head), torch.float32)
    drafter = RecurrentDrafter(loaded, model.model.get_input_embeddings(), share=0.001)
    drafter.enter(EngineState({}, StepCost([1, 64], [1.0, 1.0]), list))
    return drafter


def test_it_goes_on_from_its_own_states(head: Path, plain: dict[int, list[int]]) -> None:
    model = packed(tiny_model("Llama"), 100)
    drafter = drafter_of(head, model)
    assert isinstance(drafter, StateDrafter)
    spec, after = SPECS[0], plain[0]
    text = [*spec.tokens, *after]
    drafter.open(0, DraftSpec(spec.tokens, GREEDY, 16, 100, model.vocab_size))
    drafter.grow()
    drafter.commit(0, len(spec.tokens) + 1, after[:1])
    assert not drafter.busy, "it waits for the state"
    drafter.see(0, TargetReader(model).states(spec.tokens)[-1])
    proposal = drafter.grow().proposals[0]
    chain, node = [], 0
    while True:  # the first child of each node
        following = [at for at, parent in enumerate(proposal.parent_ids) if parent == node]
        if not following:
            break
        chain.append(proposal.token_ids[following[0]])
        node = proposal.first_node_id + following[0]
    assert len(chain) >= 2, "the second token follows from its own state"
    assert chain[:2] == text[len(spec.tokens) + 1 :][:2]


def test_a_blank_one_drafts_nothing(plain: dict[int, list[int]]) -> None:
    engine = engine_with("")
    tokens, steps = run(engine, SPECS[:1])
    assert tokens[0] == plain[0]
    assert steps >= 40
    assert not engine._local.busy


@pytest.mark.parametrize(
    ("hidden", "vocabulary", "what"), [(32, 300, "hidden size 32"), (64, 64, "vocabulary size 64")]
)
def test_a_head_for_another_target_is_refused(tmp_path: Path, hidden: int, vocabulary: int, what: str) -> None:
    RecurrentHead(hidden, 16, vocabulary, 1).save(tmp_path, "", torch.float32)
    with pytest.raises(ModelLoadError, match=f"{what} does not match the target's"):
        recurrent_drafter(RecurrentOptions(str(tmp_path)), packed(tiny_model("Llama"), 100))


@pytest.mark.parametrize("directory", ["", "head"])
def test_a_target_that_is_split_among_ranks_is_refused(directory: str) -> None:
    """Its embedding is, too: rank 0 would wait for what the others do not know of."""
    model = packed(tiny_model("Llama"), 100)
    model.backend = object.__new__(ShardedBackend)
    with pytest.raises(ModelLoadError, match="not split among ranks"):
        recurrent_drafter(RecurrentOptions(directory), model)
