"""The target's first layers draft over its own KV slots: no token, slot or bit of the target depends on it."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from draftwire_core.engine.device.choices import KvDtype
from draftwire_core.engine.drafters.drafter import DraftSpec, EngineState
from draftwire_core.engine.drafters.early_exit import (
    EarlyExitDrafter,
    EarlyExitOptions,
    early_exit_drafter,
    weights_share,
)
from draftwire_core.engine.drafters.lookup.ngram import NgramOptions, ngram_drafter
from draftwire_core.engine.engine.sequence import Sequence, SequenceSpec
from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.tree.proposal import Proposal
from tests.harness.engine.early_exit_engine import SPECS, engine_with
from tests.harness.engine.engines import (
    GREEDY,
    ScriptedDrafter,
    generate,
    packed,
    plain_logits,
    random_tokens,
    tiny_model,
    walk,
)
from tests.harness.engine.special_models import early_model, truncated
from tests.harness.kernels.prepared_interpreter import prepare_interpreter
from tests.harness.kernels.untried_kernels import untried_kernels


@pytest.fixture(scope="module")
def model() -> PackedModel:
    return packed(early_model(), 1000)


@pytest.fixture(scope="module")
def plain(model: PackedModel) -> dict[int, list[int]]:
    return generate(engine_with(None, model), SPECS).tokens


class TestNoTokenDependsOnIt:
    @pytest.mark.parametrize("layers", [1, 2])
    def test_beside_others(self, model: PackedModel, layers: int, plain: dict[int, list[int]]) -> None:
        engine = engine_with(layers, model)
        result = generate(engine, SPECS)
        assert result.tokens == plain
        assert result.accepted > (0 if layers == 1 else 40)
        assert model.pool.used == 0
        assert not engine._local.busy

    @pytest.mark.parametrize("kv_dtype", ["auto", "q8_0"])
    def test_with_fused_layers(self, kv_dtype: KvDtype) -> None:
        sizes = {"hidden_size": 128, "head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
        fused = packed(early_model("Llama", torch.bfloat16, intermediate_size=192, **sizes), 1000, kv_dtype=kv_dtype)
        expected = generate(engine_with(None, fused), SPECS).tokens
        result = generate(engine_with(2, fused), SPECS)
        assert result.tokens == expected
        assert result.accepted > 0

    def test_beside_other_drafters(self, model: PackedModel, plain: dict[int, list[int]]) -> None:
        engine = engine_with(2, model)
        engine.add_drafter("ngram", ngram_drafter(NgramOptions(min=1)))
        assert generate(engine, SPECS, ScriptedDrafter(plain)).tokens == plain
        assert model.pool.used == 0

    def test_with_too_few_slots(self, plain: dict[int, list[int]]) -> None:
        check_few_slots(96, plain)

    def test_it_comes_and_goes_midway(self, model: PackedModel, plain: dict[int, list[int]]) -> None:
        engine = engine_with(None, model)
        for spec in SPECS:
            engine.add(spec)
        tokens: dict[int, list[int]] = {spec.sequence_id: [] for spec in SPECS}
        step = accepted = 0
        while engine.running:
            step += 1
            if step in (4, 9):
                engine.add_drafter("early", EarlyExitDrafter(model.first_layers(2), 0.01))
                for spec in SPECS:
                    engine.attach(spec.sequence_id, "early")
            if step == 6:
                engine.detach(SPECS[0].sequence_id, "early")
            if step in (7, 13):
                engine.forget("early")
            result = engine.step()
            assert not result.drafting or step >= 4
            for outcome in result.outcomes:
                tokens[outcome.sequence_id] += outcome.tokens
                accepted += outcome.accepted
        assert tokens == plain
        assert accepted > 0
        assert model.pool.used == 0


@pytest.mark.slow
class TestFewSlots:
    @pytest.mark.parametrize("slots", [96, 120, 200])
    def test_no_token_depends_on_it(self, slots: int, plain: dict[int, list[int]]) -> None:
        check_few_slots(slots, plain)


def check_few_slots(slots: int, plain: dict[int, list[int]]) -> None:
    engine = engine_with(2, packed(early_model(), slots), max_tree_nodes=8)
    result = generate(engine, SPECS)
    assert result.tokens == plain
    assert result.accepted > 0
    assert engine.preemptions > 0
    assert engine.model.pool.used == 0


class TestDrafting:
    """One sequence and its drafts."""

    def test_it_drafts_what_the_first_layers_say(self) -> None:
        bench = Bench(early_model(), random_tokens(20))
        proposal = bench.grow()
        expected, tokens = [], list(bench.sequence.tokens)
        shallow = truncated(bench.library, 2)
        path = best_path(proposal)
        for _ in path:
            expected.append(int(plain_logits(shallow, tokens)[-1].argmax()))
            tokens.append(expected[-1])
        assert path == expected
        assert len(path) >= 3

    def test_what_survives_a_verdict_is_drafted_on(self) -> None:
        """Commits as if the step had verified no node: the tree below the drawn token survives."""
        bench = Bench(early_model(), random_tokens(20))
        first = bench.grow()
        bench.commit([best_path(first)[0]])
        assert bench.tree.size > 0
        again = bench.grow()
        fresh = Bench(bench.library, bench.sequence.tokens)
        expected = best_path(fresh.grow())
        grown, node = [], bench.tree.root
        while node.children:
            node = next(iter(node.children.values()))
            grown.append(node.token)
        assert grown[: len(expected)] == expected[: len(grown)]
        assert len(grown) > len(best_path(first)) - 1
        assert again.first_node_id == first.first_node_id + len(first.token_ids)

    def test_the_targets_slots_stay_as_they_are(self) -> None:
        bench = Bench(early_model(), random_tokens(20))
        used = bench.sequence.slots.array().copy()

        def held() -> list[torch.Tensor]:
            return [each[:, used].clone() for pair in bench.model.cache._layers.values() for each in pair]

        before = held()
        assert bench.grow()
        assert all(torch.equal(*pair) for pair in zip(before, held(), strict=True))
        assert bench.model.pool.used == len(used)
        assert all(node.slot == -1 for node in bench.tree.nodes())

    def test_a_pass_that_fails_keeps_no_slot(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bench = Bench(early_model(), random_tokens(20))
        used = bench.model.pool.used

        def fail(batch: object) -> torch.Tensor:
            raise RuntimeError("no memory")

        monkeypatch.setattr(bench.drafter.model, "forward", fail)
        with pytest.raises(RuntimeError, match="no memory"):
            bench.grow()
        assert bench.model.pool.used == used

    def test_without_a_free_slot_there_is_no_draft(self) -> None:
        bench = Bench(early_model(), random_tokens(20))
        taken = bench.model.pool.take(bench.model.pool.free)
        assert not bench.drafter.grow().proposals
        bench.model.pool.give_back(taken)

    @pytest.mark.parametrize("pending", [2, 5])
    def test_not_before_the_prompt_is_computed(self, pending: int) -> None:
        bench = Bench(early_model(), random_tokens(20), pending)
        assert not bench.drafter.busy
        assert not bench.drafter.grow().proposals
        bench.compute()
        assert bench.drafter.busy
        assert bench.grow()
        assert not bench.drafter.busy

    @pytest.mark.parametrize(("left", "deepest"), [(1, 0), (2, 1), (3, 2)])
    def test_no_deeper_than_the_request_goes(self, left: int, deepest: int) -> None:
        """The last token needs no node: its parent's row determines it."""
        bench = Bench(early_model(), random_tokens(20), left=left)
        proposals = bench.drafter.grow().proposals.values()
        assert max((len(best_path(each)) for each in proposals), default=0) == deepest

    @pytest.mark.parametrize("most", [0, 1, 3])
    def test_no_more_than_the_request_allows(self, most: int) -> None:
        bench = Bench(early_model(), random_tokens(20), max_draft_tokens=most)
        drafted = sum(len(each.token_ids) for each in bench.drafter.grow().proposals.values())
        assert min(most, 1) <= drafted <= most


