"""Medusa heads beside a target: they see its hidden states, and no token depends on their guesses."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from draftwire_core.engine.drafters.drafter import DraftSpec, StateDrafter
from draftwire_core.engine.drafters.medusa import MedusaDrafter, MedusaOptions, medusa_drafter
from draftwire_core.engine.drafters.medusa_heads import MedusaHeads, load_heads
from draftwire_core.engine.engine.drafting_accounts import DraftingAccounts
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.engine.drafter_reader import DrafterReader
from tests.harness.engine.engines import (
    GREEDY,
    ScriptedDrafter,
    engine_of,
    generate,
    packed,
    random_tokens,
    specs_of,
    tiny_model,
)
from tests.harness.models.medusa_training import train_heads
from tests.harness.stand_ins.fixed_cost import FixedCost

MODELS = Path(__file__).parents[4] / "models"
PROMPTS = [random_tokens(length, seed=length) for length in (9, 3, 40, 20)]
SAMPLED = [SamplingParams(temperature=0.8, seed=seed) for seed in range(4)]
SPECS = specs_of(PROMPTS, 40, GREEDY)
FEW = 14
SHORT = specs_of(PROMPTS, FEW, GREEDY)
MIXED = specs_of(PROMPTS, FEW, [GREEDY, SAMPLED[1], GREEDY, SAMPLED[3]])


class Attached(VerificationEngine):
    """An engine that attaches all its drafters to every sequence."""

    def add(self, spec: SequenceSpec) -> None:
        super().add(spec)
        for source in self._local._drafters:
            self.attach(spec.sequence_id, source)


@pytest.fixture(scope="module")
def plain() -> dict[int, list[int]]:
    return generate(engine_of(packed(tiny_model("Llama"), 1000)), SPECS).tokens


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory, plain: dict[int, list[int]]) -> Path:
    """Heads trained on the target's output for the prompts."""
    documents = [[*spec.tokens, *plain[spec.sequence_id]] for spec in SPECS]
    return train_heads(tiny_model("Llama"), documents, tmp_path_factory.mktemp("heads"))


@pytest.fixture(scope="module")
def useless_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("useless")
    MedusaHeads(3, 1, 64, 300).save(directory, "", torch.float32)
    return directory


def eager_drafter(heads: Path) -> MedusaDrafter:
    """A drafter that drafts at every step, so that the machine's load decides nothing."""
    return MedusaDrafter(load_heads(str(heads), torch.float32))


def engine_with(heads: Path, slots: int = 1000, **limits: int) -> VerificationEngine:
    engine = engine_of(packed(tiny_model("Llama"), slots), **limits)
    engine.__class__ = Attached
    engine.add_drafter("medusa", eager_drafter(heads))
    return engine


class TestTheTokensAreThoseOfPlainDecoding:
    def test_greedy(self, heads: Path, plain: dict[int, list[int]]) -> None:
        engine = engine_with(heads)
        result = generate(engine, SPECS)
        assert result.tokens == plain
        assert result.accepted > 80, "heads that know the text save half of the steps and more"
        assert engine.model.pool.used == 0
        assert not engine._local.busy

    def test_sampled(self, heads: Path) -> None:
        expected = generate(engine_of(packed(tiny_model("Llama"), 1000)), MIXED).tokens
        assert generate(engine_with(heads), MIXED).tokens == expected

    def test_with_heads_that_know_nothing(self, useless_heads: Path, plain: dict[int, list[int]]) -> None:
        expected = {number: tokens[:FEW] for number, tokens in plain.items()}
        assert generate(engine_with(useless_heads), SHORT).tokens == expected

    def test_beside_a_drafter_that_sends_proposals(self, heads: Path, plain: dict[int, list[int]]) -> None:
        assert generate(engine_with(heads), SPECS, ScriptedDrafter(plain)).tokens == plain

    def test_sequences_that_are_preempted(self, heads: Path, plain: dict[int, list[int]]) -> None:
        engine = engine_with(heads, slots=120, max_tree_nodes=8)
        assert generate(engine, SPECS).tokens == plain
        assert engine.preemptions > 0

    def test_attached_swapped_and_forgotten_midway(
        self, heads: Path, useless_heads: Path, plain: dict[int, list[int]]
    ) -> None:
        engine = engine_of(packed(tiny_model("Llama"), 1000))
        for spec in SPECS:
            engine.add(spec)
        tokens: dict[int, list[int]] = {spec.sequence_id: [] for spec in SPECS}
        step = 0
        while engine.running:
            step += 1
            if step in (4, 8, 12):
                name, directory = ("good", heads) if step != 8 else ("bad", useless_heads)
                engine.forget("bad" if name == "good" else "good")
                engine.add_drafter(name, eager_drafter(directory))
                for spec in SPECS:
                    engine.attach(spec.sequence_id, name)
            for outcome in engine.step().outcomes:
                tokens[outcome.sequence_id] += outcome.tokens
        assert step > 12
        assert tokens == plain


