"""Sequences that share the slots of a common prefix: fewer rows, the same tokens, no slot lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_core.engine.drafters.lookup.ngram import NgramOptions, ngram_drafter
from draftwire_core.engine.drafters.model.local_model import LocalModelDrafter
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.step_result import Finish, SequenceOutcome
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.early_exit_engine import Attached, engine_with
from tests.harness.engine.engines import GREEDY, ScriptedDrafter, generate, packed, random_tokens, tiny_model
from tests.harness.engine.slot_check import check_slots
from tests.harness.engine.special_models import early_model

COUNT = 10
SYSTEM = random_tokens(61, seed=1)
USERS = [random_tokens(length, seed=10 + length) for length in (9, 3, 25, 14, 1)]
PROMPTS = [[*SYSTEM, *user] for user in USERS] + [SYSTEM[:30], SYSTEM, random_tokens(40, seed=2)]
SAMPLED = SamplingParams(temperature=0.8, seed=3)
DRAFTERS = ["none", "scripted", "draft model", "early exit", "ngram"]


@pytest.fixture(scope="module", autouse=True)
def times_as_said() -> Iterator[None]:
    """Steps take the time that is said at the engine's start: the machine's load must not decide what is drafted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepCost, "observe", lambda *_: 0.0)
        yield


_models: dict[int, PackedModel] = {}
_plain: dict[tuple[object, ...], list[int]] = {}


def model_of(slots: int) -> PackedModel:
    if slots not in _models:
        _models[slots] = packed(early_model(), slots)
    return _models[slots]


@pytest.fixture(autouse=True)
def no_slot_is_lost() -> Iterator[None]:
    yield
    for slots, model in _models.items():
        taken = model.pool.take(model.pool.free)
        assert sorted(taken.tolist()) == list(range(1, slots + 1))
        model.pool.give_back(taken)


def spec_of(sequence_id: int, tokens: Sequence[int], sampling: SamplingParams, count: int = COUNT) -> SequenceSpec:
    return SequenceSpec(sequence_id, list(tokens), len(tokens) + count, sampling)


def plain(spec: SequenceSpec) -> list[int]:
    """Returns a sequence's output when it runs alone without a cache."""
    key = (tuple(spec.tokens), spec.max_length, spec.sampling)
    if key not in _plain:
        _plain[key] = generate(engine_with(None, model_of(2000)), [spec]).tokens[spec.sequence_id]
    return _plain[key]


def engine_of(slots: int = 2000, drafter: str = "none", **limits: int) -> Attached:
    engine = engine_with(2 if drafter == "early exit" else None, model_of(slots), prefix_cache=True, **limits)
    if drafter == "ngram":
        engine.add_drafter("ngram", ngram_drafter(NgramOptions(min=1)))
    elif drafter == "draft model":
        engine.add_drafter("draft", LocalModelDrafter(packed(early_model()), 0.01))
    return engine


def run(engine: Attached, specs: Sequence[SequenceSpec], drafter: str = "none", *, together: bool = True) -> int:
    """Runs sequences, checks that each has its own output, and returns the number of tokens found in the cache."""
    expected = {spec.sequence_id: plain(spec) for spec in specs}
    scripted = ScriptedDrafter(expected) if drafter == "scripted" else None
    cache = engine.prefix_cache
    assert cache is not None
    before = cache.hit_tokens
    result = generate(engine, specs, scripted, together=together)
    assert result.tokens == expected
    if drafter != "none":
        assert result.drafted > 0
        assert result.accepted > 0 or drafter == "ngram"  # these texts hardly repeat themselves
    assert engine.model.pool.used == 0
    return cache.hit_tokens - before


def outcomes_of(engine: Attached) -> dict[int, SequenceOutcome]:
    """Returns the last outcome of each sequence."""
    found: dict[int, SequenceOutcome] = {}
    while engine.running:
        found |= {outcome.sequence_id: outcome for outcome in engine.step().outcomes}
    return found


def check_tokens(drafter: str, sampling: SamplingParams, prompts: Sequence[list[int]] = PROMPTS) -> None:
    """Side by side, then one after another, then as the next turns of the same conversations."""
    engine = engine_of(drafter=drafter)
    specs = [spec_of(index, prompt, sampling) for index, prompt in enumerate(prompts)]
    assert run(engine, specs, drafter) > 0
    assert run(engine, specs, drafter, together=False) == sum(len(prompt) - 1 for prompt in prompts)
    turns = [
        spec_of(spec.sequence_id, [*spec.tokens, *plain(spec), *random_tokens(7, seed=99)], sampling) for spec in specs
    ]
    # All but the last generated token, which was never computed.
    assert run(engine, turns, drafter) == sum(spec.max_length - 1 for spec in specs)


