"""Drafters outside the engine's thread are handed each committed token's feature once, in order, and no other's."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

from draftwire_core.engine.engine import feature_streams
from draftwire_core.engine.engine.feature_streams import FeatureKind
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.step_result import SequenceFeatures
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.model.features import held_states
from draftwire_core.engine.model.features.feature_codec import decode
from draftwire_core.engine.model.features.taps import SlotStates, Tap
from draftwire_core.engine.model.packed_batch import PackedBatch
from draftwire_core.engine.planning.step_cost import StepCost
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

LAYERS = (1, 3)
WIDTH = 64
KIND = FeatureKind(LAYERS, "identity", "")
PROMPTS = [random_tokens(length, seed=length) for length in (9, 3, 40)]
SPECS = specs_of(PROMPTS, 20, GREEDY)


@pytest.fixture(autouse=True)
def _reading_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of tiny models are so short that reading may take a large share."""
    monkeypatch.setattr(feature_streams, "MOST_RESTING_SHARE", math.inf)


def tap_of(engine: VerificationEngine) -> Tap:
    width = len(LAYERS) * WIDTH
    return Tap(LAYERS, nn.Identity(), SlotStates(engine.model.pool.capacity, width, torch.float32))


def engine_with_tap(source: str = "far", **limits: int) -> VerificationEngine:
    engine = engine_of(packed(tiny_model("Llama"), limits.pop("slots", 1000)), **limits)
    assert engine.features.add(source, KIND, "float32", tap_of(engine))
    return engine


def expected_features(tokens: Sequence[int]) -> torch.Tensor:
    """The states that enter the layers, from a pass over the whole text: [tokens, layers * width]."""
    model = tiny_model("Llama")
    with torch.no_grad():
        states = model(torch.tensor([list(tokens)]), output_hidden_states=True).hidden_states
    inner = model.model
    last: list[torch.Tensor] = []
    hook = inner.layers[-1].register_forward_hook(lambda _, __, out: last.append(out))
    with torch.no_grad():
        inner(torch.tensor([list(tokens)]))
    hook.remove()
    out = last[0][0] if isinstance(last[0], tuple) else last[0]
    parts = [out if layer == len(inner.layers) else states[layer] for layer in LAYERS]
    return torch.cat([part.reshape(-1, WIDTH) for part in parts], dim=1)


class Reader:
    """Collects a drafter's features, by sequence."""

    def __init__(self, source: str = "far"):
        self.source = source
        self.found: dict[int, dict[int, torch.Tensor]] = {}
        self.twice = 0

    def take(self, features: Sequence[SequenceFeatures]) -> int:
        """Returns the number of bytes."""
        count = 0
        for each in features:
            if each.source != self.source:
                continue
            count += len(each.values)
            known = self.found.setdefault(each.sequence_id, {})
            for at, feature in enumerate(decode(each.values, len(LAYERS) * WIDTH, "float32")):
                self.twice += each.first_position + at in known
                known[each.first_position + at] = feature
        return count

    def check(self, sequence_id: int, tokens: Sequence[int], positions: range) -> None:
        assert sorted(self.found[sequence_id]) == list(positions)
        wanted = expected_features(tokens)
        for position in positions:
            torch.testing.assert_close(self.found[sequence_id][position], wanted[position], rtol=1e-3, atol=1e-3)


def run(
    engine: VerificationEngine,
    specs: Sequence[SequenceSpec],
    reader: Reader,
    drafter: ScriptedDrafter | None = None,
    credits: bool = True,
) -> dict[int, list[int]]:
    """Runs attached sequences to their ends; returns their whole texts."""
    texts = {spec.sequence_id: list(spec.tokens) for spec in specs}
    by_id = {spec.sequence_id: spec for spec in specs}
    for spec in specs:
        engine.add(spec)
        engine.attach(spec.sequence_id, reader.source)
        if drafter is not None:
            drafter.open(spec.sequence_id)
            engine.attach(spec.sequence_id, "scripted")
    while engine.running:
        result = engine.step()
        for outcome in result.outcomes:
            texts[outcome.sequence_id] += outcome.tokens
            proposal = drafter and drafter.propose(by_id[outcome.sequence_id], outcome.committed_length)
            if proposal and outcome.finish is None:
                engine.propose(outcome.sequence_id, "scripted", proposal)
        count = reader.take(result.features)
        if credits and count:
            engine.features.sent(reader.source, count)
    return texts


