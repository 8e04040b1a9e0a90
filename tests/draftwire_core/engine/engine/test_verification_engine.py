"""Admission, limits, ends, removal and faults of the verification engine."""

import math

import pytest
import torch

from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.step_result import Finish, RejectedDraft
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.proposal import MergeCount, Proposal, ProposalError
from tests.harness.engine.engines import (
    GREEDY,
    ScriptedDrafter,
    engine_of,
    generate,
    packed,
    random_tokens,
    specs_of,
)
from tests.harness.engine.special_models import quick_model
from tests.harness.stand_ins.fixed_cost import FixedCost


@pytest.fixture(scope="module")
def model() -> PackedModel:
    return packed(quick_model(), 1000)


@pytest.fixture(autouse=True)
def no_slot_is_lost(model: PackedModel):
    yield
    assert model.pool.used == 0


def outputs(model: PackedModel, prompts: list[list[int]], count: int = 12) -> dict[int, list[int]]:
    return generate(engine_of(model), specs_of(prompts, count)).tokens


PROMPTS = [random_tokens(count, seed=count) for count in (10, 3, 25)]


# ---- admission -------------------------------------------------------------------------------------------------------


def test_sequences_wait_for_slots_and_run_in_order(model: PackedModel) -> None:
    small = PackedModel(quick_model(), 100)
    engine = engine_of(small, max_tree_nodes=8)
    specs = specs_of([random_tokens(30, seed=index) for index in range(3)], 10)  # too few slots for the third's tokens
    for spec in specs:
        engine.add(spec)
    assert (engine.running, engine.waiting) == (2, 1)
    finished: list[int] = []
    while engine.running:
        assert small.pool.used <= 100
        finished += [outcome.sequence_id for outcome in engine.step().outcomes if outcome.finish]
    assert finished == [0, 1, 2]
    assert (engine.running, engine.waiting, small.pool.used) == (0, 0, 0)


def test_a_small_sequence_does_not_overtake_a_large_one() -> None:
    small = PackedModel(quick_model(), 100)
    engine = engine_of(small, max_tree_nodes=8)
    engine.add(SequenceSpec(0, random_tokens(50), 60, GREEDY))
    engine.add(SequenceSpec(1, random_tokens(50), 60, GREEDY))
    engine.add(SequenceSpec(2, random_tokens(3), 5, GREEDY))
    assert (engine.running, engine.waiting) == (1, 2)
    for sequence_id in range(3):
        engine.remove(sequence_id)


def test_what_never_fits_is_refused(model: PackedModel) -> None:
    engine = engine_of(model, max_tree_nodes=8)
    engine.add(SequenceSpec(0, [5], 1000 - 8, GREEDY))
    with pytest.raises(ValueError, match="does not fit into the KV cache"):
        engine.add(SequenceSpec(1, [5], 1000 - 7, GREEDY))
    engine.remove(0)


def test_max_sequences(model: PackedModel) -> None:
    engine = engine_of(model, max_sequences=2)
    for spec in specs_of([[5], [6], [7]], 4):
        engine.add(spec)
    assert (engine.running, engine.waiting) == (2, 1)
    engine.remove(0)
    assert (engine.running, engine.waiting) == (2, 0)
    engine.remove(1)
    engine.remove(2)


def test_a_step_needs_a_row_for_every_sequence(model: PackedModel) -> None:
    with pytest.raises(ValueError, match="a row for every running sequence"):
        engine_of(model, max_sequences=8, max_step_rows=7)


