"""Texts scored beside running sequences get the same distributions as alone, and change no bit of any output."""

import itertools

import pytest
import torch

from draftwire_core.engine.engine.scoring import Score, ScoreSpec
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.model.features.feature_codec import INT8, decode
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.log_probs import top_log_probs
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.engines import (
    GREEDY,
    ScriptedDrafter,
    engine_of,
    generate,
    packed,
    plain_logits,
    random_tokens,
    specs_of,
)
from tests.harness.engine.special_models import quick_model

LIBRARY = quick_model()
TEXT = random_tokens(90, seed=3)
PROMPTS = [random_tokens(count, seed=count) for count in (10, 3, 25)]


@pytest.fixture(scope="module")
def model() -> PackedModel:
    return packed(LIBRARY, 1000)


@pytest.fixture(autouse=True)
def no_slot_is_lost(model: PackedModel):
    yield
    assert model.pool.used == 0


def take(engine: VerificationEngine, tokens: dict[int, list[int]] | None = None) -> dict[int, list[Score]]:
    """Steps until nothing is left to do."""
    scores: dict[int, list[Score]] = {}
    while engine.busy:
        result = engine.step()
        for score in result.scores:
            scores.setdefault(score.score_id, []).append(score)
        for outcome in result.outcomes:
            if tokens is not None:
                tokens.setdefault(outcome.sequence_id, []).extend(outcome.tokens)
    return scores


def joined(scores: list[Score]) -> tuple[list[list[int]], list[list[float]]]:
    """Joins the parts of a text after checking that they are consecutive and only the last one is marked done."""
    for before, after in itertools.pairwise(scores):
        assert after.first == before.first + len(before.token_ids)
    assert [score.done for score in scores] == [False] * (len(scores) - 1) + [True]
    return [row for score in scores for row in score.token_ids], [row for score in scores for row in score.log_probs]


def test_distributions_are_those_of_the_library(model: PackedModel) -> None:
    engine = engine_of(model, max_step_rows=32)
    engine.add_score(ScoreSpec(-1, TEXT, 1, 5))
    scores = take(engine)[-1]
    assert len(scores) == 3  # 90 tokens in steps of 32
    ids, log_probs = joined(scores)
    expected_ids, expected = top_log_probs(plain_logits(LIBRARY, TEXT), 5)
    assert ids == expected_ids.tolist()
    assert torch.allclose(torch.tensor(log_probs), expected, atol=1e-4)


def test_only_what_is_asked_for_is_told(model: PackedModel) -> None:
    engine = engine_of(model, max_step_rows=32)
    for number, first in enumerate((1, 50, len(TEXT))):
        engine.add_score(ScoreSpec(number, TEXT, first, 3))
    scores = take(engine)
    whole = joined(scores[0])
    assert joined(scores[1]) == tuple(part[49:] for part in whole)
    assert joined(scores[2]) == tuple(part[-1:] for part in whole)


def test_no_bit_of_anybody_changes(model: PackedModel) -> None:
    specs = specs_of(PROMPTS, 20, SamplingParams(temperature=1.0, seed=5))
    alone = generate(engine_of(model), specs).tokens
    engine = engine_of(model, max_step_rows=32)
    engine.add_score(ScoreSpec(-1, TEXT, 1, 8))
    expected = joined(take(engine)[-1])

    engine.add_score(ScoreSpec(-1, TEXT, 1, 8))
    engine.add_score(ScoreSpec(-2, TEXT, 1, 8))
    found = generate(engine, specs, ScriptedDrafter(alone))
    assert found.tokens == alone and found.accepted > 0
    for spec in specs:
        engine.add(spec)
    engine.add_score(ScoreSpec(-3, TEXT, 1, 8))
    tokens: dict[int, list[int]] = {}
    scores = take(engine, tokens)
    assert tokens == alone
    assert joined(scores[-3]) == expected