def test_features_are_those_of_a_pass_over_the_text() -> None:
    reader = Reader()
    engine = engine_with_tap(max_step_rows=16)  # the longest prompt is read in parts
    texts = run(engine, SPECS, reader)
    for sequence_id, text in texts.items():
        # The last token is not computed, and the outcome that ends a sequence hands out nothing.
        reader.check(sequence_id, text, range(len(text) - 2))
    assert reader.twice == 0


def test_features_of_rejected_nodes_stay_here() -> None:
    plain = generate(engine_of(packed(tiny_model("Llama"), 1000)), SPECS).tokens
    wrong = {key: [token if at % 3 else 7 for at, token in enumerate(tokens)] for key, tokens in plain.items()}
    reader = Reader()
    texts = run(engine_with_tap(), SPECS, reader, ScriptedDrafter(wrong))
    for spec in SPECS:
        assert texts[spec.sequence_id] == [*spec.tokens, *plain[spec.sequence_id]]
        known = sorted(reader.found[spec.sequence_id])
        reader.check(spec.sequence_id, texts[spec.sequence_id], range(known[-1] + 1))
    assert reader.twice == 0


def test_a_reader_without_credit_gets_the_rest_later(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(LAYERS) * WIDTH * 4
    monkeypatch.setattr(feature_streams, "MOST_UNSENT", 10 * size)
    monkeypatch.setattr(feature_streams, "MOST_BYTES", 4 * size)
    engine = engine_with_tap()
    engine.features._readers["far"].credit = 10 * size
    engine.add(SPECS[2])
    engine.attach(2, "far")
    reader = Reader()
    first = engine.step().features
    assert [len(each.values) // size for each in first] == [4, 4, 2]
    reader.take(first)
    assert engine.step().features == []
    engine.features.sent("far", 3 * size)
    assert [each.first_position for each in engine.step().features] == [10]
    engine.features.sent("far")
    (one, two, three) = engine.step().features
    assert (one.first_position, two.first_position, three.first_position) == (13, 17, 21)
    assert sum(len(each.values) for each in (one, two, three)) == 10 * size


@pytest.mark.parametrize("rows", [8, 100], ids=["a prompt in parts", "a prompt at once"])
def test_a_window_leaves_out_what_comes_before_it(rows: int) -> None:
    engine = engine_of(packed(tiny_model("Llama"), 1000), max_step_rows=rows)
    assert engine.features.add("far", KIND, "float32", tap_of(engine), window=12)
    reader = Reader()
    texts = run(engine, SPECS, reader)
    for spec in SPECS:
        text = texts[spec.sequence_id]
        first = max(0, len(spec.tokens) - 12 + (rows > 8))  # beside the whole prompt, a token was committed
        reader.check(spec.sequence_id, text, range(first, len(text) - 2))
    assert reader.twice == 0


def test_whoever_is_attached_late_or_again_gets_everything_that_is_known() -> None:
    engine = engine_with_tap()
    assert engine.features.add("other", KIND, "float32"), "drafters of one kind share a tap"
    engine.add(SPECS[0])
    engine.attach(0, "far")
    for _ in range(4):
        engine.step()
    engine.attach(0, "other")
    late = Reader("other")
    late.take(engine.step().features)
    assert sorted(late.found[0]) == list(range(len(SPECS[0].tokens) + 4))
    engine.detach(0, "other")
    assert all(each.source == "far" for each in engine.step().features)
    engine.attach(0, "other")
    late.take(engine.step().features)
    assert late.twice == len(SPECS[0].tokens) + 4


def test_a_prefix_from_the_cache_brings_its_features() -> None:
    engine, reader = engine_with_tap(), Reader()
    text = run(engine, SPECS[2:], reader)[2]
    again = Reader()
    assert run(engine, SPECS[2:], again)[2] == text
    again.check(2, text, range(len(text) - 2))


def test_preempted_sequences_are_handed_out_once() -> None:
    engine, reader = engine_with_tap(slots=100, max_tree_nodes=8), Reader()
    texts = run(engine, SPECS, reader)
    assert engine.preemptions > 0
    assert reader.twice == 0
    for sequence_id, text in texts.items():
        reader.check(sequence_id, text, range(max(reader.found[sequence_id]) + 1))


def pause_and_go_on(engine: VerificationEngine, reader: Reader, steps: int) -> list[int]:
    """Pauses the drafter of sequence 0 for some steps, and takes its features of one more; returns the text."""
    text = list(SPECS[0].tokens)
    engine.pause("far", paused=True)
    for _ in range(steps):
        result = engine.step()
        assert result.features == []
        text += result.outcomes[0].tokens
    engine.pause("far", paused=False)
    result = engine.step()
    reader.take(result.features)
    return text + result.outcomes[0].tokens


class Counted(nn.Module):
    """A map that counts its rows."""

    rows = 0

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        self.rows += len(states)
        return states


def counted(engine: VerificationEngine) -> Counted:
    tap = engine.features._taps[KIND]
    tap.mapping = mapping = Counted()
    return mapping


def test_what_is_computed_during_a_pause_is_mapped_when_it_ends() -> None:
    engine, reader = engine_with_tap(), Reader()
    mapping = counted(engine)
    engine.add(SPECS[0])
    engine.attach(0, "far")
    first = engine.step()
    reader.take(first.features)
    prompt = len(SPECS[0].tokens)
    assert mapping.rows == prompt
    text = pause_and_go_on(engine, reader, steps=5)
    assert mapping.rows == prompt + 6
    text[prompt:prompt] = first.outcomes[0].tokens
    reader.check(0, text, range(prompt + 6))
    assert reader.twice == 0


def test_nothing_is_mapped_of_what_the_drafter_does_not_draft_for() -> None:
    engine, reader = engine_with_tap(), Reader()
    mapping = counted(engine)
    engine.add(SPECS[0])
    engine.attach(0, "far")
    engine.add(SPECS[2])
    text = list(SPECS[0].tokens)
    for _ in range(5):
        result = engine.step()
        reader.take(result.features)
        text += result.outcomes[0].tokens
    assert mapping.rows == len(SPECS[0].tokens) + 4
    reader.check(0, text, range(len(text) - 1))


def test_what_takes_long_to_read_is_not_read_during_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_streams, "MOST_RESTING_SHARE", 0.0)
    engine, reader = engine_with_tap(), Reader()
    engine.add(SPECS[0])
    engine.attach(0, "far")
    first = engine.step()
    reader.take(first.features)
    assert engine.features._taps[KIND].reading_share > 0
    prompt = len(SPECS[0].tokens)
    text = pause_and_go_on(engine, reader, steps=5)
    text[prompt:prompt] = first.outcomes[0].tokens
    reader.check(0, text, [*range(prompt), prompt + 5])


def test_nothing_is_mapped_during_a_pause_of_prompts_either() -> None:
    engine = engine_with_tap()
    mapping = counted(engine)
    engine.features.pause("far", paused=True)
    for spec in SPECS:
        engine.add(spec)
        engine.attach(spec.sequence_id, "far")
    for _ in range(5):
        assert engine.step().features == []
    assert mapping.rows == 0


def test_of_two_drafters_of_a_kind_one_is_paused() -> None:
    """Each drafts for one sequence; what is held for the paused one is mapped when it is tried again."""
    engine = engine_with_tap()
    assert engine.features.add("other", KIND, "float32")
    mapping = counted(engine)
    for spec, source in zip(SPECS, ("far", "other"), strict=False):
        engine.add(spec)
        engine.attach(spec.sequence_id, source)
    engine.pause("other", paused=True)
    texts = {spec.sequence_id: list(spec.tokens) for spec in SPECS[:2]}
    readers = {"far": Reader("far"), "other": Reader("other")}
    for number in range(6):
        if number == 4:
            assert mapping.rows == len(SPECS[0].tokens) + 3
            engine.pause("other", paused=False)
        result = engine.step()
        for outcome in result.outcomes:
            texts[outcome.sequence_id] += outcome.tokens
        for reader in readers.values():
            reader.take(result.features)
    readers["far"].check(0, texts[0], range(len(texts[0]) - 1))
    readers["other"].check(1, texts[1], range(len(texts[1]) - 1))


def test_elements_are_limited() -> None:
    engine = engine_with_tap()
    width = len(LAYERS) * WIDTH
    for number in range(1, 4):
        wide = Tap(LAYERS, nn.Identity(), SlotStates(engine.model.pool.capacity, 4 * WIDTH, torch.float32))
        assert engine.features.add(f"wide {number}", KIND._replace(layers=(number,)), "float32", wide)
    with pytest.raises(feature_streams.TooManyKinds, match=f"of {width + 12 * WIDTH} elements a token are kept"):
        engine.features.add("one more", KIND._replace(layers=(0,)), "float32", wide)
    assert engine.features.add("narrow", KIND._replace(layers=(0,)), "float32", tap_of(engine))


def test_prompts_are_read_for_a_paused_drafter_and_handed_out_when_it_is_tried_again() -> None:
    engine, reader = engine_with_tap(), Reader()
    engine.add(SPECS[0])
    engine.attach(0, "far")
    text = pause_and_go_on(engine, reader, steps=3)
    reader.check(0, text, range(len(text) - 1))


def test_of_a_long_pause_the_last_tokens_have_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_states, "MOST_ROWS", 4)
    engine, reader = engine_with_tap(), Reader()
    engine.add(SPECS[0])
    engine.attach(0, "far")
    text = pause_and_go_on(engine, reader, steps=9)
    computed = len(text) - 1
    assert sorted(reader.found[0]) == list(range(computed - 5, computed))