# ---- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accuracy", [None, 1.0, 0.6])
def test_stops_at_the_end_of_sequence_token(model: PackedModel, accuracy: float | None) -> None:
    expected = outputs(model, PROMPTS)
    specs, cut = [], {}
    for spec in specs_of(PROMPTS, 12):
        tokens = expected[spec.sequence_id]
        eos = tokens[7]
        cut[spec.sequence_id] = tokens[: tokens.index(eos) + 1]
        specs.append(SequenceSpec(spec.sequence_id, spec.tokens, spec.max_length, GREEDY, frozenset({eos})))
    drafter = None if accuracy is None else ScriptedDrafter(expected, accuracy=accuracy)
    result = generate(engine_of(model), specs, drafter)
    assert result.tokens == cut
    assert set(result.finishes.values()) == {Finish.EOS}


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_stops_at_max_length_however_much_is_drafted(model: PackedModel, count: int) -> None:
    expected = outputs(model, PROMPTS)
    result = generate(engine_of(model), specs_of(PROMPTS, count), ScriptedDrafter(expected, accuracy=1.0))
    assert result.tokens == {index: tokens[:count] for index, tokens in expected.items()}
    assert set(result.finishes.values()) == {Finish.LENGTH}
    if count == 1:
        assert result.drafted == 0


def test_outcomes_say_who_drafted_what(model: PackedModel) -> None:
    expected = outputs(model, PROMPTS[:1])[0]
    engine = engine_of(model)
    engine.add(SequenceSpec(0, PROMPTS[0], 22, GREEDY))
    for source in ("a", "b"):
        engine.attach(0, source)
    wrong = next(token for token in range(3, 20) if token not in expected[:3])
    engine.propose(0, "a", Proposal(10, 1, [expected[0], wrong], [0, 1]))
    assert engine.propose(0, "b", Proposal(10, 1, [expected[0], expected[1]], [0, 1])) == MergeCount(1, 0)
    first = engine.step().outcomes[0]  # the prompt: its last row already gives the first token
    assert (first.tokens, first.sources, first.drafted) == ([expected[0]], ["a"], {}) or first.drafted == {}
    second = engine.step().outcomes[0]
    assert second.tokens == expected[1:3]
    assert second.sources == ["b", None] and second.accepted == 1
    assert second.drafted == {"a": 1, "b": 1}
    assert second.committed_length == 13 and second.finish is None
    assert second.hit and not first.hit, "the first verdict was a node; before it there was none"
    nodes = Proposal(10, 3, [expected[2], expected[3]], [2, 3])  # drafted before the verdict arrived
    assert engine.propose(0, "b", nodes) == MergeCount(1, 0, foreseen=True)
    third = engine.step().outcomes[0]
    assert third.hit and third.tokens == expected[3:5]
    assert not engine.step().outcomes[0].hit
    engine.remove(0)


def test_what_merging_took_is_told_by_drafter(model: PackedModel) -> None:
    expected = outputs(model, PROMPTS[:1])[0]
    ticks = iter([0.0, 0.002, 1.0, 1.001, 2.0, 5.0])
    limits = EngineLimits(max_sequences=8, prefix_cache=True)
    engine = VerificationEngine(model, StepCost([1, 64], [1.0, 1.0]), limits, merging_clock=lambda: next(ticks))
    engine.add(SequenceSpec(0, PROMPTS[0], 22, GREEDY))
    for source in ("a", "b"):
        engine.attach(0, source)
    engine.propose(0, "a", Proposal(10, 1, [expected[0]], [0]))
    engine.propose(0, "b", Proposal(10, 1, [3], [0]))
    with pytest.raises(ProposalError):
        engine.propose(0, "a", Proposal(10, 7, [3], [0]))
    merged = engine.step().merged
    assert merged["a"].seconds == pytest.approx(0.002 + 0.01), "a stop of seconds is no merging"
    assert merged["b"].seconds == pytest.approx(0.001)
    assert (merged["a"].nodes, merged["b"].nodes) == (2, 1)
    assert engine.step().merged == {}
    engine.remove(0)