class Seen(MedusaDrafter):
    """Records the states it is given."""

    states: dict[int, list[tuple[int, torch.Tensor]]]

    def see(self, key: object, state: torch.Tensor) -> None:
        length = self._drafts[key].tree.committed_length
        self.states.setdefault(key, []).append((length, state.clone()))
        super().see(key, state)


@pytest.mark.parametrize("architecture", ["Llama", "Gemma2", "GPT2", "Cohere"])
def test_the_states_are_what_the_output_head_got(architecture: str) -> None:
    """Each state is that of the last committed token's row, whether it was verified, accepted or computed in chunks."""
    target = packed(tiny_model(architecture), 1000)
    engine = engine_of(target, max_step_rows=16)
    seen = Seen(MedusaHeads(2, 1, target.hidden_size, target.vocab_size))
    seen.states = {}
    engine.__class__ = Attached
    engine.add_drafter("medusa", seen)
    specs = specs_of(PROMPTS, 15)
    plain = generate(engine_of(packed(tiny_model(architecture), 1000)), specs).tokens
    result = generate(engine, specs, ScriptedDrafter(plain))
    assert result.tokens == plain
    library = tiny_model(architecture)
    for spec in specs:
        text = [*spec.tokens, *plain[spec.sequence_id]]
        with torch.inference_mode():
            states = library.base_model(torch.tensor([text])).last_hidden_state[0]
        assert len(seen.states[spec.sequence_id]) > 3
        for length, state in seen.states[spec.sequence_id]:
            torch.testing.assert_close(state, states[length - 2], rtol=1e-3, atol=1e-3)


def test_the_logits_have_the_same_bits_with_states_and_without() -> None:
    model = packed(tiny_model("Llama"), 100)
    builder = BatchBuilder()
    slots = model.pool.take(9)
    rows = [builder.add_row(5 + i, i, int(slots[i]), wants_logits=i > 5) for i in range(9)]
    builder.add_lane(slots[:0], rows)
    batch = builder.build(model.group_size, model.device)
    alone = model.forward(batch)
    logits, states = model.forward_with_states(batch)
    assert torch.equal(logits, alone)
    assert states.shape == (3, 64)


def test_states_are_those_of_the_pass_whoever_else_uses_the_head_meanwhile() -> None:
    """Drafters that use the target's head are loaded in threads of their own."""
    model = packed(tiny_model("Llama"), 100)
    builder = BatchBuilder()
    slots = model.pool.take(9)
    rows = [builder.add_row(5 + i, i, int(slots[i]), wants_logits=i > 5) for i in range(9)]
    builder.add_lane(slots[:0], rows)
    batch = builder.build(model.group_size, model.device)
    _, expected = model.forward_with_states(batch)
    head = model.model.get_output_embeddings()

    def use_head(*_: object) -> None:
        with ThreadPoolExecutor(1) as other, torch.no_grad():
            other.submit(head, torch.zeros(1, 5, 64)).result()

    model.model.model.layers[0].register_forward_hook(use_head)
    assert torch.equal(model.forward_with_states(batch)[1], expected)