class TestUseless:
    """Each step is counted as a tenth of a millisecond: probes are then expensive and stay rare."""

    @pytest.fixture(autouse=True)
    def times_as_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(StepCost, "observe", lambda *_: 0.0)

    def test_one_that_does_not_pay_is_tried_now_and_then(self, model: PackedModel) -> None:
        spec = SequenceSpec(0, random_tokens(5), 105, GREEDY)
        expected = generate(engine_with(None, model), [spec])
        engine = engine_with(1, model, seconds=1e-4, share=1.0)
        assert generate(engine, [spec]).tokens == expected.tokens
        assert 1 <= engine.drafter.clock.steps < 10

    def test_one_that_is_never_right_is_given_up(self, model: PackedModel, monkeypatch: pytest.MonkeyPatch) -> None:
        spec = SequenceSpec(0, random_tokens(5), 105, GREEDY)
        expected = generate(engine_with(None, model), [spec])
        engine = engine_with(2, model, seconds=1e-4, share=0.3)
        growth = engine.drafter._growth
        grow, right = growth.children, set(expected.tokens[0])
        wrong = [token for token in range(3, 300) if token not in right][:3]
        monkeypatch.setattr(growth, "children", lambda growing, parent, *_: grow(growing, parent, wrong, [-0.5] * 3))
        engine.add(spec)
        rounds = []
        while engine.running:
            engine.step()
            rounds.append(engine.drafter.clock.steps)
        assert rounds[5] >= 1
        assert rounds[-1] - rounds[60] <= 1

    @pytest.mark.parametrize("name", ["Llama", "Olmo2"])
    def test_the_share_of_weights(self, name: str) -> None:
        model = packed(tiny_model(name))
        shares = [weights_share(model, layers) for layers in (1, 2)]
        assert 0.1 < shares[0] < shares[1] < 1
        assert 1 - shares[1] == pytest.approx(shares[1] - shares[0])


