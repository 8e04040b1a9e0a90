"""Drafters in the engine's thread: asked before each step, updated after it, and no token depends on them."""

from collections.abc import Callable

import pytest

from draftwire_core.engine.drafters.drafter import Drafter
from draftwire_core.engine.drafters.lookup.ngram import NgramOptions, ngram_drafter
from draftwire_core.engine.drafters.lookup.suffix import SuffixOptions, suffix_drafter
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.sampling.sampling_params import SamplingParams
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

PROMPTS = [random_tokens(9, seed=1) * 3, random_tokens(3, seed=2), random_tokens(5, seed=3) * 5, [7] * 20]
SPECS = specs_of(PROMPTS, 40, [GREEDY, SamplingParams(temperature=1.0, seed=3), GREEDY, SamplingParams(seed=4)])
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "ngram": lambda: ngram_drafter(NgramOptions(min=1)),
    "suffix": lambda: suffix_drafter(SuffixOptions(min=1)),
    "shared suffix": lambda: suffix_drafter(SuffixOptions(min=1, shared=True)),
}


class Attached(VerificationEngine):
    """An engine that attaches all its drafters to every sequence."""

    def add(self, spec: SequenceSpec) -> None:
        super().add(spec)
        for source in self._local._drafters:
            self.attach(spec.sequence_id, source)


def engine_with(*names: str, slots: int = 1000, **limits: int) -> VerificationEngine:
    engine = engine_of(packed(quick_model(), slots), **limits)
    engine.__class__ = Attached
    for name in names:
        engine.add_drafter(name, DRAFTERS[name]())
    return engine


@pytest.fixture(scope="module")
def plain() -> dict[int, list[int]]:
    return generate(engine_of(packed(quick_model(), 1000)), SPECS, together=False).tokens


@pytest.mark.parametrize("names", [[name] for name in DRAFTERS] + [list(DRAFTERS)], ids=str)
def test_the_tokens_are_those_of_plain_decoding(names: list[str], plain: dict[int, list[int]]) -> None:
    engine = engine_with(*names)
    result = generate(engine, SPECS)
    assert result.tokens == plain
    assert result.accepted > 0
    assert engine.model.pool.used == 0
    assert not engine._local.busy
    assert engine.clock.seconds()["draft"] > 0


def test_beside_a_drafter_that_sends_proposals(plain: dict[int, list[int]]) -> None:
    result = generate(engine_with("ngram"), SPECS, ScriptedDrafter(plain))
    assert result.tokens == plain


def test_sequences_that_are_preempted(plain: dict[int, list[int]]) -> None:
    engine = engine_with("ngram", slots=120, max_tree_nodes=8)
    assert generate(engine, SPECS).tokens == plain
    assert engine.preemptions > 0


def test_what_the_suffix_of_an_earlier_sequence_was(plain: dict[int, list[int]]) -> None:
    engine = engine_with("shared suffix")
    first = generate(engine, SPECS)
    second = generate(engine, SPECS)
    assert second.tokens == first.tokens == plain
    assert second.steps < first.steps / 2


def test_one_is_attached_and_forgotten_midway(plain: dict[int, list[int]]) -> None:
    engine = engine_with()
    for spec in SPECS:
        engine.add(spec)
    tokens: dict[int, list[int]] = {spec.sequence_id: [] for spec in SPECS}
    step = 0
    while engine.running:
        step += 1
        if step == 5:
            engine.add_drafter("late", DRAFTERS["ngram"]())
            for spec in SPECS[:3]:
                engine.attach(spec.sequence_id, "late")
        if step == 8:
            engine.detach(SPECS[0].sequence_id, "late")
        if step == 12:
            engine.forget("late")
            assert not engine._local.busy
        result = engine.step()
        assert ("late" in result.drafting) == (5 <= step < 12)
        for outcome in result.outcomes:
            tokens[outcome.sequence_id] += outcome.tokens
    assert tokens == plain


def test_nobody_waits_for_them() -> None:
    engine = engine_with("ngram")
    engine.add(SPECS[0])
    while engine.running:
        assert engine.wait_seconds() == 0.0
        engine.step()
    assert not engine.planner.timings


@pytest.mark.parametrize("back", [False, True])
def test_one_that_rests_is_told_when_it_drafts_again(
    plain: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch, back: bool
) -> None:
    """A paused drafter is also updated when the sequence ends, as it may use the text for other requests."""
    engine = engine_with("ngram")
    drafter = engine._local._drafters["ngram"]
    told: list[tuple[int, int]] = []
    commit = drafter.commit

    def note(key: int, committed_length: int, tokens: list[int]) -> None:
        told.append((committed_length, len(tokens)))
        commit(key, committed_length, tokens)

    rests = [True]
    monkeypatch.setattr(drafter, "commit", note)
    monkeypatch.setattr(engine._local.accounts, "open", lambda _: not rests[0])
    spec = SPECS[0]
    engine.add(spec)
    tokens: list[int] = []
    while engine.busy:
        for outcome in engine.step().outcomes:
            tokens += outcome.tokens
        if len(tokens) == 20 and back:
            rests[0] = False
        elif len(tokens) < 20:
            assert not told
    assert tokens == plain[spec.sequence_id]
    lengths, counts = zip(*told, strict=True)
    assert counts[0] == (20 if back else len(tokens))
    assert sum(counts) == len(tokens) and lengths[-1] == len(spec.tokens) + len(tokens)