def test_rejected_nodes_of_a_pause_are_not_mistaken_for_the_tokens_that_follow() -> None:
    plain = generate(engine_of(packed(tiny_model("Llama"), 1000)), SPECS).tokens
    wrong = {key: [token if at % 3 else 7 for at, token in enumerate(tokens)] for key, tokens in plain.items()}
    engine, reader = engine_with_tap(slots=100), Reader()
    drafter = ScriptedDrafter(wrong)
    spec, text = SPECS[0], list(SPECS[0].tokens)
    engine.add(spec)
    engine.attach(0, "far")
    drafter.open(0)
    engine.attach(0, "scripted")
    engine.pause("far", paused=True)
    while len(text) < len(spec.tokens) + 14:
        if len(text) > len(spec.tokens) + 10:
            engine.pause("far", paused=False)
        result = engine.step()
        reader.take(result.features)
        (outcome,) = result.outcomes
        text += outcome.tokens
        proposal = drafter.propose(spec, outcome.committed_length)
        if proposal:
            engine.propose(0, "scripted", proposal)
    assert text == [*spec.tokens, *plain[0]][: len(text)]
    reader.check(0, text, range(len(text) - 1))
    assert reader.twice == 0


def test_a_sequence_that_always_drafts_is_read_during_a_pause() -> None:
    engine, reader = engine_with_tap(), Reader()
    spec = replace(SPECS[0], always_draft=True)
    engine.add(spec)
    engine.attach(0, "far")
    engine.pause("far", paused=True)
    for _ in range(3):
        reader.take(engine.step().features)
    assert sorted(reader.found[0]) == list(range(len(spec.tokens) + 2))


