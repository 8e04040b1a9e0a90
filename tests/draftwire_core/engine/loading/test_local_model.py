"""A draft model in the engine's own thread: no token depends on it, and it drafts only while that pays."""

import gc
import weakref
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.model import local_model
from draftwire_core.engine.drafters.model.local_model import LocalModelDrafter
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.loading.methods import DraftedEngine, LocalModelOptions, local_model_drafter
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.early_exit_engine import SPECS, Attached, engine_with
from tests.harness.engine.engines import GREEDY, ScriptedDrafter, generate, packed, random_tokens, specs_of, tiny_model
from tests.harness.models.byte_tokenizers import write_byte_checkpoint
from tests.harness.models.tiny_checkpoint import CONTEXT, write_checkpoint


@pytest.fixture(scope="module")
def library() -> PreTrainedModel:
    return tiny_model("Llama")


@pytest.fixture(scope="module")
def model(library: PreTrainedModel) -> PackedModel:
    return packed(library, 1000)


@pytest.fixture(scope="module")
def plain(model: PackedModel) -> dict[int, list[int]]:
    return generate(engine_with(None, model), SPECS, together=False).tokens


def like(library: PreTrainedModel, noise: float, slots: int = 1000) -> PackedModel:
    """Returns a draft model that agrees with the target, less often with more noise."""
    drafts = packed(library, slots)
    with torch.no_grad():
        for weight in drafts.model.parameters():
            if weight.dim() == 2:
                weight += noise * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    return drafts


def engine_beside(
    model: PackedModel, drafts: PackedModel, seconds: float = 1.0, share: float = 0.01, **limits: int
) -> Attached:
    engine = engine_with(None, model, seconds, **limits)
    engine.add_drafter("draft", LocalModelDrafter(drafts, share))
    return engine


@pytest.fixture
def times_as_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's steps take the time that is said at its start."""
    monkeypatch.setattr(StepCost, "observe", lambda *_: 0.0)


def check_few_slots(library: PreTrainedModel, plain: dict[int, list[int]], slots: int) -> None:
    """Tokens are those of a target with room for all sequences."""
    drafts = like(library, 0.0, slots)
    engine = engine_beside(packed(library, slots), drafts, max_tree_nodes=8)
    assert generate(engine, SPECS).tokens == plain
    assert engine.preemptions > 0
    assert engine.model.pool.used == drafts.pool.used == 0


