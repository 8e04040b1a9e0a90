"""Log-probabilities of output and prompts: the target's own, with the same bits however they were computed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from draftwire_core.engine.acceptance.acceptance import Acceptance, RuleName
from draftwire_core.engine.engine import target_pass, verification_job
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.logits.logit_editor import TreeRows
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling import coupled_sampler
from draftwire_core.engine.sampling.log_probs import LIKELIEST, LogProbs, likeliest, log_probs, top_log_probs
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.engines import (
    GREEDY,
    VOCABULARY,
    ScriptedDrafter,
    engine_of,
    packed,
    plain_logits,
    random_tokens,
    tiny_model,
)

LIBRARY = tiny_model("Llama")
PROMPTS = [random_tokens(length, seed=length) for length in (9, 1, 40, 14)]
SAMPLED = SamplingParams(temperature=1.1, top_p=0.95, seed=3)
COUNT = 24
TOP = 5


@pytest.fixture(scope="module")
def model() -> PackedModel:
    return packed(LIBRARY, 1000)


@pytest.fixture(autouse=True)
def no_slot_is_lost(model: PackedModel):
    yield
    assert model.pool.used == 0


def specs(sampling: SamplingParams = GREEDY, prompts: Sequence[Sequence[int]] = PROMPTS, **asked: int):
    asked = asked or {"logprobs": TOP, "prompt_logprobs": TOP}
    return [SequenceSpec(index, prompt, len(prompt) + COUNT, sampling, **asked) for index, prompt in enumerate(prompts)]


Row = tuple[int, bytes, int, tuple[int, ...], bytes]


def rows_of(told: LogProbs) -> list[Row]:
    """Returns everything about each token, bit for bit."""
    return [
        (int(token), log_prob.tobytes(), int(rank), tuple(top.tolist()), tops.tobytes())
        for token, log_prob, rank, top, tops in zip(
            told.token_ids, told.log_probs, told.ranks, told.top_ids, told.top_log_probs, strict=True
        )
    ]


@dataclass
class Told:
    """The results of a run, by sequence."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    output: dict[int, list[Row]] = field(default_factory=dict)
    prompt: dict[int, list[Row]] = field(default_factory=dict)
    likeliest: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    accepted: int = 0


def run(
    engine: VerificationEngine,
    asked: Sequence[SequenceSpec],
    drafter: ScriptedDrafter | None = None,
    *,
    detach_after: int | None = None,
) -> Told:
    """Runs sequences to their ends. detach_after: number of steps after which another drafter replaces the drafter."""
    told = Told()
    lengths = {}
    for spec in asked:
        engine.add(spec)
        lengths[spec.sequence_id] = len(spec.tokens)
        if drafter is not None:
            drafter.open(spec.sequence_id)
            engine.attach(spec.sequence_id, "scripted")
    steps = 0
    source = "scripted"
    idle = set(lengths)
    while engine.busy:
        if drafter is not None:
            for spec in asked:
                if spec.sequence_id in idle:
                    proposal = drafter.propose(spec, lengths[spec.sequence_id])
                    if proposal is not None:
                        engine.propose(spec.sequence_id, source, proposal)
            idle.clear()
        result = engine.step()
        steps += 1
        for sequence_id, part in result.prompts.items():
            told.prompt.setdefault(sequence_id, []).extend(rows_of(part))
        for outcome in result.outcomes:
            told.tokens.setdefault(outcome.sequence_id, []).extend(outcome.tokens)
            if outcome.log_probs is not None:
                assert outcome.log_probs.token_ids.tolist() == outcome.tokens
                told.output.setdefault(outcome.sequence_id, []).extend(rows_of(outcome.log_probs))
            if outcome.likeliest is not None:
                assert len(outcome.likeliest.log_probs) == len(outcome.tokens)
                tops = outcome.likeliest.token_ids[:, :TOP].tolist()
                told.likeliest.setdefault(outcome.sequence_id, []).extend(map(tuple, tops))
            told.accepted += outcome.accepted
            lengths[outcome.sequence_id] = outcome.committed_length
            if outcome.finish is None:
                idle.add(outcome.sequence_id)
        if steps == detach_after:
            engine.forget(source)
            source = "another"
            for spec in asked:
                drafter.open(spec.sequence_id)
                engine.attach(spec.sequence_id, source)
            idle = {spec.sequence_id for spec in asked if engine._queue.find(spec.sequence_id) is not None}
    return told