def test_what_adds_nothing_is_no_reason_to_plan_anew(model: PackedModel) -> None:
    expected = outputs(model, PROMPTS[:1])[0]
    engine = engine_of(model)
    engine.add(SequenceSpec(0, PROMPTS[0], 22, GREEDY))
    engine.attach(0, "d")
    engine.step()
    plans, plan = [], engine.planner.plan
    engine.planner.plan = lambda *args: plans.append(args) or plan(*args)
    for number in range(1, 21):  # tokens that are already committed, and stale ones
        engine.propose(0, "d", Proposal(10, number, [expected[0] if number % 2 else 3], [0]))
        engine.wait_seconds()
    assert len(plans) == 1
    engine.propose(0, "d", Proposal(11, 21, [expected[1]], [0]))
    engine.wait_seconds()
    assert len(plans) == 2
    assert engine.step().outcomes[0].accepted == 1
    engine.remove(0)


def test_rejected_draft_tokens_are_told_to_those_who_ask(model: PackedModel) -> None:
    expected = outputs(model, [PROMPTS[0]])[0]
    wrong = 3 if 3 not in expected[:4] else 4
    rejected: list[list[RejectedDraft]] = []
    for asks in (True, False):
        engine = engine_of(model)
        engine.add(SequenceSpec(0, PROMPTS[0], 22, GREEDY, report_rejected=asks))
        engine.attach(0, "a")
        assert engine.step().outcomes[0].rejected == []  # the prompt
        #   expected[1] -> expected[2] -> wrong -> expected[4], and wrong beside expected[1]
        tokens = [wrong, expected[1], expected[2], wrong, expected[4]]
        engine.propose(0, "a", Proposal(11, 1, tokens, [0, 0, 2, 3, 4]))
        outcome = engine.step().outcomes[0]
        assert outcome.tokens == expected[1:4] and outcome.drafted == {"a": 5}
        rejected.append(outcome.rejected)
        engine.remove(0)
    assert sorted(rejected[0], key=lambda draft: draft.depth) == [
        RejectedDraft(wrong, "a", 11, 1),
        RejectedDraft(wrong, "a", 13, 3),
        RejectedDraft(expected[4], "a", 14, 4),
    ]
    assert rejected[1] == []


# ---- removal ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1, 3])
def test_removal_frees_the_slots_and_changes_no_other(model: PackedModel, after: int) -> None:
    expected = outputs(model, PROMPTS)
    engine = engine_of(model, max_step_rows=16)
    drafter = ScriptedDrafter(expected)
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for spec in specs_of(PROMPTS, 12):
        engine.add(spec)
        engine.attach(spec.sequence_id, "d")
        drafter.open(spec.sequence_id)
    for step in range(40):
        if step == after:
            held = model.pool.used
            engine.remove(2)
            engine.remove(2)
            engine.remove(77)
            assert step == 0 or model.pool.used < held
        if not engine.running:
            break
        for outcome in engine.step().outcomes:
            found[outcome.sequence_id] += outcome.tokens
    assert found[0] == expected[0] and found[1] == expected[1]
    assert found[2] == expected[2][: len(found[2])]


def test_removal_while_waiting(model: PackedModel) -> None:
    engine = engine_of(model, max_sequences=1)
    for spec in specs_of([[5], [6]], 4):
        engine.add(spec)
    engine.remove(1)
    assert (engine.running, engine.waiting) == (1, 0)
    engine.remove(0)


# ---- proposals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 1, 3])
def test_max_draft_tokens_is_honoured(model: PackedModel, most: int) -> None:
    expected = outputs(model, PROMPTS[:1])
    spec = SequenceSpec(0, PROMPTS[0], 22, GREEDY, max_draft_tokens=most)
    engine = engine_of(model)
    engine.add(spec)
    engine.attach(0, "d")
    tokens: list[int] = []
    next_id = 1
    while engine.running:
        rest = expected[0][len(tokens) :][:6]
        if len(tokens) == 0 or most == 0:
            engine.propose(
                0, "d", Proposal(10 + len(tokens), next_id, rest, [0, *range(next_id, next_id + len(rest) - 1)])
            )
            next_id += len(rest)
        if most == 0 and next_id > 24:
            engine.detach(0, "d")
        for outcome in engine.step().outcomes:
            assert sum(outcome.drafted.values()) <= most
            assert len(outcome.tokens) <= most + 1
            tokens += outcome.tokens
    assert tokens == expected[0]


