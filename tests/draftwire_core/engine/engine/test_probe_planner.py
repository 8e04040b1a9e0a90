"""Probes beside the verified rows: no token depends on them, and they hold no slot after the step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from draftwire_core.engine.drafters.lookahead.lookahead import LookaheadDrafter, LookaheadOptions
from draftwire_core.engine.drafters.lookahead.ngram_pool import NgramPool
from draftwire_core.engine.drafters.lookup.ngram import NgramOptions, ngram_drafter
from draftwire_core.engine.engine.drafting_accounts import DraftingAccounts
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.step_result import Finish
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.engine.verification_job import VerificationJob
from draftwire_core.engine.model.packed_batch import PackedBatch
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.engines import GREEDY, Generated, packed, random_tokens, tiny_model
from tests.harness.engine.special_models import quick_model
from tests.harness.stand_ins.fixed_cost import FixedCost

MODELS = Path(__file__).parents[4] / "models"
SMALL = LookaheadOptions(window=5, ngram=4)
PROMPTS = [random_tokens(9, seed=1) * 3, random_tokens(3, seed=2), random_tokens(5, seed=3) * 5, [7]]
COUNT = 30
SAMPLING = {"greedy": GREEDY, "sampled": SamplingParams(temperature=0.8, seed=5)}
Specs = list[SequenceSpec]


def specs_of(sampling: SamplingParams, count: int = COUNT) -> Specs:
    return [SequenceSpec(index, prompt, len(prompt) + count, sampling) for index, prompt in enumerate(PROMPTS)]


@cache
def model_of(slots: int = 1000) -> PackedModel:
    return packed(quick_model(), slots)


@pytest.fixture(autouse=True)
def no_slot_is_lost() -> Iterator[None]:
    yield
    assert model_of().pool.used == 0


FREE = FixedCost([1, 256], [1.0, 1.0 + 1e-6])
DEAR = StepCost([1, 256], [1.0, 256.0])


def engine_with(
    options: LookaheadOptions | None = SMALL, cost: StepCost = FREE, model: PackedModel | None = None, **limits: int
) -> VerificationEngine:
    engine = VerificationEngine(model or model_of(), cost, EngineLimits(**{"max_sequences": 8, **limits}))
    if options is not None:
        engine.add_drafter("lookahead", LookaheadDrafter(options))
    return engine


def run(
    engine: VerificationEngine, specs: Specs, *sources: str, before: Callable[[int], None] = lambda step: None
) -> Generated:
    """Runs sequences to their end with drafters; calls `before` with the number of each step."""
    result = Generated(tokens={spec.sequence_id: [] for spec in specs})
    for spec in specs:
        engine.add(spec)
        for source in sources:
            engine.attach(spec.sequence_id, source)
    while engine.running:
        before(result.steps)
        step = engine.step()
        result.steps += 1
        for outcome in step.outcomes:
            assert set(outcome.sources) <= {None, *sources}
            result.tokens[outcome.sequence_id] += outcome.tokens
            result.accepted += outcome.accepted
            if outcome.finish is not None:
                result.finishes[outcome.sequence_id] = outcome.finish
    return result


@cache
def plain(name: str) -> dict[int, list[int]]:
    return run(engine_with(None), specs_of(SAMPLING[name])).tokens


# ---- no token depends on them ----------------------------------------------------------------------------------------


OPTIONS = [SMALL, LookaheadOptions(), LookaheadOptions(window=1, ngram=2, guesses=1)]


@pytest.mark.parametrize(
    ("options", "name"), [(OPTIONS[0], "sampled"), (OPTIONS[1], "greedy"), (OPTIONS[2], "sampled")], ids=str
)
def test_the_tokens_are_those_of_plain_decoding(options: LookaheadOptions, name: str) -> None:
    check_plain(options, name)


@pytest.mark.parametrize(
    ("name", "dtype"), [("Qwen3", torch.float32), ("Gemma2", torch.bfloat16), ("GPT2", torch.float32)], ids=str
)
def test_in_other_models(name: str, dtype: torch.dtype) -> None:
    check_model(name, dtype)


@pytest.mark.slow
class TestEveryCombination:
    @pytest.mark.parametrize("name", SAMPLING)
    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    def test_the_tokens_are_those_of_plain_decoding(self, name: str, options: LookaheadOptions) -> None:
        check_plain(options, name)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("name", ["Qwen3", "Gemma2", "GPT2"])
    def test_in_other_models(self, name: str, dtype: torch.dtype) -> None:
        check_model(name, dtype)

    @pytest.mark.parametrize("slots", [60, 65, 80])
    def test_where_slots_are_short(self, slots: int) -> None:
        check_short_of_slots(slots)

    def test_a_hundred_prompts(self) -> None:
        check_prompts(100)


def check_plain(options: LookaheadOptions, name: str) -> None:
    engine = engine_with(options)
    assert run(engine, specs_of(SAMPLING[name]), "lookahead").tokens == plain(name)
    assert engine.record.probe_rows > 0


def check_model(name: str, dtype: torch.dtype) -> None:
    """Sliding windows, and a position limit: GPT2 has only as many positions as the sequence needs."""
    prompt = random_tokens(20, seed=4)
    model = packed(tiny_model(name, dtype, **({"n_positions": 60} if name == "GPT2" else {})), 200)
    spec = SequenceSpec(0, prompt, 60, GREEDY)
    engine = engine_with(SMALL, model=model)
    assert run(engine, [spec], "lookahead").tokens == run(engine_with(None, model=model), [spec]).tokens
    assert engine.record.probe_rows > 0
    assert model.pool.used == 0


def test_what_they_find_is_accepted() -> None:
    engine = engine_with()
    result = run(engine, specs_of(GREEDY, 100), "lookahead")
    assert result.accepted > 30, "a tiny random model repeats itself when it is greedy"
    assert set(result.finishes.values()) == {Finish.LENGTH}


def test_beside_other_drafters() -> None:
    engine = engine_with()
    engine.add_drafter("ngram", ngram_drafter(NgramOptions(min=1)))
    engine.add_drafter("second", LookaheadDrafter(LookaheadOptions(window=3, ngram=3)))
    assert run(engine, specs_of(GREEDY), "ngram", "lookahead", "second").tokens == plain("greedy")


def test_attached_and_detached_midway(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine rows and probes would cost more than they gain, and the drafter would rest.
    cost = StepCost([1, 256], [1.0, 1.0 + 1e-6])
    monkeypatch.setattr(cost, "observe", lambda *args: 0.0)
    monkeypatch.setattr(DraftingAccounts, "spent", lambda *args, **options: None)
    monkeypatch.setattr(DraftingAccounts, "paid_off", lambda *args: True)
    engine, specs = engine_with(None, cost), specs_of(SAMPLING["sampled"])
    rows: list[int] = []

    def swap(step: int) -> None:
        rows.append(engine.record.probe_rows)
        if step == 6:
            engine.add_drafter("late", LookaheadDrafter(SMALL))
            for spec in specs[:3]:
                engine.attach(spec.sequence_id, "late")
        if step == 12:
            engine.detach(0, "late")
        if step == 16:
            engine.forget("late")

    for spec in specs:
        engine.add(spec)
    engine_tokens: dict[int, list[int]] = {spec.sequence_id: [] for spec in specs}
    step = 0
    while engine.running:
        swap(step)
        for outcome in engine.step().outcomes:
            engine_tokens[outcome.sequence_id] += outcome.tokens
        step += 1
    assert engine_tokens == plain("sampled")
    assert rows[6] == 0 < rows[7] < rows[12] < rows[16] == rows[-1]


def test_where_slots_are_short() -> None:
    check_short_of_slots(60)


def check_short_of_slots(slots: int) -> None:
    engine = engine_with(LookaheadOptions(), model=model_of(slots), max_tree_nodes=2)
    result = run(engine, specs_of(GREEDY), "lookahead")
    assert result.tokens == plain("greedy")
    assert model_of(slots).pool.used == 0
    assert engine.preemptions > 0
    assert engine.record.probe_rows > 0


def test_bundled_prompts() -> None:
    check_prompts(8)


def check_prompts(count: int) -> None:
    """The bundled target, against plain decoding."""
    model = PackedModel.load(str(MODELS / "target"), slots=2000)
    tokenizer = Tokenizer.from_file(str(MODELS / "target" / "tokenizer.json"))
    lines = (MODELS / "prompts.jsonl").read_text().splitlines()[:count]
    specs = []
    for index, line in enumerate(lines):
        prompt = tokenizer.encode(json.loads(line)["text"]).ids[:40]
        sampling = GREEDY if index % 2 else SamplingParams(temperature=0.8, seed=index)
        specs.append(SequenceSpec(index, prompt, len(prompt) + 12, sampling))
    without = run(engine_with(None, model=model), specs)
    options = LookaheadOptions(window=6, ngram=4)
    engine = engine_with(options, model=model)
    drafted = run(engine, specs, "lookahead")
    assert drafted.tokens == without.tokens
    assert drafted.accepted > 0
    assert engine.record.probe_rows > 0
    assert model.pool.used == 0


# ---- probes are never accepted ---------------------------------------------------------------------------------------


def test_a_probe_that_says_what_the_target_says_is_no_node() -> None:
    """The window is filled with the target's own next tokens: right guesses at the right positions."""
    right = plain("greedy")[0]
    spec = specs_of(GREEDY)[0]
    engine = engine_with(LookaheadOptions(window=1, ngram=4))
    engine.add(spec)
    engine.attach(0, "lookahead")
    engine.step()  # the prompt and one token
    engine.step()
    drafter = engine._probes._drafters["lookahead"]
    assert isinstance(drafter, LookaheadDrafter)
    done = len(engine._queue.running[0].tokens) - len(spec.tokens)
    window = drafter._lookahead(0)._window
    window._columns, window._start = [right[done : done + 3]], len(spec.tokens) + done
    (outcome,) = engine.step().outcomes
    assert outcome.tokens == right[done : done + 1]
    assert outcome.drafted == {}
    assert window._columns == [right[done + 1 : done + 4]], "and the target told what comes next"
    engine.remove(0)