class TestNoTokenDependsOnIt:
    @pytest.mark.parametrize("noise", [0.0, 0.3])
    def test_beside_others(
        self, library: PreTrainedModel, model: PackedModel, noise: float, plain: dict[int, list[int]]
    ) -> None:
        drafts = like(library, noise)
        engine = engine_beside(model, drafts)
        result = generate(engine, SPECS)
        assert result.tokens == plain
        assert result.accepted > (60 if not noise else 0)
        assert model.pool.used == drafts.pool.used == 0
        assert not engine._local.busy

    def test_with_too_few_slots(
        self,
        library: PreTrainedModel,
        plain: dict[int, list[int]],
        times_as_said: None,  # or a busy machine lets sequences end one by one
    ) -> None:
        check_few_slots(library, plain, 104)

    def test_a_prompt_is_read_once_the_target_has_computed_it(
        self, library: PreTrainedModel, model: PackedModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Read before, it would delay the first token. A drafter that is attached later reads the text at once."""
        engine = engine_beside(model, like(library, 0.0))
        drafter = engine._local._drafters["draft"]
        opened: list[int] = []
        begin = drafter.open

        def note(key: int, spec: DraftSpec) -> None:
            opened.append(len(spec.tokens))
            begin(key, spec)

        monkeypatch.setattr(drafter, "open", note)
        prompt = random_tokens(30)
        for number, detached in enumerate((False, True)):
            engine.add(SequenceSpec(number, prompt, 40, GREEDY))  # which attaches the drafter
            if detached:
                engine.detach(number, "draft")
            assert not opened
            tokens = [token for outcome in engine.step().outcomes for token in outcome.tokens]
            if detached:
                assert not opened
                engine.attach(number, "draft")
            assert opened == [len(prompt) + len(tokens)]
            opened.clear()
            while engine.running:
                engine.step()

    def test_beside_another_drafter(
        self, library: PreTrainedModel, model: PackedModel, plain: dict[int, list[int]]
    ) -> None:
        engine = engine_beside(model, like(library, 0.3))
        assert generate(engine, SPECS, ScriptedDrafter(plain)).tokens == plain


@pytest.mark.usefixtures("times_as_said")
class TestRounds:
    def steps(self, model: PackedModel, drafts: PackedModel, share: float, seconds: float = 1.0) -> tuple[int, int]:
        """Returns the steps of the target and of the draft model for a request of 120 tokens."""
        engine = engine_beside(model, drafts, seconds, share)
        engine.add(SequenceSpec(0, random_tokens(5), 125, GREEDY))
        target = 0
        while engine.running:
            engine.step()
            target += 1
        drafter = engine._local._drafters["draft"]
        return target, drafter.clock.steps

    def test_the_cheaper_the_deeper(self, library: PreTrainedModel, model: PackedModel) -> None:
        drafts = like(library, 0.0)
        cheap, dear = self.steps(model, drafts, 0.01), self.steps(model, drafts, 0.2)
        assert cheap[0] < dear[0] < 60
        assert cheap[1] / cheap[0] > dear[1] / dear[0] > 1

    def test_what_others_have_guessed_is_left_to_them(
        self, library: PreTrainedModel, model: PackedModel, plain: dict[int, list[int]]
    ) -> None:
        drafts = like(library, 0.0)
        drafted = []
        for others in (None, ScriptedDrafter(plain, accuracy=1.0, siblings=False)):
            engine = engine_beside(model, drafts, share=0.3)
            result = generate(engine, SPECS, others, together=False)
            assert result.tokens == plain
            drafted.append(engine._local._drafters["draft"].clock.steps / result.steps)
        assert drafted[1] < 0.6 * drafted[0]

    def test_one_that_costs_more_than_the_target_is_only_tried(
        self, library: PreTrainedModel, model: PackedModel
    ) -> None:
        target, drafted = self.steps(model, like(library, 0.0), 1.5, seconds=1e-4)
        assert 0 < drafted < 25 < 100 < target  # the wall clock limits its credit, so a busy machine shifts the count


class TestMaking:
    def test_of_a_checkpoint(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        place = write_checkpoint(tmp_path_factory.mktemp("twin"))
        target = PackedModel.load(str(place), slots=300, dtype="float32")
        drafter = local_model_drafter(LocalModelOptions(model=str(place)), target)
        assert drafter.model.pool.capacity == 300
        engine = engine_with(None, target)
        engine.add_drafter("draft", drafter)
        long = SequenceSpec(0, random_tokens(4), CONTEXT + 1, GREEDY)
        drafter.open(0, DraftSpec(long.tokens, GREEDY, 8, long.max_length))
        assert drafter.busy  # its last tokens are drafted for, though they are beyond the model's context

    def test_slots_are_those_that_its_sequences_can_fill(self, tmp_path: Path) -> None:
        """A target has more for the texts of earlier sequences, which are not drafted for."""
        place = str(write_checkpoint(tmp_path))
        target = PackedModel.load(place, slots=100_000, dtype="float32")
        limits = EngineLimits(max_sequences=3, max_tree_nodes=16)
        for asked, slots in ((0, 3 * (CONTEXT + 16)), (256, 256)):
            options = LocalModelOptions(place, kv_slots=asked)
            assert local_model_drafter(options, target, engine=DraftedEngine(limits)).model.pool.capacity == slots

    def test_one_that_translates_has_room_for_a_tree(self, tmp_path: Path) -> None:
        """Its nodes take two slots each, and a request must not find too few."""
        target = PackedModel.load(str(write_byte_checkpoint(tmp_path / "target", "target")), slots=300)
        place = write_byte_checkpoint(tmp_path / "draft", "draft")
        limits = EngineLimits(max_tree_nodes=256)
        drafter = local_model_drafter(LocalModelOptions(str(place), kv_slots=256), target, engine=DraftedEngine(limits))
        engine_with(None, target).add_drafter("draft", drafter)
        drafter.open(0, DraftSpec(random_tokens(30), GREEDY, 256, 200))
        assert drafter.busy

    def test_ids_that_its_smaller_vocabulary_lacks(self, tmp_path: Path) -> None:
        """Targets pad the vocabulary of a tokenizer further than its draft models do, and may draw such an id."""
        place = write_checkpoint(tmp_path / "target", vocab_size=264)
        target = PackedModel.load(str(place), slots=600, dtype="float32")
        drafter = local_model_drafter(LocalModelOptions(str(write_checkpoint(tmp_path / "draft"))), target)
        drafter._share = 0.01
        beyond = drafter.model.vocab_size
        short = [token for token in random_tokens(9) if token < beyond]
        prompts = [short, [*short, beyond, *short]]
        specs = specs_of(prompts, 40, SamplingParams(temperature=100.0, seed=1))
        plain = generate(engine_with(None, target), specs).tokens
        assert max(plain[0]) >= beyond
        engine = engine_with(None, target)
        engine.add_drafter("draft", drafter)
        assert generate(engine, specs).tokens == plain
        assert drafter.clock.steps > 0
        assert not drafter._left_out and not drafter.busy

    def test_what_is_no_model(self, model: PackedModel) -> None:
        with pytest.raises(ModelLoadError, match="model /nowhere: no such directory"):
            local_model_drafter(LocalModelOptions(model="/nowhere"), model)

    def test_options(self) -> None:
        with pytest.raises(FieldError, match="model: must be given"):
            LocalModelOptions()
        with pytest.raises(FieldError, match="kv_dtype: must be one of auto, float16, q8_0, got 'fp8'"):
            LocalModelOptions(model="x", kv_dtype="fp8")
        with pytest.raises(FieldError, match="kv_slots: must be 0 or at least 256, got 1"):
            LocalModelOptions(model="x", kv_slots=1)
        with pytest.raises(FieldError, match="weights: must be one of checkpoint, int8"):
            LocalModelOptions(model="x", weights="int3")


def test_the_model_of_a_forgotten_drafter_is_freed_at_once(
    library: PreTrainedModel, model: PackedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU it takes memory that the next one needs; torch then gives back what it keeps."""
    drafts = packed(library, 1000)
    engine = engine_beside(model, drafts)
    generate(engine, SPECS)
    gone = [weakref.ref(each) for each in (drafts.model, drafts.cache, drafts)]
    alive: list[bool] = []
    monkeypatch.setattr(
        local_model, "return_unused", lambda: alive.extend(reference() is not None for reference in gone)
    )
    gc.disable()
    try:
        del drafts
        engine.forget("draft")
    finally:
        gc.enable()
    assert alive == [False] * 3


@pytest.mark.slow
class TestMoreSlots:
    """Slots for which fewer sequences wait."""

    def test_with_too_few_slots(
        self, library: PreTrainedModel, plain: dict[int, list[int]], times_as_said: None
    ) -> None:
        check_few_slots(library, plain, 128)
