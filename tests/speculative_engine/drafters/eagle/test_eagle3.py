"""EAGLE-3 beside a target: its guesses save steps, and no token depends on them."""

from pathlib import Path

import pytest
import torch

from speculative_engine.drafters.drafter import TappingDrafter
from speculative_engine.drafters.eagle.eagle3 import EagleOptions, eagle3_drafter
from speculative_engine.drafters.eagle.eagle_files import load_eagle
from speculative_engine.drafters.features.draft_network import TargetShape
from speculative_engine.drafters.features.local_feature_drafter import LocalFeatureDrafter
from speculative_engine.engine.drafting_accounts import DraftingAccounts
from speculative_engine.engine.verification_engine import VerificationEngine
from speculative_engine.field_error import FieldError
from speculative_engine.model.packed_model import ModelLoadError, PackedModel
from speculative_engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.attached_engine import Attached
from tests.harness.engine.engines import (
    GREEDY,
    VOCABULARY,
    ScriptedDrafter,
    engine_of,
    generate,
    packed,
    specs_of,
    tiny_model,
)
from tests.harness.models.eagle_checkpoints import eagle_config, write_eagle
from tests.harness.models.eagle_training import SPECS, documents, plain_tokens, train_eagle

PROMPTS = [spec.tokens for spec in SPECS]
SAMPLED = [SamplingParams(temperature=0.8, seed=seed) for seed in range(4)]
MIXED = specs_of(PROMPTS, 40, [GREEDY, SAMPLED[1], GREEDY, SAMPLED[3]])


@pytest.fixture
def plain() -> dict[int, list[int]]:
    return plain_tokens()


@pytest.fixture(scope="module")
def useless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_eagle(tmp_path_factory.mktemp("useless"), eagle_config(draft_vocab_size=150))


def engine_with(directory: Path, slots: int = 1000, **limits: int) -> VerificationEngine:
    engine = engine_of(packed(tiny_model("Llama"), slots), **limits)
    engine.__class__ = Attached
    engine.add_drafter("eagle", cheap_drafter(directory, engine.model))
    return engine


def cheap_drafter(directory: Path, target: PackedModel) -> LocalFeatureDrafter:
    """A drafter whose rounds are expected to cost nearly nothing, so that it drafts deep trees."""
    drafter = eagle3_drafter(EagleOptions(str(directory)), target)
    drafter._share = 0.01
    return drafter


def drafter_of(engine: VerificationEngine) -> LocalFeatureDrafter:
    drafter = engine._local._drafters["eagle"]
    assert isinstance(drafter, LocalFeatureDrafter)
    return drafter


