"""A verification engine with too little memory is slower, but its tokens are the same."""

import math
import time
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.step_result import Finish
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.proposal import MergeCount, Proposal
from tests.harness.engine.engines import (
    GREEDY,
    ScriptedDrafter,
    engine_of,
    generate,
    packed,
    random_tokens,
    specs_of,
)
from tests.harness.engine.slot_check import check_slots
from tests.harness.engine.special_models import quick_model

COUNT = 40
PROMPTS = [random_tokens(length, seed=length) for length in (9, 3, 25, 14, 1, 30, 7, 18)]
SAMPLING = [
    GREEDY if index % 2 else SamplingParams(temperature=1.0, top_p=0.9, seed=index) for index in range(len(PROMPTS))
]
SPECS = specs_of(PROMPTS, COUNT, SAMPLING)


@cache
def model_of(slots: int) -> PackedModel:
    return packed(quick_model(), slots)


@pytest.fixture(autouse=True)
def no_slot_is_lost():
    yield
    for slots in SIZES:
        assert model_of(slots).pool.used == 0


SIZES = (80, 100, 200)
"""The largest sequence, of 70 tokens, fits into the smallest size with its tree."""


@cache
def undisturbed() -> dict[int, list[int]]:
    """Returns each sequence's output where memory is not short."""
    return generate(engine_of(model_of(4000)), SPECS).tokens


def test_keys_and_values_in_8_bits_are_rounded_again_alike() -> None:
    library = quick_model()
    expected = generate(engine_of(packed(library, kv_dtype="q8_0")), SPECS).tokens
    for prefix_cache in (False, True):
        engine = engine_of(packed(library, 100, kv_dtype="q8_0"), max_tree_nodes=16, prefix_cache=prefix_cache)
        assert generate(engine, SPECS, ScriptedDrafter(expected)).tokens == expected
        assert engine.preemptions > 0 and engine.model.pool.used == 0


@pytest.mark.parametrize(("slots", "accuracy"), [(80, None), (80, 0.85), (200, 0.85)])
def test_the_same_tokens_under_pressure(slots: int, accuracy: float | None) -> None:
    check_pressure(slots, accuracy)


@pytest.mark.slow
class TestMorePressure:
    def test_the_output_of_each_alone(self) -> None:
        assert generate(engine_of(model_of(4000)), SPECS, together=False).tokens == undisturbed()

    @pytest.mark.parametrize("slots", SIZES)
    @pytest.mark.parametrize("accuracy", [None, 0.0, 0.85, 1.0])
    def test_the_same_tokens(self, slots: int, accuracy: float | None) -> None:
        check_pressure(slots, accuracy)


def check_pressure(slots: int, accuracy: float | None) -> None:
    engine = engine_of(model_of(slots), max_tree_nodes=8)
    drafter = None if accuracy is None else CreditedDrafter(undisturbed(), accuracy=accuracy)
    result = generate(engine, SPECS, drafter)
    assert result.tokens == undisturbed()
    assert engine.preemptions > 0
    if accuracy:
        assert result.accepted > 0


class CreditedDrafter(ScriptedDrafter):
    """Respects a credit of eight nodes: its previous proposal may still be in the tree."""

    def propose(self, spec: SequenceSpec, committed: int) -> Proposal | None:
        first = self._next_id[spec.sequence_id]
        proposal = super().propose(spec, committed)
        if proposal is None:
            return None
        tokens, parents = list(proposal.token_ids)[:4], list(proposal.parent_ids)[:4]
        self._next_id[spec.sequence_id] = first + len(tokens)
        return Proposal(committed, first, tokens, parents)


def test_no_more_is_preempted_than_has_to_be() -> None:
    engine = engine_of(model_of(4000), max_tree_nodes=8)
    assert generate(engine, SPECS).tokens == undisturbed()
    assert engine.preemptions == 0


def test_the_oldest_gets_on_with_every_step_and_all_end_in_order() -> None:
    """One sequence needs the whole pool, which must not hold up the oldest."""
    engine = engine_of(model_of(80), max_tree_nodes=8, max_step_rows=16)
    large = SequenceSpec(1, PROMPTS[5], 72, GREEDY)
    specs = [SPECS[0], large, *SPECS[2:]]
    for spec in specs:
        engine.add(spec)
    finished = []
    while engine.running:
        oldest = next(iter(engine._running.values()))
        before = (len(oldest.tokens), -oldest.pending)
        result = engine.step()
        assert 0 < result.rows <= 16
        assert (len(oldest.tokens), -oldest.pending) > before
        check_slots(engine)
        order = [sequence.spec.sequence_id for sequence in engine._queue]
        assert order == sorted(order)
        finished += [outcome.sequence_id for outcome in result.outcomes if outcome.finish]
    assert engine.preemptions > 0 and sorted(finished) == list(range(len(specs)))


