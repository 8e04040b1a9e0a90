"""The engine with models that have recurrent layers: the same tokens with any drafter, memory and history."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_core.engine.drafters.lookup.ngram import NgramOptions, ngram_drafter
from draftwire_core.engine.drafters.model.local_model import LocalModelDrafter
from draftwire_core.engine.engine.scoring import Score, ScoreSpec
from draftwire_core.engine.kv.recurrent_states import KEPT_EVERY, RecurrentStates
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model import state_plan
from draftwire_core.engine.model.packed_model import PackedModel, UnsupportedModelError
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.early_exit_engine import Attached, engine_with
from tests.harness.engine.engines import (
    GREEDY,
    Generated,
    ScriptedDrafter,
    engine_of,
    generate,
    packed,
    random_tokens,
    specs_of,
)
from tests.harness.engine.recurrent_models import KINDS, check_idle, recurrent_model
from tests.harness.engine.slot_check import check_slots

COUNT = 14
SYSTEM = random_tokens(61, seed=1)
PROMPTS = [[*SYSTEM, *random_tokens(length, seed=length)] for length in (9, 3, 25)] + [[7], SYSTEM]
SAMPLING = [
    GREEDY if index % 2 else SamplingParams(temperature=1.0, top_p=0.9, seed=index) for index in range(len(PROMPTS))
]
SPECS = specs_of(PROMPTS, COUNT, SAMPLING)
FEW = ("Qwen3_5", "Mamba2", "FalconH1")
"""A state that products update, one that a scan does, and one beside attention in the same layer."""


@cache
def model_of(name: str, slots: int = 3000) -> PackedModel:
    return packed(recurrent_model(name), slots)


@cache
def undisturbed(name: str) -> dict[int, list[int]]:
    """Each sequence's output when it runs alone."""
    return generate(engine_of(model_of(name), prefix_cache=False), SPECS, together=False).tokens


@pytest.mark.parametrize("name", FEW)
def test_tokens_are_the_same_however_they_come_about(name: str) -> None:
    check_tokens(name, accuracies=(0.7, 0.0))


def check_tokens(name: str, accuracies: tuple[float, ...]) -> None:
    model, expected = model_of(name), undisturbed(name)
    assert generate(engine_of(model, max_step_rows=16), SPECS).tokens == expected
    for seed, accuracy in enumerate(accuracies):
        found = generate(engine_of(model), SPECS, ScriptedDrafter(expected, accuracy=accuracy, seed=seed))
        assert found.tokens == expected
        assert found.accepted > 0 or not accuracy
    resumed = [replace(spec, tokens=[*spec.tokens, *expected[spec.sequence_id][:9]]) for spec in SPECS]
    rest = {sequence_id: tokens[9:] for sequence_id, tokens in expected.items()}
    assert generate(engine_of(model), resumed, ScriptedDrafter(rest)).tokens == rest
    engine_of(model)  # its prefix cache replaces the last one
    check_idle(model)


def drafting_engine(model: PackedModel, drafter: str, draft: PackedModel) -> Attached:
    engine = engine_with(None, model, prefix_cache=True)
    if drafter == "ngram":
        engine.add_drafter("ngram", ngram_drafter(NgramOptions(min=1)))
    else:
        engine.add_drafter("draft", LocalModelDrafter(draft, 0.01))
    return engine


@pytest.mark.parametrize(
    ("name", "drafter"),
    [("Qwen3_5", "ngram"), ("Qwen3_5", "draft model"), ("Mamba2", "draft model"), ("FalconH1", "ngram")],
)
def test_drafters_of_the_verifier(name: str, drafter: str) -> None:
    check_drafter(name, drafter)


def check_drafter(name: str, drafter: str) -> None:
    """A draft model grows trees over several passes, whose nodes start from those of earlier ones."""
    draft = packed(recurrent_model(name), 3000)
    engine = drafting_engine(model_of(name), drafter, draft)
    found = generate(engine, SPECS)
    assert found.tokens == undisturbed(name)
    assert found.drafted > 0
    if drafter == "draft model":
        assert found.accepted > found.drafted / 4  # it is the target: its guesses are right unless its states are not
        check_idle(draft)


@pytest.mark.parametrize("name", FEW)
def test_a_draft_models_states_are_the_targets(name: str) -> None:
    check_draft_model(name)


def check_draft_model(name: str) -> None:
    """With the target as draft model, greedy, all nodes of a chain are accepted."""
    draft = packed(recurrent_model(name), 3000)
    engine = drafting_engine(model_of(name), "draft model", draft)
    specs = specs_of(PROMPTS[:1], 40)
    found = generate(engine, specs)
    assert found.tokens == generate(engine_of(model_of(name), prefix_cache=False), specs).tokens
    assert found.steps < 20


def test_the_same_tokens_under_pressure() -> None:
    check_pressure("Qwen3_5", 64, (9, 14, 25, 3), 20)


