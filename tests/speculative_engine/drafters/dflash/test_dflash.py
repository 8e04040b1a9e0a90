"""DFlash beside a target: its guesses save steps, and no token depends on them."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from speculative_engine.drafters.blocks.block_drafter import BlockDrafter
from speculative_engine.drafters.blocks.block_network import Reading
from speculative_engine.drafters.dflash.dflash import DflashOptions, dflash_drafter
from speculative_engine.drafters.drafter import TappingDrafter
from speculative_engine.drafters.features.local_feature_drafter import LocalFeatureDrafter
from speculative_engine.engine.sequence import SequenceSpec
from speculative_engine.engine.verification_engine import VerificationEngine
from speculative_engine.field_error import FieldError
from speculative_engine.model.packed_model import PackedModel
from speculative_engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.attached_engine import Attached
from tests.harness.engine.engines import GREEDY, engine_of, generate, packed, specs_of, tiny_model
from tests.harness.models.dflash_checkpoints import dflash_config, write_dflash
from tests.harness.models.dflash_training import train_dflash
from tests.harness.models.eagle_training import SPECS, documents, plain_tokens

SAMPLED = [SamplingParams(temperature=0.8, seed=seed) for seed in range(4)]
MIXED = specs_of([spec.tokens for spec in SPECS], 40, [GREEDY, SAMPLED[1], GREEDY, SAMPLED[3]])


@pytest.fixture
def plain() -> dict[int, list[int]]:
    return plain_tokens()


@pytest.fixture(scope="module")
def useless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dflash(tmp_path_factory.mktemp("useless"), dflash_config(draft_vocab_size=150))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_dflash(tiny_model("Llama"), documents(), tmp_path_factory.mktemp("trained"), steps=60)


def engine_with(directory: Path, slots: int = 1000, **limits: int) -> VerificationEngine:
    return engine_on(tiny_model("Llama"), directory, slots, **limits)


def engine_on(base: PreTrainedModel, directory: Path, slots: int = 1000, **limits: int) -> VerificationEngine:
    engine = engine_of(packed(base, slots), **limits)
    engine.__class__ = Attached
    engine.add_drafter("dflash", cheap_drafter(engine.model, directory))
    return engine


COMPILED: dict[str, object] = {"intermediate_size": 192, "head_dim": 64}


def compiled() -> tuple[PreTrainedModel, dict[int, list[int]]]:
    """Returns a model whose layers are compiled, and its output."""
    base = tiny_model("Llama", torch.bfloat16, **COMPILED)
    return base, generate(engine_of(packed(base, 1000)), SPECS).tokens


def cheap_drafter(target: PackedModel, directory: Path, **options: int) -> LocalFeatureDrafter:
    """A drafter whose passes are expected to cost nearly nothing, so that it always drafts."""
    drafter = dflash_drafter(DflashOptions(str(directory), **options), target)
    drafter._share = 0.01
    return drafter


def drafter_of(engine: VerificationEngine) -> LocalFeatureDrafter:
    drafter = engine._local._drafters["dflash"]
    assert isinstance(drafter, LocalFeatureDrafter)
    assert isinstance(drafter, TappingDrafter)
    return drafter


def test_one_that_knows_nothing_changes_no_token(useless: Path) -> None:
    check_nothing(useless, MIXED)


@pytest.mark.slow
class TestMoreTraining:
    @pytest.mark.parametrize("specs", [SPECS, MIXED])
    def test_one_that_knows_nothing_changes_no_token(self, useless: Path, specs: list[SequenceSpec]) -> None:
        check_nothing(useless, specs)

    def test_greedy(self, plain: dict[int, list[int]], tmp_path: Path) -> None:
        result = generate(engine_with(train_dflash(tiny_model("Llama"), documents(), tmp_path)), SPECS)
        assert result.tokens == plain
        assert result.accepted > 60, "of 160 tokens"

    def test_a_target_whose_layers_are_compiled(self, tmp_path: Path) -> None:
        base, expected = compiled()
        texts = [[*spec.tokens, *expected[spec.sequence_id]] for spec in SPECS]
        wide = tiny_model("Llama", torch.float32, **COMPILED)
        wide.load_state_dict(base.state_dict())
        result = generate(engine_on(base, train_dflash(wide, texts, tmp_path)), SPECS)
        assert result.tokens == expected
        assert result.accepted > 30


def check_nothing(useless: Path, specs: list[SequenceSpec]) -> None:
    expected = generate(engine_of(packed(tiny_model("Llama"), 1000)), specs).tokens
    engine = engine_with(useless)
    result = generate(engine, specs)
    assert result.tokens == expected
    assert result.drafted > 50
    assert engine.model.pool.used == 0
    assert drafter_of(engine).model.pool.used == 0


class TestOneThatKnowsTheTexts:
    def test_greedy(self, trained: Path, plain: dict[int, list[int]]) -> None:
        result = generate(engine_with(trained), SPECS)
        assert result.tokens == plain
        assert result.accepted > 25, "of 160 tokens"

    def test_sampled(self, trained: Path) -> None:
        expected = generate(engine_of(packed(tiny_model("Llama"), 1000)), MIXED).tokens
        assert generate(engine_with(trained), MIXED).tokens == expected

    def test_a_target_whose_layers_are_compiled(self, useless: Path) -> None:
        base, expected = compiled()
        result = generate(engine_on(base, useless), SPECS)
        assert result.tokens == expected
        assert result.drafted > 50

    def test_sequences_that_are_preempted(self, trained: Path, plain: dict[int, list[int]]) -> None:
        engine = engine_with(trained, slots=120, max_tree_nodes=8)
        result = generate(engine, SPECS)
        assert result.tokens == plain
        assert engine.preemptions > 0
        assert result.accepted > 10

    def test_a_drafter_that_loses_its_own_slots(self, trained: Path, plain: dict[int, list[int]]) -> None:
        """It reads the features again, which the target's slots still have."""
        engine = engine_with(trained)
        for spec in SPECS:
            engine.add(spec)
        tokens: dict[int, list[int]] = {spec.sequence_id: [] for spec in SPECS}
        accepted = step = 0
        inner = drafter_of(engine)._drafter
        assert isinstance(inner, BlockDrafter)
        while engine.running:
            step += 1
            if step % 4 == 0 and 2 in inner._queue.running:
                inner._queue._preempt(2)
                inner._queue.admit()
            for outcome in engine.step().outcomes:
                tokens[outcome.sequence_id] += outcome.tokens
                accepted += outcome.accepted
        assert tokens == plain
        assert accepted > 15
        assert drafter_of(engine).model.pool.used == 0

    def test_a_prefix_from_the_cache(self, trained: Path, plain: dict[int, list[int]]) -> None:
        engine = engine_with(trained)
        first = generate(engine, SPECS[2:3])
        again = generate(engine, SPECS[2:3])
        assert again.tokens == first.tokens == {2: plain[2]}
        assert again.accepted >= first.accepted - 3

    def test_swapped_with_one_that_knows_nothing(
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
                engine.add_drafter(name, cheap_drafter(engine.model, directory))
                for spec in SPECS:
                    engine.attach(spec.sequence_id, name)
            for outcome in engine.step().outcomes:
                tokens[outcome.sequence_id] += outcome.tokens
                accepted += outcome.accepted
        assert step > 12
        assert tokens == plain
        assert accepted > 0, "it drafts from the tokens that were computed since it was attached"


def test_a_window_caps_how_far_back_it_reads(useless: Path) -> None:
    target = packed(tiny_model("Llama"), 1000)
    drafter = cheap_drafter(target, useless, window=12)
    engine = engine_of(target)
    engine.__class__ = Attached
    engine.add_drafter("dflash", drafter)
    inner = drafter._drafter
    assert isinstance(inner, BlockDrafter)
    read: list[int] = []
    network = inner._network.read

    def counted(reading: Reading) -> None:
        read.extend(reading.positions)
        network(reading)

    inner._network.read = counted  # type: ignore[method-assign]
    spec = SPECS[2]
    tokens = generate(engine, [spec]).tokens[2]
    assert tokens == plain_tokens()[2]
    # A position is that of the token behind the feature.
    assert read[0] == len(spec.tokens) + 1 - 12 + 1, "a token was committed before it looked"
    assert read == list(range(read[0], read[-1] + 1))


def test_bad_options() -> None:
    with pytest.raises(FieldError, match="must be at least 0, got -1"):
        DflashOptions("somewhere", window=-1)


def test_chains(useless: Path) -> None:
    target = packed(tiny_model("Llama"), 1000)
    drafter = cheap_drafter(target, useless, width=1)
    engine = engine_of(target)
    engine.__class__ = Attached
    engine.add_drafter("dflash", drafter)
    assert generate(engine, SPECS).tokens == plain_tokens()
    with pytest.raises(FieldError, match="must be from 1 to 16, got 0"):
        DflashOptions("somewhere", width=0)