# ---- how many --------------------------------------------------------------------------------------------------------


def probes_of(engine: VerificationEngine, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Records (rows, probes among them) of each step's jobs as they are laid out."""
    noted: list[tuple[int, int]] = []
    lay_out = VerificationJob.lay_out

    def note(job: VerificationJob, *args: object) -> None:
        noted.append((job.rows, len(job.probes.nodes)))
        lay_out(job, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(VerificationJob, "lay_out", note)
    return noted


@pytest.mark.parametrize(("paid_off", "probes"), [(True, 9), (False, 3)])
def test_a_step_is_no_more_than_a_quarter_longer_for_them(
    paid_off: bool, probes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = StepCost([1, 11], [1.0, 1.25])
    engine = engine_with(LookaheadOptions(ngram=4), cost)
    monkeypatch.setattr(cost, "observe", lambda *args: 0.0)
    monkeypatch.setattr(DraftingAccounts, "paid_off", lambda *args: paid_off)
    noted = probes_of(engine, monkeypatch)
    run(engine, specs_of(GREEDY)[1:2], "lookahead")
    assert noted[0] == (3, 0), "a prompt"
    assert noted[1] == (1 + probes, probes), "a column, or as many as fit into ten rows"


def test_dear_rows_are_tried_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = StepCost([1, 256], [1.0, 21.4])  # three rows are 0.24 steps
    monkeypatch.setattr(cost, "observe", lambda *args: 0.0)
    monkeypatch.setattr(NgramPool, "add", lambda *args: None)  # nothing is found
    engine = engine_with(LookaheadOptions(window=15, ngram=4), cost)
    result = run(engine, [SequenceSpec(0, PROMPTS[1], 220, SamplingParams(temperature=3.0, seed=1))], "lookahead")
    steps_with_probes = engine.record.probe_rows / 3
    assert 10 <= steps_with_probes < 40, "three steps' time at first, and then 1.5 % of it"
    assert result.accepted == 0


def test_rows_that_are_too_dear() -> None:
    engine = engine_with(SMALL, DEAR)
    run(engine, specs_of(GREEDY)[:1], "lookahead")
    assert engine.record.probe_rows == 0, "not one column fits into twice the time of a step"


def test_steps_have_no_more_rows_than_they_may() -> None:
    engine = engine_with(LookaheadOptions(), max_step_rows=20)

    specs = specs_of(GREEDY)
    for spec in specs:
        engine.add(spec)
        engine.attach(spec.sequence_id, "lookahead")
    most = 0
    while engine.running:
        most = max(most, engine.step().rows)
    assert 8 < most <= 20


def test_sequences_share_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DraftingAccounts, "paid_off", lambda *args: True)
    engine = engine_with(LookaheadOptions(ngram=4), max_step_rows=64)
    noted = probes_of(engine, monkeypatch)
    run(engine, [SequenceSpec(index, [5], 40, GREEDY) for index in range(4)], "lookahead")
    first = noted[4:8]
    assert [probes for _, probes in first] == [15, 15, 15, 15]


def test_a_request_that_wants_no_drafts_gets_no_probes() -> None:
    engine = engine_with()
    spec = SequenceSpec(0, PROMPTS[0], len(PROMPTS[0]) + 10, GREEDY, max_draft_tokens=0)
    run(engine, [spec], "lookahead")
    assert engine.record.probe_rows == 0


def test_their_time_is_told_as_the_drafters() -> None:
    cost = StepCost([1, 256], [1.0, 2.0])
    engine = engine_with(SMALL, cost)
    spec = specs_of(GREEDY)[0]
    engine.add(spec)
    engine.attach(0, "lookahead")
    engine.step()
    assert engine.step().drafting["lookahead"] > 1e-9
    engine.remove(0)


# ---- logits that are no numbers --------------------------------------------------------------------------------------


def test_probes_of_which_the_target_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = packed(quick_model(), 1000)
    engine = engine_with(SMALL, model=model)
    forward = model.forward

    def spoilt(batch: PackedBatch) -> torch.Tensor:
        logits = forward(batch).clone()
        if len(logits) > 3:
            logits[-2:] = float("nan")  # after the last columns
        return logits

    monkeypatch.setattr(model, "forward", spoilt)
    specs = [specs_of(GREEDY)[0]]
    result = run(engine, specs, "lookahead")
    assert result.tokens[0] == plain("greedy")[0]
    assert result.finishes[0] is Finish.LENGTH
    assert engine.record.probe_rows > 0