def test_the_oldest_gets_a_row_before_younger_ones_that_decode() -> None:
    engine = engine_of(model_of(100), max_tree_nodes=8, max_step_rows=8)
    engine.add(SequenceSpec(0, random_tokens(50), 80, GREEDY))
    engine.add(SPECS[4])
    engine.step()
    oldest = engine._queue.running[0]
    taken = engine.model.pool.take(engine.model.pool.free - 1)
    before = oldest.pending
    assert before > 1
    engine.step()
    assert oldest.pending < before and (engine.running, engine.preemptions) == (1, 1)
    engine.model.pool.give_back(taken)
    engine.remove(0)
    engine.remove(4)


def test_slots_that_come_back_late_in_a_step_let_the_next_one_in() -> None:
    """The first sequence ends while the second still holds slots for nodes that turn out to be wrong."""
    engine = engine_of(model_of(100), max_tree_nodes=8)
    engine.add(SequenceSpec(0, random_tokens(10, seed=0), 12, GREEDY))
    engine.add(SequenceSpec(1, random_tokens(20, seed=1), 60, GREEDY))
    engine.add(SequenceSpec(2, random_tokens(42, seed=2), 60, GREEDY))
    engine.attach(1, "d")
    engine.step()
    assert (engine.running, engine.waiting) == (2, 1)
    engine.propose(1, "d", Proposal(21, 1, list(range(10, 18)), [0] * 8))
    outcomes = engine.step().outcomes
    assert [outcome.finish for outcome in outcomes] == [Finish.LENGTH, None]
    assert (outcomes[1].drafted, outcomes[1].accepted) == ({"d": 8}, 0)
    assert list(engine._running) == [1, 2]
    engine.remove(1)
    engine.remove(2)


def test_what_was_preempted_is_computed_again_in_chunks() -> None:
    engine = engine_of(model_of(100), max_tree_nodes=8, max_step_rows=8, prefix_cache=False)
    for spec in (SPECS[3], SPECS[5]):
        engine.add(spec)
    found: dict[int, list[int]] = {3: [], 5: []}
    chunks = 0
    while engine.running:
        young = engine._queue.find(5)
        again = young is not None and engine.preemptions > 0 and young.pending > 1
        before = len(young.slots) if again else 0
        for outcome in engine.step().outcomes:
            found[outcome.sequence_id] += outcome.tokens
        if again and len(young.slots) > before:
            chunks += 1
            assert len(young.slots) - before <= 8
    assert engine.preemptions == 1 and chunks >= math.ceil(len(PROMPTS[5]) / 8)
    assert found == {3: undisturbed()[3], 5: undisturbed()[5]}


def preempted(**limits: int) -> VerificationEngine:
    """Returns an engine in which sequence 5 has just been preempted, and sequence 3 runs."""
    engine = engine_of(model_of(100), max_tree_nodes=8, **limits)
    for spec in (SPECS[3], SPECS[5]):
        engine.add(spec)
        engine.attach(spec.sequence_id, "d")
    engine.step()
    engine.propose(5, "d", Proposal(len(PROMPTS[5]) + 1, 1, [5], [0]))
    while not engine.preemptions:
        engine.step()
    assert (engine.running, engine.waiting) == (1, 1)
    return engine


def test_proposals_for_a_preempted_sequence_are_merged_and_used() -> None:
    engine = preempted()
    sequence = engine._queue.find(5)
    assert sequence is not None
    length = len(sequence.tokens)
    right = undisturbed()[5][length - len(PROMPTS[5]) :][:3]
    assert engine.propose(5, "d", Proposal(length, 2, right, [0, 2, 3])) == MergeCount(3, 0)
    engine.remove(3)
    assert (engine.running, engine.waiting) == (1, 0)
    first = engine.step().outcomes[0]  # computes the tokens again, and the next one
    assert first.tokens == right[:1] and first.sources == [None]
    second = engine.step().outcomes[0]
    assert second.tokens[:2] == right[1:] and second.sources[:2] == ["d", "d"]
    engine.remove(5)


def test_a_preempted_sequence_leaves_no_trace_in_its_drafters_timing() -> None:
    engine = preempted()
    timing = engine.planner.timings["d"]
    before = (timing.response, timing.interval)
    sequence = engine._queue.find(5)
    assert sequence is not None
    late = time.perf_counter() + 1000.0
    engine.propose(5, "d", Proposal(len(sequence.tokens), 2, [5], [0]), arrived_at=late)
    engine.propose(5, "d", Proposal(len(sequence.tokens), 3, [6], [0]), arrived_at=late + 1000.0)
    assert sequence.clocks["d"].expected_wait(late) is None
    engine.remove(3)
    engine.step()
    engine.propose(5, "d", Proposal(len(sequence.tokens), 4, [7], [0]), arrived_at=late + 3000.0)
    assert (timing.response, timing.interval) == before
    engine.remove(5)