def check_pressure(name: str, slots: int, lengths: tuple[int, ...], count: int) -> None:
    """lengths: of the prompts. count: number of tokens that each sequence generates."""
    model = model_of(name, slots)
    prompts = [random_tokens(length, seed=length) for length in lengths]
    samplings = [GREEDY if index % 2 else SamplingParams(seed=index) for index in range(len(prompts))]
    specs = specs_of(prompts, count, samplings)
    expected = generate(engine_of(model_of(name), prefix_cache=False), specs, together=False).tokens
    for prefix_cache in (False, True):
        engine = engine_of(model, max_tree_nodes=8, prefix_cache=prefix_cache)
        assert generate(engine, specs).tokens == expected
        assert engine.preemptions > 0
        for spec in specs:
            engine.add(spec)
        check_slots(engine)
        for spec in specs:
            engine.remove(spec.sequence_id)
    engine_of(model)
    check_idle(model)


@pytest.mark.parametrize("name", FEW)
def test_prefixes_are_found_where_a_state_was_kept(name: str) -> None:
    check_prefixes(name)


def check_prefixes(name: str) -> None:
    model = model_of(name)
    engine = engine_of(model)
    cache, states = engine.prefix_cache, model.cache.states
    assert cache is not None and states is not None
    long = [*SYSTEM, *random_tokens(KEPT_EVERY, seed=5)]
    other = [*long[: KEPT_EVERY + 3], *random_tokens(9, seed=6)]
    specs = specs_of([long, long, other], 5)
    expected = generate(engine_of(model, prefix_cache=False), specs, together=False).tokens
    engine = engine_of(model)
    cache = engine.prefix_cache
    assert cache is not None
    assert generate(engine, specs, together=False).tokens == expected
    assert cache.hit_tokens == len(long) - 1 + KEPT_EVERY
    turn = specs_of([[*long, *expected[0], *random_tokens(7, seed=9)]], 5)
    alone = generate(engine_of(model_of(name, 2000), prefix_cache=False), turn).tokens
    before = cache.hit_tokens
    assert generate(engine, turn).tokens == alone
    assert cache.hit_tokens - before == len(long) + len(expected[0]) - 1  # the state of a sequence that has ended
    assert 0 < states.kept <= 8


@pytest.mark.parametrize("length", [64, 65, 66], ids=["even parts", "one token left", "two left"])
def test_the_same_prompts_together_are_computed_once(length: int) -> None:
    model = model_of("Mamba2")
    specs = specs_of([random_tokens(length, seed=3)] * 4, 2)
    expected = generate(engine_of(model, prefix_cache=False), specs, together=False).tokens
    engine = engine_of(model, max_step_rows=16)
    assert generate(engine, specs).tokens == expected
    cache = engine.prefix_cache
    assert cache is not None and cache.hit_tokens == 3 * (length - 1)
    engine_of(model)
    check_idle(model)


def test_kept_states_are_bounded() -> None:
    model = packed(recurrent_model("Mamba2"), 3000)
    engine = engine_of(model)
    generate(engine, specs_of([random_tokens(30, seed=seed) for seed in range(20)], 3))
    states = model.cache.states
    assert states is not None and states.kept == 8
    assert states.used == (8, 0)
    engine_of(model)
    check_idle(model)


@pytest.mark.parametrize("name", KINDS)
def test_scores_and_prompt_log_probs(name: str) -> None:
    model = model_of(name)
    text = random_tokens(70, seed=4)

    def scores(rows: int) -> list[Score]:
        engine = engine_of(model, max_step_rows=rows)
        engine.add_score(ScoreSpec(1, text, 1, 3))
        found: list[Score] = []
        while engine.busy:
            found += engine.step().scores
        return found

    (whole,), pieces = scores(200), scores(8)
    assert whole.log_probs == [row for each in pieces for row in each.log_probs]
    engine_of(model)
    check_idle(model)


events = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, len(PROMPTS) - 1)),
        st.tuples(st.just("remove"), st.integers(0, len(PROMPTS) - 1)),
        st.tuples(st.just("step"), st.integers(1, 6)),
    ),
    max_size=30,
)


whatever = given(script=events, slots=st.sampled_from([130, 170, 600]), rows=st.sampled_from([8, 40]))


@settings(max_examples=8, deadline=None)
@whatever
def test_whatever_happens_tokens_are_the_same(script: list[tuple[str, int]], slots: int, rows: int) -> None:
    check_events(script, slots, rows)