@pytest.mark.parametrize(
    ("drafter", "sampling"), [(each, SAMPLED if place % 2 else GREEDY) for place, each in enumerate(DRAFTERS)]
)
def test_no_token_depends_on_it(drafter: str, sampling: SamplingParams) -> None:
    check_tokens(drafter, sampling, [*PROMPTS[:1], *PROMPTS[4:]])


def check_scarce_slots(slots: int, drafter: str) -> None:
    """Prefixes are evicted all the time, and sequences are preempted."""
    engine = engine_of(slots, drafter, max_tree_nodes=8)
    preempts = (slots, drafter) == (130, "none")
    count = 2 * COUNT if preempts else COUNT
    samplings = [GREEDY if index % 2 else SAMPLED for index in range(len(PROMPTS))]
    specs = [spec_of(index, prompt, samplings[index], count) for index, prompt in enumerate(PROMPTS)]
    for _ in range(2):
        expected = {spec.sequence_id: plain(spec) for spec in specs}
        assert generate(engine, specs).tokens == expected
        assert engine.model.pool.used == 0
        specs.reverse()
    cache = engine.prefix_cache
    assert cache is not None and cache.evicted_tokens > 0 and cache.hit_tokens > 0
    if preempts:
        assert engine.preemptions > 0


@pytest.mark.parametrize(
    ("slots", "drafter"), [(130, "none"), (130, "draft model"), (170, "early exit"), (260, "ngram")]
)
def test_no_token_depends_on_it_where_slots_are_scarce(slots: int, drafter: str) -> None:
    check_scarce_slots(slots, drafter)


events = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, len(PROMPTS) - 1)),
        st.tuples(st.just("remove"), st.integers(0, 20)),
        st.tuples(st.just("step"), st.integers(1, 12)),
    ),
    max_size=40,
)


def check_events(script: list[tuple[str, int]], slots: int, max_step_rows: int) -> None:
    engine = engine_of(slots, max_tree_nodes=8, max_step_rows=max_step_rows)
    specs: list[SequenceSpec] = []
    said: dict[int, list[int]] = {}
    removed: set[int] = set()

    def step() -> None:
        for outcome in engine.step().outcomes:
            said[outcome.sequence_id] += outcome.tokens
        check_slots(engine)

    for event, value in script:
        if event == "add":
            specs.append(spec_of(len(specs), PROMPTS[value], SAMPLED if value % 2 else GREEDY))
            said[specs[-1].sequence_id] = []
            engine.add(specs[-1])
        elif event == "remove":
            removed.add(value)
            engine.remove(value)
        else:
            for _ in range(value):
                step()
        check_slots(engine)
    while engine.running:
        step()
    assert engine.waiting == engine.model.pool.used == 0
    for spec in specs:
        tokens, expected = said[spec.sequence_id], plain(spec)
        assert tokens == expected[: len(tokens)]
        assert len(tokens) == COUNT or spec.sequence_id in removed


whatever = given(events, st.sampled_from([130, 170, 260]), st.sampled_from([8, 16, 64]))


@settings(max_examples=8, deadline=None)
@whatever
def test_whatever_happens_tokens_are_the_same(script: list[tuple[str, int]], slots: int, max_step_rows: int) -> None:
    check_events(script, slots, max_step_rows)


@pytest.mark.slow
class TestEveryCombination:
    @pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
    @pytest.mark.parametrize("drafter", DRAFTERS)
    def test_no_token_depends_on_it(self, drafter: str, sampling: SamplingParams) -> None:
        check_tokens(drafter, sampling)

    @pytest.mark.parametrize("drafter", [each for each in DRAFTERS if each != "scripted"])
    @pytest.mark.parametrize("slots", [130, 170, 260])
    def test_no_token_depends_on_it_where_slots_are_scarce(self, slots: int, drafter: str) -> None:
        check_scarce_slots(slots, drafter)

    @settings(max_examples=40, deadline=None)
    @whatever
    def test_whatever_happens_tokens_are_the_same(
        self, script: list[tuple[str, int]], slots: int, max_step_rows: int
    ) -> None:
        check_events(script, slots, max_step_rows)