def test_a_malformed_proposal_detaches_its_drafter_from_that_sequence_alone(model: PackedModel) -> None:
    expected = outputs(model, PROMPTS[:2])
    engine = engine_of(model)
    for spec in specs_of(PROMPTS[:2], 12):
        engine.add(spec)
        engine.attach(spec.sequence_id, "d")
    with pytest.raises(ProposalError, match="token_ids"):
        engine.propose(0, "d", Proposal(10, 1, [300], [0]))
    assert engine.propose(0, "d", Proposal(10, 1, [5], [0])) == MergeCount(0, 1)
    assert engine.propose(1, "d", Proposal(3, 1, [5], [0])) == MergeCount(1, 0)
    assert engine.propose(9, "d", Proposal(3, 1, [5], [0])) == MergeCount(0, 1)
    found: dict[int, list[int]] = {0: [], 1: []}
    while engine.running:
        for outcome in engine.step().outcomes:
            found[outcome.sequence_id] += outcome.tokens
    assert found == expected
    # Attached again, it starts over with ids from 1.
    engine.add(SequenceSpec(5, PROMPTS[0], 20, GREEDY))
    engine.attach(5, "d")
    engine.propose(5, "d", Proposal(10, 1, [5], [0]))
    engine.attach(5, "d")
    engine.propose(5, "d", Proposal(10, 1, [6], [0]))
    engine.remove(5)


def test_a_drafter_that_is_gone_is_not_waited_for(model: PackedModel) -> None:
    engine = engine_of(model)
    engine.add(SequenceSpec(0, PROMPTS[0], 30, GREEDY))
    engine.attach(0, "d")
    assert engine.wait_seconds() == 0.0  # the prompt comes first
    engine.step()
    assert engine.wait_seconds() >= 0.0
    engine.detach(0, "d")
    assert engine.wait_seconds() == 0.0
    engine.remove(0)


# ---- steps -----------------------------------------------------------------------------------------------------------


def test_long_prompts_do_not_stall_those_that_decode(model: PackedModel) -> None:
    engine = engine_of(model, max_step_rows=16)
    engine.add(SequenceSpec(0, PROMPTS[1], 40, GREEDY))
    engine.step()
    engine.add(SequenceSpec(1, random_tokens(200, seed=9), 210, GREEDY))
    steps = 0
    while True:
        result = engine.step()
        assert result.rows <= 16
        steps += 1
        by_id = {outcome.sequence_id: outcome for outcome in result.outcomes}
        assert len(by_id[0].tokens) == 1
        if 1 in by_id:
            break
    assert steps == math.ceil(200 / 15)
    engine.remove(0)
    engine.remove(1)


def test_drafts_leave_room_for_prompts(model: PackedModel) -> None:
    """Prompts get at least half of a step's rows, however much is drafted."""
    expected = outputs(model, PROMPTS[1:2], 30)
    engine = engine_of(model, max_step_rows=16)
    engine.add(SequenceSpec(0, PROMPTS[1], 33, GREEDY))
    engine.attach(0, "d")
    engine.step()
    engine.add(SequenceSpec(1, random_tokens(40, seed=9), 50, GREEDY))
    draft = expected[0][1:25]
    engine.propose(0, "d", Proposal(4, 1, draft, list(range(len(draft)))))
    outcome = engine.step().outcomes[0]
    assert 0 < outcome.drafted["d"] <= 8
    assert model.pool.used >= 4 + outcome.accepted + 8
    engine.remove(0)
    engine.remove(1)


def test_an_idle_engine_steps_over_nothing(model: PackedModel) -> None:
    engine = engine_of(model)
    assert engine.wait_seconds() == 0.0
    result = engine.step()
    assert result.outcomes == [] and result.rows == 0