def test_scores_share_the_step_with_prompts(model: PackedModel) -> None:
    """Prompts get three quarters of the rows and texts the rest, so neither waits for the other."""
    engine = engine_of(model, max_step_rows=32)
    engine.add(SequenceSpec(1, random_tokens(200), 210, GREEDY))
    engine.add_score(ScoreSpec(-1, TEXT, 1, 2))
    result = engine.step()
    assert result.rows == 32
    assert [len(score.token_ids) for score in result.scores] == [8]
    engine.remove(1)
    engine.remove_score(-1)


def test_an_ended_text_leaves_no_slot(model: PackedModel) -> None:
    engine = engine_of(model, max_step_rows=32)
    engine.add_score(ScoreSpec(-1, TEXT, 1, 2))
    engine.step()
    assert model.pool.used == 32
    engine.remove_score(-1)
    assert not engine.busy and model.pool.used == 0
    engine.remove_score(-1)  # a second call does nothing


def test_sequences_come_first_where_slots_are_short() -> None:
    small = PackedModel(quick_model(), 140)
    engine = engine_of(small, max_tree_nodes=8, max_step_rows=32)
    engine.add_score(ScoreSpec(-1, TEXT, 1, 4))
    alone = joined(take(engine)[-1])

    engine.add_score(ScoreSpec(-1, TEXT, 1, 4))
    told = engine.step().scores
    assert small.pool.used == 32
    specs = specs_of([random_tokens(60, seed=9), random_tokens(20, seed=8)], 20)
    for spec in specs:
        engine.add(spec)
    assert engine.waiting == 1  # the text holds the slots it needs
    tokens: dict[int, list[int]] = {}
    result = engine.step()
    assert (engine.running, engine.waiting, result.scores) == (2, 0, [])  # the text gave up its slots
    for outcome in result.outcomes:
        tokens.setdefault(outcome.sequence_id, []).extend(outcome.tokens)
    rest = take(engine, tokens)[-1]
    assert engine.preemptions == 0
    assert joined(told + rest) == alone  # reported once, although computed twice
    assert tokens == generate(engine_of(packed(LIBRARY)), specs).tokens
    assert small.pool.used == 0


def test_what_can_never_be_scored_is_refused(model: PackedModel) -> None:
    engine = engine_of(model)
    for spec in (ScoreSpec(1, [], 1, 1), ScoreSpec(1, TEXT, 91, 1), ScoreSpec(1, [5] * 1001, 1, 1)):
        with pytest.raises(ValueError, match="cannot be scored"):
            engine.add_score(spec)
    engine.add_score(ScoreSpec(1, TEXT, 1, 1))
    with pytest.raises(ValueError, match="already"):
        engine.add_score(ScoreSpec(1, TEXT, 1, 1))
    engine.remove_score(1)


def test_logits_that_are_no_numbers_end_that_text_alone() -> None:
    broken = quick_model(tie_word_embeddings=False)
    with torch.no_grad():
        broken.get_input_embeddings().weight[7] = float("nan")
    model = packed(broken)
    engine = engine_of(model)
    engine.add_score(ScoreSpec(-1, [5, 7, 9], 1, 2))
    engine.add_score(ScoreSpec(-2, [5, 6, 9], 1, 2))
    scores = take(engine)
    assert [(score.fault, score.done) for score in scores[-1]] == [(True, True)]
    assert len(joined(scores[-2])[0]) == 3
    assert model.pool.used == 0


def test_states_come_along_if_they_are_asked_for(model: PackedModel) -> None:
    """In the same steps as a request and a text that asks for none; as 8 bits have them, they lead to the logits."""
    engine = engine_of(model, max_step_rows=32)
    engine.add(SequenceSpec(1, random_tokens(40), 60, GREEDY))
    engine.add_score(ScoreSpec(-1, TEXT, 5, 1, states=True))
    engine.add_score(ScoreSpec(-2, TEXT, 5, 1))
    scores = take(engine)
    assert [score.states for score in scores[-2]] == [b""] * len(scores[-2])
    states = torch.cat([decode(score.states, model.hidden_size, INT8) for score in scores[-1]])
    with torch.no_grad():
        expected = LIBRARY.get_decoder()(torch.tensor([TEXT]), use_cache=False).last_hidden_state[0, 4:]
    torch.testing.assert_close(states, expected, rtol=0, atol=float(expected.abs().max()) / 120)