def test_states_cost_nothing_where_nobody_drafts_from_them(
    heads: Path, plain: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(packed(tiny_model("Llama"), 1000))
    engine.add_drafter("medusa", medusa_drafter(MedusaOptions(str(heads)), engine.model))
    monkeypatch.setattr(PackedModel, "forward_with_states", None)
    assert generate(engine, SPECS, ScriptedDrafter(plain)).tokens == plain


def test_nor_while_the_drafter_rests(heads: Path, plain: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with(heads)
    monkeypatch.setattr(DraftingAccounts, "open", lambda *_: False)
    monkeypatch.setattr(PackedModel, "forward_with_states", None)
    result = generate(engine, SPECS)
    assert result.tokens == plain
    assert result.drafted == 0


def test_one_that_has_rested_drafts_again(
    heads: Path, plain: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, steps = engine_with(heads), 0
    settle = DraftingAccounts.settle

    def count(accounts: DraftingAccounts, *args: object) -> None:
        nonlocal steps
        steps += 1
        settle(accounts, *args)

    monkeypatch.setattr(DraftingAccounts, "settle", count)
    monkeypatch.setattr(DraftingAccounts, "open", lambda *_: steps % 8 < 4)
    result = generate(engine, SPECS)
    assert result.tokens == plain
    assert result.accepted > 0


class TestDrafting:
    @pytest.fixture
    def drafter(self) -> MedusaDrafter:
        """Head i uses elements i * 8 to i * 8 + 7 of a state as the logits of tokens 0 to 7."""
        made = MedusaHeads(3, 0, 24, 8).requires_grad_(False)
        for index, head in enumerate(made):
            head[0].weight.zero_()
            head[0].weight[:, index * 8 : index * 8 + 8] = torch.eye(8)
        return MedusaDrafter(made)

    def reader(self, drafter: MedusaDrafter, **fields: int) -> DrafterReader:
        return DrafterReader(drafter, [1, 2, 3], vocab_size=8, **fields)

    def state(self, *tokens: int, height: float = 9.0) -> torch.Tensor:
        """Returns a state for which head i predicts tokens[i]."""
        state = torch.zeros(24)
        for index, token in enumerate(tokens):
            state[index * 8 + token] = height
        return state

    def test_it_takes_part_in_the_protocol(self, drafter: MedusaDrafter) -> None:
        assert isinstance(drafter, StateDrafter)

    def test_nothing_is_drafted_before_the_first_state(self, drafter: MedusaDrafter) -> None:
        reader = self.reader(drafter)
        assert drafter.grow().opened == [1]
        reader.commit([4])
        assert reader.tree.size == 0
        assert not drafter.busy

    def test_heads_guess_one_place_further_each(self, drafter: MedusaDrafter) -> None:
        reader = self.reader(drafter)
        reader.commit([4])
        drafter.see(1, self.state(5, 6, 7))
        reader.grow()
        assert reader.likeliest() == [5, 6, 7]

    def test_a_state_serves_once(self, drafter: MedusaDrafter) -> None:
        reader = self.reader(drafter)
        reader.commit([4])
        drafter.see(1, self.state(5, 6, 7))
        reader.grow()
        assert reader.commit([5, 6, 7, 1]) == [5, 6, 7]
        assert reader.tree.size == 0

    def test_what_survives_is_kept_and_drafted_on(self, drafter: MedusaDrafter) -> None:
        reader = self.reader(drafter)
        reader.commit([4])
        drafter.see(1, self.state(5, 6, 7))
        reader.grow()
        reader.commit([5])
        assert reader.likeliest() == [6, 7]
        drafter.see(1, self.state(6, 7, 2))
        reader.grow()
        assert reader.likeliest() == [6, 7, 2]

    def test_credit_and_length_bound_the_tree(self, drafter: MedusaDrafter) -> None:
        reader = self.reader(drafter, max_tree_nodes=5)
        reader.commit([4])
        drafter.see(1, self.state(5, 6, 7, height=0.5))
        reader.grow()
        assert 0 < reader.tree.size <= 5
        short = DrafterReader(drafter, [1, 2, 3], key=2, vocab_size=8, max_length=7)
        short.commit([4])
        drafter.see(2, self.state(5, 6, 7))
        short.grow()
        # Position 6 is the last one: the root is at 3, and the row at 5 gives the token at 6.
        assert short.likeliest() == [5, 6]

    def test_ids_that_the_target_lacks_are_not_drafted(self, drafter: MedusaDrafter) -> None:
        reader = DrafterReader(drafter, [1, 2, 3], vocab_size=6)
        reader.commit([4])
        drafter.see(1, self.state(7, 6, 5))
        reader.grow()
        assert all(node.token < 6 for node in reader.tree.nodes())
        assert reader.tree.size > 0

    def test_states_that_are_no_numbers(self, drafter: MedusaDrafter) -> None:
        reader = self.reader(drafter)
        reader.commit([4])
        drafter.see(1, torch.full((24,), torch.nan))
        reader.grow()
        assert reader.tree.size == 0

    def test_heads_that_are_never_right_are_asked_less(self, drafter: MedusaDrafter) -> None:
        reader = DrafterReader(drafter, [1, 2, 3], vocab_size=8)
        sizes = []
        for _ in range(300):
            reader.commit([4])
            drafter.see(1, self.state(5, 6, 7))
            reader.grow()
            sizes.append(reader.tree.size)
        assert sizes[0] >= 3
        assert sizes[-1] == 1
        assert drafter.growth.positions() == 1

    def test_a_sequence_that_is_closed(self, drafter: MedusaDrafter) -> None:
        reader = self.reader(drafter)
        reader.commit([4])
        drafter.see(1, self.state(5, 6, 7))
        drafter.close(1)
        drafter.close(1)
        assert not drafter.busy
        with pytest.raises(KeyError):
            drafter.see(1, self.state(5))

    def test_sequences_share_a_pass(self, drafter: MedusaDrafter) -> None:
        readers = [DrafterReader(drafter, [1, 2, 3], key=key, vocab_size=8) for key in (1, 2, 3)]
        passes: list[int] = []
        drafter._heads[0].register_forward_pre_hook(lambda _, inputs: passes.append(len(inputs[0])))
        for reader in readers:
            reader.commit([4])
        for key in (1, 2, 3):
            drafter.see(key, self.state(key, 7, key))
        proposals = drafter.grow().proposals
        for key, reader in enumerate(readers, start=1):
            reader.take(proposals)
            assert reader.likeliest() == [key, 7, key]
        assert passes == [3]

    def test_the_requests_noise_decides(self, drafter: MedusaDrafter) -> None:
        """With uninformative logits, the first guess is the token that the target would draw."""
        first = []
        for seed in range(20):
            drafter.open(seed, DraftSpec([1, 2], SamplingParams(temperature=1.0, seed=seed), 16, 100, 8))
            drafter.commit(seed, 3, [3])
            drafter.see(seed, torch.zeros(24))
            first.append(drafter.grow().proposals[seed].token_ids[0])
            drafter.close(seed)
        assert len(set(first)) > 3


@pytest.fixture(scope="module")
def bundled() -> PackedModel:
    return PackedModel.load(str(MODELS / "target"), slots=8192)


def test_bundled_prompts_against_plain_decoding(bundled: PackedModel, tmp_path: Path) -> None:
    check_prompts(bundled, tmp_path, 8)


@pytest.mark.slow
class TestAHundredPrompts:
    def test_against_plain_decoding(self, bundled: PackedModel, tmp_path: Path) -> None:
        check_prompts(bundled, tmp_path, 100)


def check_prompts(bundled: PackedModel, tmp_path: Path, count: int) -> None:
    """The bundled target with crude heads; every second request is sampled."""
    tokenizer = Tokenizer.load(str(MODELS / "target"))
    lines = (MODELS / "prompts.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    prompts = [tokenizer.encode(json.loads(line)["text"])[-40:] for line in lines]
    sampling = [SamplingParams(temperature=0.8 * (index % 2), seed=index) for index in range(count)]
    specs = specs_of(prompts, 12, sampling)
    limits = EngineLimits(max_sequences=20)
    cost = FixedCost([1, 64], [1.0, 1.0])
    plain = generate(VerificationEngine(bundled, cost, limits), specs)
    head = bundled.model.get_output_embeddings()
    made = MedusaHeads(3, 1, bundled.hidden_size, bundled.vocab_size).requires_grad_(False).to(bundled.dtype)
    embedding = bundled.model.get_input_embeddings().weight
    assert head is not None
    for each in made:  # the target ties its embeddings, so these heads predict the target's own next token
        each[0].linear.weight.zero_()
        each[0].linear.bias.zero_()
        each[1].weight.copy_(embedding)
    made.save(tmp_path, "models/target", bundled.dtype)
    engine = VerificationEngine(bundled, cost, limits)
    engine.__class__ = Attached
    engine.add_drafter("medusa", medusa_drafter(MedusaOptions(str(tmp_path)), bundled))
    drafted = generate(engine, specs)
    assert drafted.tokens == plain.tokens
    assert drafted.drafted > count