def test_a_preempted_sequence_may_be_detached_and_removed() -> None:
    engine = preempted()
    engine.forget("d")
    sequence = engine._queue.find(5)
    assert sequence is not None and not sequence.readers
    engine.remove(5)
    assert (engine.running, engine.waiting) == (1, 0)
    engine.remove(3)


def test_fewer_nodes_are_verified_before_anyone_is_preempted() -> None:
    """The pool has just enough slots for the sequence, and none for nodes."""
    engine = engine_of(model_of(80), max_tree_nodes=8)
    spec = SequenceSpec(5, PROMPTS[5], 72, GREEDY)
    other = SequenceSpec(6, random_tokens(1), 12, GREEDY)
    drafter = CreditedDrafter({5: undisturbed()[5] + [5, 6]}, accuracy=1.0)
    for each in (spec, other):
        engine.add(each)
    assert engine.running == 2
    engine.attach(5, "d")
    drafter.open(5)
    length, taken = len(spec.tokens), engine.model.pool.take(37)
    drafted = 0
    while engine.model.pool.free > 2:
        proposal = drafter.propose(spec, length)
        assert proposal is not None
        engine.propose(5, "d", proposal)
        free = engine.model.pool.free
        result = engine.step()
        assert result.rows <= free
        drafted += sum(sum(outcome.drafted.values()) for outcome in result.outcomes)
        length = next(outcome.committed_length for outcome in result.outcomes if outcome.sequence_id == 5)
    assert engine.preemptions == 0 and drafted > 0
    engine.remove(5)
    engine.remove(6)
    engine.model.pool.give_back(taken)


# ---- any order of events ---------------------------------------------------------------------------------------------

events = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 7)),
        st.tuples(st.just("remove"), st.integers(0, 7)),
        st.tuples(st.just("propose"), st.integers(0, 7)),
        st.tuples(st.just("detach"), st.integers(0, 7)),
        st.tuples(st.just("step"), st.integers(1, 12)),
        st.tuples(st.just("step"), st.integers(1, 12)),
    ),
    max_size=50,
)


whatever = given(events, st.sampled_from(SIZES), st.sampled_from([8, 16, 64]), st.integers(0, 1000))


@whatever
@settings(max_examples=10, deadline=None)
def test_whatever_happens_slots_add_up_and_tokens_are_the_same(
    script: list[tuple[str, int]], slots: int, max_step_rows: int, seed: int
) -> None:
    check_events(script, slots, max_step_rows, seed)


@pytest.mark.slow
class TestMoreEvents:
    @whatever
    @settings(max_examples=100, deadline=None)
    def test_whatever_happens_slots_add_up_and_tokens_are_the_same(
        self, script: list[tuple[str, int]], slots: int, max_step_rows: int, seed: int
    ) -> None:
        check_events(script, slots, max_step_rows, seed)


def check_events(script: list[tuple[str, int]], slots: int, max_step_rows: int, seed: int) -> None:
    expected = undisturbed()
    engine = engine_of(model_of(slots), max_tree_nodes=8, max_step_rows=max_step_rows)
    drafter = CreditedDrafter(expected, accuracy=0.7, seed=seed)
    found: dict[int, list[int]] = {}
    proposed: dict[int, int] = {}

    def step() -> None:
        for outcome in engine.step().outcomes:
            found[outcome.sequence_id] += outcome.tokens

    try:
        for event, value in script:
            sequence = engine._queue.find(value)
            if event == "add" and value not in found:
                found[value] = []
                engine.add(SPECS[value])
                engine.attach(value, "d")
                drafter.open(value)
            elif event == "remove":
                engine.remove(value)
            elif event == "propose" and sequence is not None and proposed.get(value, 0) < len(sequence.tokens):
                proposal = drafter.propose(SPECS[value], len(sequence.tokens))
                if proposal is not None:
                    proposed[value] = len(sequence.tokens)
                    engine.propose(value, "d", proposal)
            elif event == "detach":
                engine.detach(value, "d")
            elif event == "step":
                for _ in range(value):
                    step()
                    check_slots(engine)
            check_slots(engine)
        removed = {value for event, value in script if event == "remove"}
        while engine.running:
            step()
            check_slots(engine)
        assert engine.waiting == 0
        for sequence_id, tokens in found.items():
            assert tokens == expected[sequence_id][: len(tokens)]
            assert len(tokens) == COUNT or sequence_id in removed
    finally:
        for sequence_id in found:
            engine.remove(sequence_id)
    assert engine.model.pool.used == 0