class TestTheTokensAreThoseOfPlainDecoding:
    def test_greedy(self, trained: Path, plain: dict[int, list[int]]) -> None:
        engine = engine_with(trained)
        result = generate(engine, SPECS)
        assert result.tokens == plain
        assert result.accepted > 80, "a drafter that knows the text saves half of the steps and more"
        assert engine.model.pool.used == 0
        assert drafter_of(engine).model.pool.used == 0
        assert isinstance(drafter_of(engine), TappingDrafter)

    def test_sampled(self, trained: Path) -> None:
        expected = generate(engine_of(packed(tiny_model("Llama"), 1000)), MIXED).tokens
        assert generate(engine_with(trained), MIXED).tokens == expected

    def test_with_one_that_knows_nothing(self, useless: Path) -> None:
        expected = generate(engine_of(packed(tiny_model("Llama"), 1000)), MIXED).tokens
        result = generate(engine_with(useless), MIXED)
        assert result.tokens == expected
        assert result.drafted > 50

    def test_a_reduced_vocabulary_drafts_the_targets_ids(self, trained: Path, plain: dict[int, list[int]]) -> None:
        eagle = load_eagle(trained, TargetShape(3, 64, VOCABULARY, "LlamaForCausalLM"), torch.float32)
        assert eagle.target_ids is not None and len(eagle.target_ids) < VOCABULARY
        result = generate(engine_with(trained), SPECS[:1])
        assert result.tokens[0] == plain[0]
        assert result.accepted > 15

    @pytest.mark.parametrize("dtype", [torch.bfloat16])
    def test_a_target_whose_layers_are_compiled(self, dtype: torch.dtype, tmp_path: Path) -> None:
        sizes = {"intermediate_size": 192, "head_dim": 64}
        target = packed(tiny_model("Llama", dtype, **sizes), 1000)
        expected = generate(engine_of(packed(tiny_model("Llama", dtype, **sizes), 1000)), SPECS).tokens
        engine = engine_of(target)
        engine.__class__ = Attached
        engine.add_drafter("eagle", eagle3_drafter(EagleOptions(str(write_eagle(tmp_path))), target))
        assert generate(engine, SPECS).tokens == expected

    @pytest.mark.parametrize("weights", ["q8_0", "q4_0", "int8"])
    def test_with_quantised_weights(self, weights: str, tmp_path: Path) -> None:
        sizes = {"intermediate_size": 192, "head_dim": 64}
        target = packed(tiny_model("Llama", torch.bfloat16, **sizes), 1000)
        expected = generate(engine_of(packed(tiny_model("Llama", torch.bfloat16, **sizes), 1000)), SPECS).tokens
        engine = engine_of(target)
        engine.__class__ = Attached
        engine.add_drafter("eagle", eagle3_drafter(EagleOptions(str(write_eagle(tmp_path)), weights=weights), target))
        assert drafter_of(engine).model.weight_type == weights
        result = generate(engine, SPECS)
        assert result.tokens == expected
        assert result.drafted > 0

    def test_beside_a_drafter_that_sends_proposals(self, trained: Path, plain: dict[int, list[int]]) -> None:
        assert generate(engine_with(trained), SPECS, ScriptedDrafter(plain)).tokens == plain

    def test_sequences_that_are_preempted(self, trained: Path, plain: dict[int, list[int]]) -> None:
        engine = engine_with(trained, slots=120, max_tree_nodes=8)
        result = generate(engine, SPECS)
        assert result.tokens == plain
        assert engine.preemptions > 0
        assert result.accepted > 40

    def test_a_drafter_that_loses_its_own_slots(self, trained: Path, plain: dict[int, list[int]]) -> None:
        """It reads the features again, which the target's slots still have."""
        engine = engine_with(trained)
        for spec in SPECS:
            engine.add(spec)
        tokens: dict[int, list[int]] = {spec.sequence_id: [] for spec in SPECS}
        accepted = step = 0
        while engine.running:
            step += 1
            queue = drafter_of(engine)._drafter._queue
            if step % 4 == 0 and 2 in queue.running:
                queue._preempt(2)
                queue.admit()
            outcomes = engine.step().outcomes
            for outcome in outcomes:
                tokens[outcome.sequence_id] += outcome.tokens
                accepted += outcome.accepted
        assert tokens == plain
        assert step > 8
        assert accepted > 60
        assert drafter_of(engine).model.pool.used == 0

    def test_attached_swapped_and_forgotten_midway(
        self, trained: Path, useless: Path, plain: dict[int, list[int]]
    ) -> None:
        engine = engine_of(packed(tiny_model("Llama"), 1000))
        for spec in SPECS:
            engine.add(spec)
        tokens: dict[int, list[int]] = {spec.sequence_id: [] for spec in SPECS}
        step = accepted = 0
        while engine.running:
            step += 1
            if step in (4, 8, 12):
                name, directory = ("good", trained) if step != 8 else ("bad", useless)
                engine.forget("bad" if name == "good" else "good")
                engine.add_drafter(name, cheap_drafter(directory, engine.model))
                for spec in SPECS:
                    engine.attach(spec.sequence_id, name)
            for outcome in engine.step().outcomes:
                tokens[outcome.sequence_id] += outcome.tokens
                accepted += outcome.accepted
        assert step > 12
        assert tokens == plain
        assert accepted > 10, "it drafts from the tokens that were computed since it was attached"