# ---- faults ----------------------------------------------------------------------------------------------------------

POISON = 299


@pytest.fixture(scope="module")
def poisoned() -> PackedModel:
    """A model whose logits are NaN once it has seen a certain token."""
    library_model = quick_model(tie_word_embeddings=False)
    with torch.no_grad():
        library_model.get_input_embeddings().weight[POISON] = float("nan")
    return packed(library_model, 1000)


def test_bad_logits_fail_their_sequence_and_no_other(poisoned: PackedModel) -> None:
    expected = generate(engine_of(poisoned), specs_of(PROMPTS, 12)).tokens
    specs = [*specs_of(PROMPTS, 12), SequenceSpec(3, [5, POISON, 6], 20, SamplingParams(temperature=1.0, seed=1))]
    result = generate(engine_of(poisoned), specs)
    assert result.tokens == {**expected, 3: []}
    assert result.finishes[3] is Finish.FAULT
    assert poisoned.pool.used == 0
    # Slots that held NaN are used again.
    assert generate(engine_of(poisoned), specs_of(PROMPTS, 12)).tokens == expected


def test_a_drafted_token_whose_logits_are_bad_hurts_nobody_unless_it_is_right(poisoned: PackedModel) -> None:
    expected = generate(engine_of(poisoned), specs_of(PROMPTS[:1], 12)).tokens[0]
    engine = engine_of(poisoned)
    engine.add(SequenceSpec(0, PROMPTS[0], 22, GREEDY))
    engine.attach(0, "d")
    tokens = list(engine.step().outcomes[0].tokens)
    engine.propose(0, "d", Proposal(11, 1, [POISON, expected[1], POISON, expected[2]], [0, 0, 2, 2]))
    finishes = []
    while engine.running:
        for outcome in engine.step().outcomes:
            tokens += outcome.tokens
            finishes.append(outcome.finish)
    assert tokens == expected and finishes[-1] is Finish.LENGTH


def test_tokens_before_a_fault_are_those_of_plain_decoding() -> None:
    """With and without drafts the sequence ends at the same token."""
    library_model = quick_model(tie_word_embeddings=False)
    clean = generate(engine_of(packed(library_model)), specs_of(PROMPTS[:1], 12)).tokens[0]
    fatal = next(index for index, token in enumerate(clean) if index > 2 and token not in clean[:index])
    with torch.no_grad():
        library_model.get_input_embeddings().weight[clean[fatal]] = float("nan")
    engine = engine_of(packed(library_model))
    plain = generate(engine, specs_of(PROMPTS[:1], 12))
    drafted = generate(engine, specs_of(PROMPTS[:1], 12), ScriptedDrafter({0: clean}, accuracy=1.0))
    assert plain.finishes == drafted.finishes == {0: Finish.FAULT}
    assert plain.tokens == drafted.tokens == {0: clean[: fatal + 1]}


def test_useless_drafters_are_given_up(model: PackedModel) -> None:
    """Where rows are not free, wrong drafts are no longer verified, but their acceptance is still measured."""
    expected = outputs(model, PROMPTS[:1], 60)

    engine = VerificationEngine(model, FixedCost([1, 65], [0.010, 0.074]), EngineLimits(max_sequences=1))
    drafter = ScriptedDrafter(expected, accuracy=0.0, siblings=False)
    first = generate(engine, specs_of(PROMPTS[:1], 60), drafter)
    assert first.tokens == expected
    second = generate(engine, specs_of(PROMPTS[:1], 60), drafter)
    assert second.drafted < first.drafted / 2
    assert generate(engine, specs_of(PROMPTS[:1], 60), drafter).drafted == 0
    good = ScriptedDrafter(expected, accuracy=1.0, siblings=False)
    for _ in range(3):
        last = generate(engine, specs_of(PROMPTS[:1], 60), good)
    assert last.tokens == expected and last.accepted > 30