def test_a_resumed_sequence_finds_what_it_had_said() -> None:
    engine = engine_of()
    spec = spec_of(0, PROMPTS[2], SAMPLED)
    run(engine, [spec])
    resumed = replace(spec, tokens=[*spec.tokens, *plain(spec)[: COUNT - 2]])
    engine.add(resumed)
    last = outcomes_of(engine)[0]
    assert last.cached_tokens == len(resumed.tokens) - 1
    assert generate(engine, [resumed]).tokens[0] == plain(spec)[COUNT - 2 :]


def test_a_preempted_sequence_reads_again_what_it_had_left() -> None:
    engine = engine_of(260, max_tree_nodes=8)
    engine.add(spec_of(0, PROMPTS[0], GREEDY))
    engine.add(spec_of(1, PROMPTS[7], GREEDY))
    engine.step()
    young = engine._queue.running[1]
    computed = len(young.slots)
    engine._queue.make_room(lambda: engine.model.pool.free + 1)  # as if another sequence needed a slot
    assert (engine.preemptions, len(young.slots)) == (1, 0)
    engine._queue.admit()
    assert len(young.slots) == computed and young.pending == 1
    found = outcomes_of(engine)
    assert found[1].cached_tokens == 0, "only what was there before it began counts"


def test_what_others_hold_is_not_counted_twice_at_admission() -> None:
    """Beside the first sequence, the second would not fit without sharing."""
    engine = engine_of(170, max_tree_nodes=8)
    engine.add(spec_of(0, [*SYSTEM, 5, 6], GREEDY))
    engine.step()
    engine.add(spec_of(1, [*SYSTEM, 7, 8], GREEDY))
    engine.add(spec_of(2, random_tokens(63, seed=5), GREEDY))
    assert (engine.running, engine.waiting) == (2, 1)
    for sequence_id in range(3):
        engine.remove(sequence_id)


@pytest.mark.parametrize("takes", [False, True])
@pytest.mark.parametrize("leaves", [False, True])
def test_a_sequence_may_neither_take_nor_leave(takes: bool, leaves: bool) -> None:
    engine = engine_of()
    spec = replace(spec_of(0, PROMPTS[0], GREEDY), takes_prefix=takes, leaves_prefix=leaves)
    for time in range(2):
        engine.add(spec)
        assert outcomes_of(engine)[0].cached_tokens == (len(spec.tokens) - 1 if takes and leaves and time else 0)
    cache = engine.prefix_cache
    assert cache is not None
    assert cache.idle == (spec.max_length - 1 if leaves else 0)
    assert cache.queried_tokens == (2 * (len(spec.tokens) - 1) if takes else 0)


@pytest.mark.parametrize("length", [64, 65, 66], ids=["even parts", "one token left", "two left"])
def test_what_others_wait_for_is_computed_once(length: int) -> None:
    engine = engine_of(max_step_rows=16)
    prompt = random_tokens(length, seed=3)
    for sequence_id in range(4):
        engine.add(spec_of(sequence_id, prompt, replace(SAMPLED, seed=sequence_id), count=2))
    rows = 0
    while not all(sequence.sound for sequence in engine._running.values()):
        rows += engine.step().rows
    # Each sequence has its own last token; the first sequence decodes meanwhile.
    assert rows <= length + 3 + 1
    assert outcomes_of(engine).keys() == {0, 1, 2, 3} or not engine.running
    assert engine.model.pool.used == 0


def test_one_that_ends_before_its_prompt_is_computed_holds_up_nobody() -> None:
    engine = engine_of(max_step_rows=16)
    specs = [spec_of(sequence_id, PROMPTS[2], SAMPLED) for sequence_id in range(3)]
    for spec in specs:
        engine.add(spec)
    engine.step()
    assert [len(sequence.slots) for sequence in engine._running.values()] == [16, 0, 0]
    engine.remove(0)
    tokens: dict[int, list[int]] = {1: [], 2: []}
    while engine.running:
        for outcome in engine.step().outcomes:
            tokens[outcome.sequence_id] += outcome.tokens
    assert tokens == {1: plain(specs[1]), 2: plain(specs[2])}


def test_one_whose_logits_are_no_numbers_leaves_nothing() -> None:
    library = tiny_model("Llama", tie_word_embeddings=False)
    with torch.no_grad():
        library.get_input_embeddings().weight[4] = float("nan")
    engine = engine_with(None, packed(library, 400), prefix_cache=True)
    cache = engine.prefix_cache
    assert cache is not None
    for _ in range(2):
        result = generate(engine, [SequenceSpec(0, [*SYSTEM, 4, 5], 80, GREEDY)])
        assert result.finishes == {0: Finish.FAULT}
        assert (cache.idle, cache.hit_tokens, cache.queried_tokens, engine.model.pool.used) == (0, 0, 0, 0)