@pytest.fixture(scope="module", params=[GREEDY, SAMPLED], ids=["greedy", "sampled"])
def sampling(request: pytest.FixtureRequest) -> SamplingParams:
    return request.param


@pytest.fixture(scope="module")
def alone(model: PackedModel, sampling: SamplingParams) -> Told:
    """The results of each sequence alone, without a drafter, its prompt in one piece."""
    whole = Told()
    for spec in specs(sampling):
        part = run(engine_of(model), [spec])
        whole.tokens |= part.tokens
        whole.output |= part.output
        whole.prompt |= part.prompt
    return whole


def test_they_are_the_librarys(alone: Told) -> None:
    for index, prompt in enumerate(PROMPTS):
        text = [*prompt, *alone.tokens[index]]
        expected = plain_logits(LIBRARY, text).log_softmax(1)
        told = [*alone.prompt.get(index, []), *alone.output[index]]
        assert [row[0] for row in told] == text[1:], "of every token but the first"
        for row, (token, log_prob, rank, top, tops) in zip(expected, told, strict=False):
            assert abs(np.frombuffer(log_prob, np.float32)[0] - row[token]) < 1e-3
            best = row.topk(TOP)
            assert np.abs(np.frombuffer(tops, np.float32) - best.values.numpy()).max() < 1e-3
            assert list(top) == best.indices.tolist()
            assert rank == int((row >= row[token]).sum())


@pytest.mark.parametrize(("accuracy", "swapped"), [(0.0, True), (0.85, True), (1.0, False)])
def test_the_same_bits_with_a_drafter(
    model: PackedModel, sampling: SamplingParams, alone: Told, accuracy: float, swapped: bool
) -> None:
    check_drafter(model, sampling, alone, accuracy, swapped)


@pytest.mark.slow
class TestEveryCombination:
    @pytest.mark.parametrize("accuracy", [0.0, 0.85, 1.0])
    @pytest.mark.parametrize("swapped", [False, True])
    def test_the_same_bits_with_a_drafter(
        self, model: PackedModel, sampling: SamplingParams, alone: Told, accuracy: float, swapped: bool
    ) -> None:
        check_drafter(model, sampling, alone, accuracy, swapped)


def check_drafter(model: PackedModel, sampling: SamplingParams, alone: Told, accuracy: float, swapped: bool) -> None:
    drafter = ScriptedDrafter(alone.tokens, accuracy=accuracy)
    told = run(engine_of(model), specs(sampling), drafter, detach_after=6 if swapped else None)
    assert (told.tokens, told.output, told.prompt) == (alone.tokens, alone.output, alone.prompt)
    assert bool(told.accepted) == bool(accuracy)


@pytest.mark.parametrize("rows", [8, 64])
def test_the_same_bits_in_chunks(model: PackedModel, sampling: SamplingParams, alone: Told, rows: int) -> None:
    told = run(engine_of(model, max_step_rows=rows), specs(sampling))
    assert (told.output, told.prompt) == (alone.output, alone.prompt)


def test_the_same_bits_after_preemption_and_nothing_twice(sampling: SamplingParams, alone: Told) -> None:
    engine = engine_of(packed(LIBRARY, 96), max_tree_nodes=8, max_step_rows=16)
    told = run(engine, specs(sampling), ScriptedDrafter(alone.tokens, accuracy=0.0))
    assert engine.preemptions > 0
    assert (told.output, told.prompt) == (alone.output, alone.prompt)


def test_a_prompt_that_is_preempted_in_the_middle_is_told_once(model: PackedModel) -> None:
    asked = SequenceSpec(1, PROMPTS[2], 60, GREEDY, prompt_logprobs=0)
    expected = run(engine_of(model), [asked]).prompt[1]
    engine = engine_of(packed(LIBRARY, 96), max_tree_nodes=8, max_step_rows=16)
    engine.add(SequenceSpec(0, PROMPTS[0], 60, GREEDY))
    engine.add(asked)
    told = [engine.step().prompts[1]]
    taken = engine.model.pool.take(engine.model.pool.free)
    told += [part for part in (engine.step().prompts.get(1),) if part is not None]
    assert engine.preemptions == 1, "else this test says nothing"
    engine.model.pool.give_back(taken)
    while engine.busy:
        told += engine.step().prompts.values()
    assert [row for part in told for row in rows_of(part)] == expected