class TestMaking:
    def test_of_options(self, model: PackedModel) -> None:
        drafter = early_exit_drafter(EarlyExitOptions(layers=1), model)
        assert drafter.model.pool is model.pool
        assert model.pool.used == 0

    def test_its_trial_leaves_the_slots_of_a_target_on_a_gpus_kernels_alone(self) -> None:
        pytest.importorskip("triton")
        prepare_interpreter()
        with untried_kernels():
            model = PackedModel(tiny_model("Llama", num_hidden_layers=2), 20, kernels=True)
        walk(model, [random_tokens(4, seed=1)], [3], trees=False)
        before = [each.clone() for pair in model.cache._layers.values() for each in pair]
        assert len(before) == 4
        drafter = early_exit_drafter(EarlyExitOptions(layers=1), model)
        assert drafter.model.cache is model.cache
        after = [each for pair in model.cache._layers.values() for each in pair]
        assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))

    def test_without_layers_it_is_no_drafter(self) -> None:
        with pytest.raises(FieldError, match="layers: must be given"):
            EarlyExitOptions()

    def test_all_layers_are_the_model_itself(self, model: PackedModel) -> None:
        with pytest.raises(ModelLoadError, match="layers: must be from 1 to 2"):
            early_exit_drafter(EarlyExitOptions(layers=3), model)

    @pytest.mark.parametrize(
        ("forward", "reason"),
        [
            (lambda batch: 1 / 0, "cannot run: ZeroDivisionError"),
            (lambda batch: torch.zeros(1, 1), ": expected 1 attention layers, found 0"),
        ],
    )
    def test_a_model_that_cannot_be_left_early(
        self, monkeypatch: pytest.MonkeyPatch, forward: Callable[[object], torch.Tensor], reason: str
    ) -> None:
        other = packed(early_model(), 100)
        monkeypatch.setattr(PackedModel, "forward", lambda self, batch: forward(batch))
        with pytest.raises(ModelLoadError, match=reason):
            early_exit_drafter(EarlyExitOptions(layers=1), other)


class Bench:
    """A drafter of two of three layers and one sequence, without an engine: the test decides what is committed."""

    def __init__(
        self,
        library: PreTrainedModel,
        tokens: list[int],
        pending: int = 1,
        left: int = 50,
        max_draft_tokens: int | None = None,
    ) -> None:
        self.library = library
        self.model = packed(library, 200)
        spec = SequenceSpec(0, tokens, len(tokens) + left, GREEDY, max_draft_tokens=max_draft_tokens)
        self.sequence = Sequence(spec)
        self.drafter = EarlyExitDrafter(self.model.first_layers(2), 0.01)
        self.drafter.enter(EngineState({0: self.sequence}, StepCost([1, 64], [1.0, 1.0]), list))
        self.compute(pending)
        self.drafter.open(0, DraftSpec(self.sequence.tokens, GREEDY, 16, spec.max_length))
        self.tree = self.drafter._drafts[0].tree

    def compute(self, pending: int = 1) -> None:
        """Lets the target compute all but the last tokens."""
        sequence, model = self.sequence, self.model
        start, end = len(sequence.slots), sequence.length - pending
        slots = model.pool.take(end - start)
        builder = BatchBuilder()
        rows = [builder.add_row(sequence.tokens[at], at, int(slots[at - start]), True) for at in range(start, end)]
        builder.add_lane(sequence.slots.array(), rows)
        model.forward(builder.build(model.group_size, model.device))
        sequence.slots.extend(slots)

    def grow(self) -> Proposal:
        growth = self.drafter.grow()
        return growth.proposals[0]

    def commit(self, tokens: list[int]) -> None:
        self.sequence.commit(tokens)
        self.drafter.commit(0, self.sequence.length, tokens)
        self.compute()


def best_path(proposal: Proposal) -> list[int]:
    """Returns the tokens along the first drafted nodes, from the root."""
    path: list[int] = []
    parent = 0
    while parent in proposal.parent_ids:
        index = list(proposal.parent_ids).index(parent)
        path.append(proposal.token_ids[index])
        parent = proposal.first_node_id + index
    return path
