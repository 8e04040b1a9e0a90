"""Drawing by a drafter with a model: the distribution that it reports is the one that it drew from."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter
from draftwire_core.engine.sampling.distributions import LIKELIEST, by_entropy, draw, probabilities
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.engines import packed, tiny_model

SEEDS = 6000
TOKENS = 5


def logits_of(tokens: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(1, tokens, generator=torch.Generator().manual_seed(3)) * scale


def batch_of(**params: float) -> SamplingBatch:
    return SamplingBatch.build([SamplingParams(**params)], [4])  # type: ignore[arg-type]


def test_without_replacement() -> None:
    logits = logits_of(TOKENS).expand(SEEDS, -1)
    batch = SamplingBatch.build([SamplingParams(seed=seed) for seed in range(SEEDS)], [4] * SEEDS)
    q = probabilities(logits[:1], batch_of())[0]
    pairs = list(itertools.permutations(range(TOKENS), 2))
    expected = np.array([q[a] * q[b] / (1 - q[a]) for a, b in pairs])
    counts = dict.fromkeys(pairs, 0)
    for distribution, (first, second) in draw(logits, batch, 2):
        counts[first, second] += 1
        assert sorted(distribution.token_ids) == list(range(TOKENS))
    assert stats.chisquare(list(counts.values()), expected * SEEDS).pvalue > 1e-3


@pytest.mark.parametrize("params", [{}, {"temperature": 0.7, "top_p": 0.8}, {"top_k": 3}, {"min_p": 0.2}])
def test_what_is_said(params: dict[str, float]) -> None:
    logits = logits_of(100, 2.0)
    ((distribution, tokens),) = draw(logits, batch_of(**params), 3)
    p = probabilities(logits, batch_of(**params))[0]
    likeliest = np.argsort(-p)[:LIKELIEST]
    likeliest = likeliest[p[likeliest] > 0]
    assert list(distribution.token_ids) == likeliest.tolist()
    np.testing.assert_allclose(distribution.probabilities, p[likeliest] / p[likeliest].sum(), rtol=1e-5)
    assert set(tokens) <= set(distribution.token_ids)
    assert len(set(tokens)) == min(3, len(likeliest))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_row_gets_nothing_and_disturbs_no_other(bad: float) -> None:
    logits = logits_of(20).repeat(2, 1)
    alone = draw(logits[:1], batch_of(), 2)
    logits[1, 3] = bad
    found = draw(logits, SamplingBatch.build([SamplingParams()] * 2, [4, 4]), 2)
    assert found[0] == alone[0]
    assert (len(found[1][0].token_ids), found[1][1]) == (0, [])


def test_how_many_are_drawn_does_not_depend_on_what_is_drawn() -> None:
    """A number that depended on the draws would let the drafter choose among them, and shift the output."""
    drafter = DraftModelDrafter(packed(tiny_model("Llama", vocab_size=60)))
    numbers, first = set(), set()
    for seed in range(40):
        drafter.open(1, DraftSpec([5], SamplingParams(temperature=1.5, seed=seed), 16, 50, draws=True))
        proposal = drafter.grow().proposals[1]
        ((parent, distribution),) = proposal.distributions
        assert parent == 0
        assert set(proposal.token_ids) <= set(distribution.token_ids)
        numbers.add(len(proposal.token_ids))
        first.add(proposal.token_ids[0])
        drafter.close(1)
    assert len(numbers) == 1
    assert len(first) > 5


def test_nothing_is_drawn_without_noise() -> None:
    drafter = DraftModelDrafter(packed(tiny_model("Llama", vocab_size=60)))
    drafter.open(1, DraftSpec([5], SamplingParams(temperature=0), 16, 50, draws=True))
    assert not drafter.grow().proposals[1].distributions


def test_dynamic_temperature() -> None:
    flat, peaked = torch.zeros(1, 50), torch.zeros(1, 50)
    peaked[0, 7] = 50.0
    batch = SamplingBatch.build([SamplingParams(temperature=0.8)] * 3, [4] * 3)
    cooler = by_entropy(torch.cat([flat, peaked, flat]), batch, [0, 1])
    expected = [0.8 / (1 + np.log(50)), 0.8, 0.8]
    np.testing.assert_allclose(cooler.temperatures[:, 0], expected, rtol=1e-5)
    assert batch.temperatures[0] == np.float32(0.8)


def test_dynamic_temperature_drafts_the_likeliest_where_it_is_unsure() -> None:
    drafter = DraftModelDrafter(packed(tiny_model("Llama", vocab_size=60)))
    first: dict[bool, set[int]] = {True: set(), False: set()}
    for dynamic, seed in itertools.product((True, False), range(30)):
        sampling = SamplingParams(temperature=1.5, seed=seed)
        drafter.open(1, DraftSpec([5], sampling, 16, 50, dynamic_temperature=dynamic))
        first[dynamic].add(drafter.grow().proposals[1].token_ids[0])
        drafter.close(1)
    assert len(first[True]) < len(first[False])