def check_events(script: list[tuple[str, int]], slots: int, rows: int) -> None:
    model, expected = model_of("Qwen3_5", slots), undisturbed("Qwen3_5")
    engine = engine_of(model, max_tree_nodes=16, max_step_rows=rows)
    drafter = ScriptedDrafter(expected, siblings=True)
    found: dict[int, list[int]] = {}
    lengths: dict[int, int] = {}

    def step() -> None:
        for key, length in lengths.items():
            sequence = engine._queue.find(key)
            assert sequence is not None
            proposal = drafter.propose(SPECS[key], length) if not sequence.tree.size else None
            if proposal is not None:
                engine.propose(key, "scripted", proposal)
        for outcome in engine.step().outcomes:
            found[outcome.sequence_id] += outcome.tokens
            lengths[outcome.sequence_id] = outcome.committed_length
            if outcome.finish is not None:
                del lengths[outcome.sequence_id]
                assert found.pop(outcome.sequence_id) == expected[outcome.sequence_id]
        check_slots(engine)

    for event, number in script:
        if event == "add" and number not in lengths:
            engine.add(SPECS[number])
            drafter.open(number)
            engine.attach(number, "scripted")
            found[number], lengths[number] = [], len(SPECS[number].tokens)
        elif event == "remove" and number in lengths:
            engine.remove(number)
            del lengths[number], found[number]
        elif event == "step":
            for _ in range(number):
                step()
    while lengths:
        step()
    engine_of(model)
    check_idle(model)


# ---- planted faults --------------------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def replay_skipped(patch: Patch) -> None:
    """Accepted tokens never reach the state: it moves on to their position without them."""
    add = state_plan._Tree.add

    def without_replay(self: state_plan._Tree, lane: state_plan.Lane, start: int) -> None:
        add(self, replace(lane, context=lane.context[:0]), 0)

    in_turn = state_plan._Tree.in_turn

    def shorter(self: state_plan._Tree, start: int, target: int, fixed: int) -> object:
        return in_turn(self, start, target, max(0, min(fixed, max(self.depths))))

    patch.setattr(state_plan._Tree, "add", without_replay)
    patch.setattr(state_plan._Tree, "in_turn", shorter)


def inputs_of_another_branch(patch: Patch) -> None:
    """The accepted path is replayed from the inputs of nodes beside it."""
    stored = RecurrentStates.stored

    def shifted(self: RecurrentStates, slots: np.ndarray) -> np.ndarray:
        found = stored(self, slots)
        return np.where(found > 0, found - 1, found)

    patch.setattr(RecurrentStates, "stored", shifted)


FAULTS: list[Callable[[Patch], None]] = [replay_skipped, inputs_of_another_branch]


@pytest.mark.parametrize(("name", "fault"), [("Qwen3_5", replay_skipped), ("Mamba2", inputs_of_another_branch)])
def test_a_wrong_rollback_shows(name: str, fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    check_fault(name, fault, monkeypatch)


def check_fault(name: str, fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """In the self-test, and in an engine whose drafter guesses the right tokens."""
    expected = undisturbed(name)
    drafter = ScriptedDrafter(expected, accuracy=0.9)
    fault(monkeypatch)
    with pytest.raises(UnsupportedModelError, match="scene 'after a rollback'"):
        run_self_test(packed(recurrent_model(name)))
    assert outputs(packed(recurrent_model(name)), drafter).tokens != expected


def outputs(model: PackedModel, drafter: ScriptedDrafter) -> Generated:
    return generate(engine_of(model, prefix_cache=False), SPECS, drafter)


# ---- every kind ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
class TestEveryKind:
    @settings(max_examples=40, deadline=None)
    @whatever
    def test_whatever_happens_tokens_are_the_same(self, script: list[tuple[str, int]], slots: int, rows: int) -> None:
        check_events(script, slots, rows)

    @pytest.mark.parametrize("name", KINDS)
    def test_tokens_are_the_same_however_they_come_about(self, name: str) -> None:
        assert generate(engine_of(model_of(name)), SPECS).tokens == undisturbed(name)
        check_tokens(name, accuracies=(1.0, 0.85, 0.5, 0.0))

    @pytest.mark.parametrize("drafter", ["ngram", "draft model"])
    @pytest.mark.parametrize("name", KINDS)
    def test_drafters_of_the_verifier(self, name: str, drafter: str) -> None:
        check_drafter(name, drafter)

    @pytest.mark.parametrize("name", KINDS)
    def test_a_draft_models_states_are_the_targets(self, name: str) -> None:
        check_draft_model(name)

    @pytest.mark.parametrize("name", KINDS)
    @pytest.mark.parametrize("slots", [80, 200])
    def test_the_same_tokens_under_pressure(self, name: str, slots: int) -> None:
        check_pressure(name, slots, (9, 3, 25, 14, 1, 30, 7, 18), 40)

    @pytest.mark.parametrize("name", KINDS)
    def test_prefixes_are_found_where_a_state_was_kept(self, name: str) -> None:
        check_prefixes(name)

    @pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
    @pytest.mark.parametrize("name", KINDS)
    def test_a_wrong_rollback_shows(self, name: str, fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
        check_fault(name, fault, monkeypatch)