def test_output_that_is_known_already_is_told_with_the_prompt(
    model: PackedModel, sampling: SamplingParams, alone: Told
) -> None:
    known = 7
    resumed = [*PROMPTS[0], *alone.tokens[0][:known]]
    spec = SequenceSpec(0, resumed, len(PROMPTS[0]) + COUNT, sampling, logprobs=TOP, prompt_logprobs=TOP)
    told = run(engine_of(model), [spec])
    assert told.prompt[0] == [*alone.prompt[0], *alone.output[0][:known]]
    assert told.output[0] == alone.output[0][known:]


def test_low_precision_keeps_its_bits_too() -> None:
    half = tiny_model("Llama", dtype=torch.bfloat16)
    model = packed(half, 1000)
    plain = run(engine_of(model), specs(SAMPLED)[:2])
    drafted = run(engine_of(model), specs(SAMPLED)[:2], ScriptedDrafter(plain.tokens, accuracy=1.0))
    assert drafted.accepted
    assert (drafted.output, drafted.prompt) == (plain.output, plain.prompt)


class Towards:
    """Makes one token certain."""

    def __init__(self, token: int):
        self.token = token

    def prepare(self, rows: TreeRows) -> None:
        pass

    def edit(self, logits: torch.Tensor, rows: TreeRows) -> None:
        logits[:, self.token] += 1000.0

    def commit(self, tokens: Sequence[int]) -> None:
        pass


def test_they_are_those_before_a_requests_changes(model: PackedModel) -> None:
    (spec,) = specs(GREEDY)[:1]
    told = run(engine_of(model), [replace(spec, editors=(Towards(77),))])
    assert told.tokens[0] == [77] * COUNT
    expected = plain_logits(LIBRARY, [*PROMPTS[0], *told.tokens[0]]).log_softmax(1)
    found = [np.frombuffer(row[1], np.float32)[0] for row in told.output[0]]
    assert np.abs(np.array(found) - expected[len(PROMPTS[0]) - 1 : -1, 77].numpy()).max() < 1e-3
    assert any(row[2] > 1 for row in told.output[0])


def test_with_a_lossy_rule_they_are_the_targets_too(model: PackedModel) -> None:
    drafted = {0: run(engine_of(model), specs(GREEDY)[:1]).tokens[0]}
    lenient = Acceptance(RuleName.THRESHOLD, threshold=0.05)
    (spec,) = specs(SAMPLED)[:1]
    told = run(engine_of(model), [replace(spec, acceptance=lenient)], ScriptedDrafter(drafted, accuracy=1.0))
    assert told.tokens != run(engine_of(model), [spec]).tokens, "else the rule made no difference"
    expected = plain_logits(LIBRARY, [*PROMPTS[0], *told.tokens[0]]).log_softmax(1)[len(PROMPTS[0]) - 1 :]
    for row, (token, log_prob, *_) in zip(expected, told.output[0], strict=False):
        assert abs(np.frombuffer(log_prob, np.float32)[0] - row[token]) < 1e-3


def test_who_asks_for_none_pays_nothing(model: PackedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification_job, "log_probs", pytest.fail)
    monkeypatch.setattr(target_pass, "log_probs", pytest.fail)
    engine = engine_of(model)
    engine.add(SequenceSpec(0, PROMPTS[0], len(PROMPTS[0]) + 3, GREEDY))
    while engine.busy:
        result = engine.step()
        assert not result.prompts and all(outcome.log_probs is None for outcome in result.outcomes)


# ---- the function ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["compiled", "torch"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setattr(coupled_sampler, "fits", lambda logits: False)


