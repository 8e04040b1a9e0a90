"""The rejection rule through the engine, with a draft model and trees that outlive verdicts: the output is exact."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import PreTrainedModel

from draftwire_core.engine.acceptance.acceptance import COUPLED, Acceptance, RuleName
from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.lookup.ngram import NgramOptions, ngram_drafter
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.distributions import probabilities
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.engines import engine_of, packed, plain_logits, tiny_model

TOKENS = 6
PROMPT = [3, 4, 5, 3, 4]
LENGTH = 3
REQUESTS, AT_ONCE = 512, 64
"""Requests of a test in the default tier, and how many run at once."""
MANY = 1024
REJECTION = Acceptance(RuleName.REJECTION)
DRAFT = "draft"


@cache
def models() -> tuple[PreTrainedModel, PackedModel, PackedModel]:
    """Returns transformers' target, the packed target and the packed draft model."""
    # The draft model is the target with disturbed weights: they often agree, but not always.
    target = tiny_model("Llama", vocab_size=TOKENS, pad_token_id=None)
    draft = tiny_model("Llama", vocab_size=TOKENS, pad_token_id=None)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.08)
        for model in (target, draft):
            model.lm_head.weight.mul_(0.3)
    return target, packed(target), packed(draft)


@cache
def expected(sampling: SamplingParams) -> np.ndarray:
    """Returns the exact distribution of outputs, indexed by their tokens as digits."""
    target, _, _ = models()
    found = np.ones(1)
    outputs: list[list[int]] = [[]]
    for _ in range(LENGTH):
        logits = torch.stack([plain_logits(target, PROMPT + output)[-1] for output in outputs])
        batch = SamplingBatch.build([sampling] * len(outputs), [0] * len(outputs))
        found = (found[:, None] * probabilities(logits, batch)).ravel()
        outputs = [[*output, token] for output in outputs for token in range(TOKENS)]
    return found


def outputs_of(
    sampling: SamplingParams,
    *,
    most: int | None = None,
    drafted: bool = True,
    lookup: bool = False,
    requests: int,
) -> tuple[np.ndarray, int]:
    """Returns the count of each output, and the number of accepted draft tokens."""
    _, target, draft = models()
    engine = engine_of(target, max_sequences=AT_ONCE)
    drafter = DraftModelDrafter(draft)
    if lookup:
        engine.add_drafter("lookup", ngram_drafter(NgramOptions(min=1)))
    counts, accepted = np.zeros(TOKENS**LENGTH), 0
    longest = len(PROMPT) + LENGTH
    for first in range(0, requests, AT_ONCE):
        outputs: dict[int, list[int]] = {}
        for seed in range(first, first + AT_ONCE):
            params = replace(sampling, seed=seed)
            engine.add(SequenceSpec(seed, PROMPT, longest, params, max_draft_tokens=most, acceptance=REJECTION))
            if drafted:
                engine.attach(seed, DRAFT)
                drafter.open(seed, DraftSpec(PROMPT, params, 16, longest, draws=True))
            if lookup:
                engine.attach(seed, "lookup")
            outputs[seed] = []
        while engine.running:
            for _ in range(2):
                for key, proposal in drafter.grow().proposals.items():
                    engine.propose(key, DRAFT, proposal)
            for outcome in engine.step().outcomes:
                outputs[outcome.sequence_id] += outcome.tokens
                accepted += outcome.accepted
                if outcome.finish is not None:
                    drafter.close(outcome.sequence_id)
                elif drafted:
                    drafter.commit(outcome.sequence_id, outcome.committed_length, outcome.tokens)
        for output in outputs.values():
            counts[int("".join(map(str, output)), TOKENS)] += 1
    return counts, accepted


def fit(counts: np.ndarray, p: np.ndarray) -> float:
    """Returns the chi-square test's p-value; outputs too rare to be tested alone are pooled."""
    assert not counts[p == 0].any()
    rare = p * counts.sum() < 5
    observed = [*counts[~rare], counts[rare].sum()] if p[rare].sum() else counts[~rare]
    likely = [*p[~rare], p[rare].sum()] if p[rare].sum() else p[~rare]
    return float(stats.chisquare(observed, np.array(likely) * counts.sum()).pvalue)


def check_distribution(sampling: SamplingParams, most: int | None, requests: int) -> None:
    counts, accepted = outputs_of(sampling, most=most, requests=requests)
    assert accepted > requests / 3
    assert fit(counts, expected(sampling)) > 1e-3


def check_lookup(drafted: bool, requests: int) -> None:
    sampling = SamplingParams(temperature=1.0)
    counts, accepted = outputs_of(sampling, drafted=drafted, lookup=True, requests=requests)
    assert accepted > requests / 10
    assert fit(counts, expected(sampling)) > 1e-3


KINDS = [
    pytest.param(SamplingParams(temperature=1.0), None, id="T=1"),
    # The child to verify depends on its value, which must not show.
    pytest.param(SamplingParams(temperature=1.0), 1, id="one node a step"),
    pytest.param(SamplingParams(temperature=0.7, top_p=0.9), None, id="T=0.7 top_p"),
    pytest.param(SamplingParams(temperature=1.0, top_k=3), None, id="top_k"),
]
LOOKUPS = pytest.mark.parametrize("drafted", [False, True], ids=["alone", "beside a draft model"])


@pytest.mark.parametrize(("sampling", "most"), KINDS[1:3])
def test_output_is_distributed_as_the_targets(sampling: SamplingParams, most: int | None) -> None:
    check_distribution(sampling, most, REQUESTS)


def test_with_a_lookup_whose_tokens_nobody_drew() -> None:
    check_lookup(True, REQUESTS)


@pytest.mark.slow
class TestManyRequests:
    @pytest.mark.parametrize(("sampling", "most"), KINDS)
    def test_output_is_distributed_as_the_targets(self, sampling: SamplingParams, most: int | None) -> None:
        check_distribution(sampling, most, MANY)

    @LOOKUPS
    def test_with_a_lookup_whose_tokens_nobody_drew(self, drafted: bool) -> None:
        check_lookup(drafted, MANY)


def test_the_same_proposals_give_the_same_tokens() -> None:
    sampling = SamplingParams(temperature=1.0, top_k=4)
    first, again = outputs_of(sampling, requests=128), outputs_of(sampling, requests=128)
    assert (first[0] == again[0]).all() and first[1] == again[1]


def test_greedy_is_the_coupled_rule() -> None:
    _, target, _ = models()
    outputs = []
    for acceptance in (
        COUPLED,
        REJECTION,
        Acceptance(RuleName.TYPICAL),
        Acceptance(RuleName.THRESHOLD, threshold=0.01),
    ):
        engine = engine_of(target)
        engine.add_drafter("lookup", ngram_drafter(NgramOptions(min=1)))
        engine.add(SequenceSpec(1, PROMPT, 40, SamplingParams(temperature=0), acceptance=acceptance))
        engine.attach(1, "lookup")
        tokens: list[int] = []
        while engine.running:
            for outcome in engine.step().outcomes:
                tokens += outcome.tokens
        outputs.append(tokens)
    assert outputs[1:] == outputs[:-1]