@pytest.mark.slow
class TestTheWholeVocabulary:
    def test_greedy(self, plain: dict[int, list[int]], tmp_path: Path) -> None:
        result = generate(engine_with(train_eagle(tiny_model("Llama"), documents(), tmp_path)), SPECS)
        assert result.tokens == plain
        assert result.accepted > 80

    def test_with_one_that_knows_nothing(self, useless: Path, plain: dict[int, list[int]]) -> None:
        result = generate(engine_with(useless), SPECS)
        assert result.tokens == plain
        assert result.drafted > 50


def test_a_prefix_from_the_cache_is_read_from_the_features_beside_it(
    trained: Path, plain: dict[int, list[int]]
) -> None:
    engine = engine_with(trained)
    first = generate(engine, SPECS[2:3])
    read = rows_read(engine)
    again = generate(engine, SPECS[2:3])
    assert again.tokens == first.tokens == {2: plain[2]}
    assert again.accepted >= first.accepted - 3
    assert read[0] >= len(PROMPTS[2]) - 1, "the whole prompt, though the target did not compute it again"


def rows_read(engine: VerificationEngine) -> list[int]:
    """Counts how many committed tokens the drafter reads from now on."""
    drafter, count = drafter_of(engine)._drafter, [0]
    inner = drafter._read_committed

    def counted(builder: object, key: object, draft: object, rows: int) -> bool:
        count[0] += rows
        return bool(inner(builder, key, draft, rows))  # type: ignore[arg-type]

    drafter._read_committed = counted  # type: ignore[method-assign,assignment]
    return count


def test_each_committed_token_is_read_once_and_rejected_ones_never(trained: Path, plain: dict[int, list[int]]) -> None:
    engine = engine_with(trained, max_step_rows=16)
    count = rows_read(engine)
    assert generate(engine, SPECS).tokens == plain
    lengths = [len(spec.tokens) + len(plain[spec.sequence_id]) for spec in SPECS]
    # Not the first token, and not those of the last step.
    assert sum(lengths) - 4 * 12 <= count[0] <= sum(lengths) - 4


def test_nothing_is_mapped_while_the_drafter_rests(
    trained: Path, plain: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_with(trained)
    monkeypatch.setattr(DraftingAccounts, "open", lambda *_: False)
    monkeypatch.setattr(drafter_of(engine).tap, "mapping", None)
    result = generate(engine, SPECS)
    assert result.tokens == plain
    assert result.drafted == 0


def test_one_that_has_rested_reads_what_was_computed_meanwhile(
    trained: Path, plain: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, steps = engine_with(trained), 0
    count_rows = rows_read(engine)
    settle = DraftingAccounts.settle

    def count(accounts: DraftingAccounts, *args: object) -> None:
        nonlocal steps
        steps += 1
        settle(accounts, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(DraftingAccounts, "settle", count)
    monkeypatch.setattr(DraftingAccounts, "open", lambda *_: steps % 4 >= 2)
    result = generate(engine, SPECS)
    assert result.tokens == plain
    assert result.accepted > 0
    lengths = [len(spec.tokens) + len(plain[spec.sequence_id]) for spec in SPECS]
    # Not the first tokens, and not those of the last pause and step.
    assert sum(lengths) - 4 * 16 <= count_rows[0] <= sum(lengths) - 4


def test_what_the_target_must_be(trained: Path) -> None:
    with pytest.raises(FieldError, match="must be given"):
        EagleOptions()
    with pytest.raises(FieldError, match=r"weights: must be one of checkpoint, .*, got 'q2'"):
        EagleOptions(str(trained), weights="q2")
    target = packed(tiny_model("Llama"), 100)
    with pytest.raises(ModelLoadError, match="no such directory"):
        eagle3_drafter(EagleOptions("/nowhere"), target)
    fixed = PackedModel(tiny_model("Llama"), 100, reproducible=True)
    with pytest.raises(ModelLoadError, match="needs a target on a CPU"):
        eagle3_drafter(EagleOptions(str(trained)), fixed)