def test_the_last_reader_takes_its_tap_along() -> None:
    engine = engine_with_tap()
    assert engine.features.add("other", KIND, "float32")
    assert not engine.features.add("third", KIND._replace(layers=(2,)), "float32"), "nobody makes these"
    engine.forget("far")
    assert engine.features
    engine.forget("other")
    assert not engine.features
    assert generate(engine, SPECS).tokens == generate(engine_of(packed(tiny_model("Llama"), 1000)), SPECS).tokens


def test_kinds_are_limited() -> None:
    engine = engine_with_tap()
    for number in range(1, feature_streams.MOST_KINDS):
        assert engine.features.add(f"other {number}", KIND._replace(layers=(number,)), "float32", tap_of(engine))
    with pytest.raises(feature_streams.TooManyKinds):
        engine.features.add("one more", KIND._replace(layers=(0,)), "float32")
    assert engine.features.add("of a known kind", KIND, "float32")
    engine.forget("other 1")
    assert engine.features.add("one more", KIND._replace(layers=(0,)), "float32", tap_of(engine))


def test_the_time_of_features_is_charged_to_who_reads_them() -> None:
    engine = engine_with_tap()
    engine.features.add("idle", KIND, "float32")
    engine.add(SPECS[0])
    engine.attach(0, "far")
    result = engine.step()
    assert set(result.feature_seconds) == {"far"}
    assert result.feature_seconds["far"] > 0


def test_the_time_of_features_is_no_slowness_of_the_step() -> None:
    """It is charged to who reads them, once."""
    engine = engine_with_tap()
    engine.planner.cost = StepCost([1, 64], [1.0, 1.0])
    engine.add(SPECS[0])
    while not engine.step().outcomes:
        pass
    assert engine.step().slowness > 0
    engine.attach(0, "far")
    tapped = engine.features.tapped

    def charge(batch: PackedBatch) -> None:
        tapped(batch)
        engine.features._readers["far"].seconds += 60.0  # more than all of the step

    engine.features.tapped = charge  # type: ignore[method-assign]
    result = engine.step()
    assert (result.feature_seconds["far"] > 60.0, result.slowness) == (True, 0.0)