class Largest(TorchDispatchMode):
    """Records the most elements of a tensor that is made."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.most = max([self.most, *(each.numel() for each in tree_leaves(made) if isinstance(each, torch.Tensor))])
        return made


@pytest.mark.usefixtures("implementation")
class TestRows:
    @pytest.mark.parametrize(
        "told", [lambda logits: log_probs(logits, [3] * len(logits), 5), lambda logits: top_log_probs(logits, 5)]
    )
    def test_many_rows_take_no_more_memory_than_some(self, told: Callable[[torch.Tensor], Any]) -> None:
        """On GPUs a step has a thousand rows of a prompt, of 250,000 tokens each."""
        logits = torch.randn(300, 512).bfloat16()
        with Largest() as largest:
            found = told(logits)
        assert largest.most <= 64 * 512
        alone = told(logits[200:201])
        if isinstance(found, LogProbs):
            assert rows_of(found)[200:201] == rows_of(alone) and len(found) == 300
        else:
            assert torch.equal(found[0][200:201], alone[0]) and torch.allclose(found[1][200:201], alone[1])

    def test_the_lowest_id_first_among_equals(self) -> None:
        logits = torch.zeros(1, VOCABULARY)
        logits[0, [9, 4, 200]] = 1.0
        told = log_probs(logits, [9], 4)
        assert told.top_ids.tolist() == [[4, 9, 200, 0]]
        assert told.ranks.tolist() == [3], "as many are at least as likely"
        assert told.log_probs[0] == told.top_log_probs[0, 0] == told.top_log_probs[0, 2]

    def test_a_tokens_number_is_that_of_its_place_among_the_likeliest(self) -> None:
        logits = torch.randn(20, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 4
        best = logits.topk(3).indices
        for place in range(3):
            told = log_probs(logits, best[:, place].tolist(), 3)
            assert (told.log_probs == told.top_log_probs[:, place]).all()
            assert (told.ranks == place + 1).all()

    def test_none_of_the_likeliest(self) -> None:
        told = log_probs(torch.zeros(2, VOCABULARY), [0, 5], 0)
        assert told.top_ids.shape == told.top_log_probs.shape == (2, 0)
        assert told.log_probs == pytest.approx(-np.log(VOCABULARY))

    def test_more_than_there_are(self) -> None:
        told = log_probs(torch.tensor([[0.0, -torch.inf, 1.0]]), [1], 5)
        assert told.top_ids.tolist() == [[2, 0, -1, -1, -1]]
        assert told.log_probs.tolist() == [-np.inf]

    def test_bad_rows_are_no_numbers_and_touch_no_other(self) -> None:
        logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(1))
        good = log_probs(logits, [1, 2, 3], 2)
        logits[1, 7] = torch.nan
        told = log_probs(logits, [1, 2, 3], 2)
        assert np.isnan(told.log_probs).tolist() == [False, True, False]
        assert [rows_of(told)[row] == rows_of(good)[row] for row in range(3)] == [True, False, True]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @given(seed=st.integers(0, 999), rows=st.integers(1, 9), vocabulary=st.integers(1, 400), scale=st.floats(0, 30))
    @settings(max_examples=30, deadline=None)
    def test_a_row_depends_on_itself_alone(
        self, dtype: torch.dtype, seed: int, rows: int, vocabulary: int, scale: float
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        logits = (torch.randn(rows, vocabulary, generator=generator) * scale).to(dtype)
        tokens = torch.randint(vocabulary, (rows,), generator=generator).tolist()
        together = rows_of(log_probs(logits, tokens, 4))
        for row in range(rows):
            assert (
                rows_of(log_probs(logits[row : row + 1].clone(), tokens[row : row + 1], 4)) == together[row : row + 1]
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [5, 300])
def test_the_likeliest_are_those_of_the_softmax(size: int, dtype: torch.dtype) -> None:
    """Compiled code has no float16."""
    logits = torch.randn(4, size, generator=torch.Generator().manual_seed(1)).to(dtype)
    logits[1, 2:] = -torch.inf
    found = likeliest(logits)
    assert found.token_ids.shape == found.log_probs.shape == (4, LIKELIEST)
    expected = logits.double().log_softmax(1)
    for row, known in enumerate([min(size, LIKELIEST), 2, min(size, LIKELIEST), min(size, LIKELIEST)]):
        best = expected[row].sort(descending=True, stable=True).values[:known]
        assert np.allclose(found.log_probs[row, :known], best, atol=1e-4)
        assert np.allclose(expected[row, found.token_ids[row, :known]], best, atol=1e-4)
        assert np.isneginf(found.log_probs[row, known:]).all()


def test_the_likeliest_come_with_the_tokens_and_change_none_of_them(
    model: PackedModel, sampling: SamplingParams, alone: Told
) -> None:
    """One of the sequences does not ask for them."""
    asked = [replace(spec, likeliest=spec.sequence_id != 1, logprobs=None) for spec in specs(sampling)]
    told = run(engine_of(model), asked, ScriptedDrafter(alone.tokens))
    assert told.accepted
    assert told.tokens == alone.tokens
    assert not told.output
    for index, rows in alone.output.items():
        expected = [] if index == 1 else [row[3] for row in rows]
        assert told.likeliest.get(index, []) == expected
