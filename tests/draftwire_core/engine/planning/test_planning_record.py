"""The gain from waiting is recorded for the steps that waited, and for no others."""

import pytest

from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.planning.planning_record import PlanningRecord
from draftwire_core.engine.tree.proposal import Proposal
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

BOTH = frozenset({1, 2})


def test_steps_that_did_not_wait() -> None:
    record = PlanningRecord()
    record.stepped(1.0, BOTH, 5, 4)
    record.stepped(2.0, frozenset({2}), 2, 3)
    assert record == PlanningRecord(steps=2, sequences=3, draft_tokens=7, last_draft_tokens=2)


def test_a_step_that_was_put_off_is_compared_with_what_it_would_have_been() -> None:
    record = PlanningRecord()
    record.put_off(1.0, BOTH, 2.5)
    record.put_off(1.25, BOTH, 3.5)  # a proposal came, and another one is awaited
    record.stepped(1.5, BOTH, 6, 5)
    record.stepped(2.0, BOTH, 0, 2)
    assert (record.waits, record.wait_seconds, record.expected_tokens, record.committed_tokens) == (1, 0.5, 2.5, 5)


def test_a_step_over_other_sequences_is_compared_with_nothing() -> None:
    record = PlanningRecord()
    record.put_off(1.0, BOTH, 2.5)
    record.stepped(500.0, frozenset({2}), 0, 1)
    assert record.waits == 0
    record.put_off(501.0, frozenset({2}), 1.0)
    record.put_off(502.0, frozenset({2, 3}), 2.0)
    record.stepped(503.0, frozenset({2, 3}), 0, 2)
    assert (record.waits, record.wait_seconds, record.expected_tokens) == (1, 1.0, 2.0)


def test_an_engine_counts_what_it_verifies() -> None:
    engine = engine_of(packed(tiny_model("Llama"), 200))
    prompts = [random_tokens(count, seed=count) for count in (10, 3)]
    outputs = generate(engine, specs_of(prompts, 12)).tokens
    before = engine.record.draft_tokens
    drafted = generate(engine, specs_of(prompts, 12), ScriptedDrafter(outputs))
    assert before == 0
    assert engine.record.draft_tokens == drafted.drafted > 0
    assert engine.record.sequences > engine.record.steps


def test_an_engine_counts_the_tokens_of_a_step_that_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    model = packed(tiny_model("Llama"), 200)
    prompt = random_tokens(10)
    right = generate(engine_of(model), specs_of([prompt], 4)).tokens[0]
    engine = engine_of(model)
    monkeypatch.setattr(engine.planner, "worthwhile_wait", lambda plan, candidates, now: 0.01)
    engine.add(SequenceSpec(0, prompt, 30, GREEDY))
    engine.attach(0, "d")
    engine.step()
    assert engine.wait_seconds() > 0
    engine.propose(0, "d", Proposal(11, 1, right[1:3], [0, 1]))
    assert engine.wait_seconds() > 0
    engine.step()
    record = engine.record
    assert (record.waits, record.expected_tokens, record.committed_tokens) == (1, 1.0, 3)
    engine.remove(0)
