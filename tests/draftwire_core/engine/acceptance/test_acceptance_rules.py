"""Each acceptance rule against its promise: exact distributions if lossless, its thresholds if lossy."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from draftwire_core.engine.acceptance.acceptance import COUPLED, Acceptance, RuleName, rule_of, sampling_of
from draftwire_core.engine.acceptance.coupled import CoupledRule
from draftwire_core.engine.acceptance.lossy import ThresholdRule, TypicalRule
from draftwire_core.engine.acceptance.rejection import RejectionRule
from draftwire_core.engine.acceptance.rule import AcceptanceRule, VerifiedTree, Visit
from draftwire_core.engine.engine.asked_rows import AskedRows
from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.sampling.coupled_sampler import sample
from draftwire_core.engine.sampling.distributions import draw, probabilities
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.token_tree import DraftDistribution, Draws, Node, TokenTree

TOKENS = 9
TRIALS, MANY_TRIALS = 2000, 4000
"""Of a test in the default tier, and of a slow one."""
SIGNIFICANCE = 1e-3
"""Seeds are fixed, so a test that passes always passes."""


def logits_of(seed: int, scale: float = 1.5) -> torch.Tensor:
    return torch.randn(1, TOKENS, generator=torch.Generator().manual_seed(seed)) * scale


def fit(counts: np.ndarray, p: np.ndarray) -> float:
    """Returns the chi-square test's p-value for counts and a distribution, 0 if something impossible was counted."""
    assert not counts[p == 0].any()
    likely = p > 0
    return float(stats.chisquare(counts[likely], p[likely] / p[likely].sum() * counts.sum()).pvalue)


def visit_of(root: Node, p: np.ndarray, drawn: int, verified: list[Node] | None = None) -> Visit:
    children = list(root.children.values())
    return Visit(root, children if verified is None else verified, drawn, p.copy)


def rejected_counts(
    sampling: SamplingParams,
    *,
    width: int,
    draft_scale: float = 1.0,
    lie: float = 0.0,
    sure: list[int] | None = None,
    trials: int = TRIALS,
) -> tuple[np.ndarray, np.ndarray]:
    """Counts tokens after one node under the rejection rule, by seed; also returns the target's distribution.

    width: children drawn. lie: fraction of its probability mass that the drafter misreports. sure: children that were
    not drawn from a distribution.
    """
    target, drafts = logits_of(1), logits_of(1) * 0.5 + logits_of(2) * draft_scale
    p = probabilities(target, SamplingBatch.build([sampling], [3]))[0]
    seeds = [replace(sampling, seed=seed) for seed in range(trials)]
    keyed = [sampling_of(Acceptance(RuleName.REJECTION), params) for params in seeds]
    drawn = draw(drafts.expand(trials, -1), SamplingBatch.build(seeds, [3] * trials), width)
    own = sample(target.expand(trials, -1), SamplingBatch.build(keyed, [3] * trials)).token_ids.tolist()
    counts = np.zeros(TOKENS)
    for params, (distribution, tokens), token in zip(keyed, drawn, own, strict=True):
        tree = TokenTree(3, 0)
        for child in sure or []:
            tree.add(tree.root, child)
        if tokens:
            for child in tokens:
                tree.add(tree.root, child)
            said = distribution
            if lie:
                q = np.array(distribution.probabilities) * (1 - lie)
                q[0] += lie
                said = DraftDistribution(distribution.token_ids, q.tolist())
            tree.root.draws = Draws(tuple(tokens), said)
        counts[RejectionRule(params.seed).token(visit_of(tree.root, p, token))] += 1
    return counts, p


SAMPLINGS = [
    pytest.param(SamplingParams(temperature=0.7), id="T=0.7"),
    pytest.param(SamplingParams(temperature=1.0), id="T=1"),
    pytest.param(SamplingParams(temperature=1.0, top_p=0.8), id="top_p"),
    pytest.param(SamplingParams(temperature=0.7, top_k=4), id="top_k"),
    pytest.param(SamplingParams(temperature=1.0, top_k=6, top_p=0.9, min_p=0.02), id="all filters"),
]


WIDTHS = [0, 1, 3, TOKENS]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_rejection_gives_the_targets_distribution(sampling: SamplingParams) -> None:
    assert fit(*rejected_counts(sampling, width=3)) > SIGNIFICANCE


@pytest.mark.parametrize("width", [each for each in WIDTHS if each != 3])
def test_rejection_of_any_number_of_draws(width: int) -> None:
    assert fit(*rejected_counts(SamplingParams(), width=width)) > SIGNIFICANCE


@pytest.mark.parametrize(("width", "sure"), [(0, [4, 2, 7]), (2, [0])])
def test_rejection_with_children_that_nobody_drew(sure: list[int], width: int) -> None:
    assert fit(*rejected_counts(SamplingParams(), width=width, sure=sure)) > SIGNIFICANCE


@pytest.mark.slow
class TestEveryCombination:
    @pytest.mark.parametrize("width", WIDTHS)
    @pytest.mark.parametrize("sampling", SAMPLINGS)
    def test_rejection_gives_the_targets_distribution(self, sampling: SamplingParams, width: int) -> None:
        assert fit(*rejected_counts(sampling, width=width, trials=MANY_TRIALS)) > SIGNIFICANCE

    @pytest.mark.parametrize("sure", [[0], [4, 2, 7]])
    @pytest.mark.parametrize("width", [0, 2])
    def test_rejection_with_children_that_nobody_drew(self, sure: list[int], width: int) -> None:
        assert fit(*rejected_counts(SamplingParams(), width=width, sure=sure, trials=MANY_TRIALS)) > SIGNIFICANCE


def test_rejection_of_a_drafter_that_agrees_keeps_all() -> None:
    """Where p equals q, every draw is kept."""
    target = logits_of(5)
    p = probabilities(target, SamplingBatch.build([SamplingParams()], [3]))[0]
    params = [SamplingParams(seed=seed) for seed in range(200)]
    for distribution, tokens in draw(target.expand(200, -1), SamplingBatch.build(params, [3] * 200), 1):
        tree = TokenTree(3, 0)
        tree.add(tree.root, tokens[0])
        tree.root.draws = Draws((tokens[0],), distribution)
        # q travels as float32, so it equals p up to rounding.
        assert RejectionRule(1).token(visit_of(tree.root, p, -2)) == tokens[0]


def test_a_lie_about_the_distribution_shifts_the_output_and_nothing_notices() -> None:
    """The reason to require trusted drafters: each draw is possible under the reported distribution."""
    counts, p = rejected_counts(SamplingParams(), width=1, lie=0.5)
    assert fit(counts, p) < 1e-9


def test_rejection_is_reproducible() -> None:
    first, _ = rejected_counts(SamplingParams(), width=3, trials=300)
    again, _ = rejected_counts(SamplingParams(), width=3, trials=300)
    assert (first == again).all()


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_coupled_gives_the_targets_distribution(sampling: SamplingParams) -> None:
    target = logits_of(1)
    p = probabilities(target, SamplingBatch.build([sampling], [3]))[0]
    params = [replace(sampling, seed=seed) for seed in range(TRIALS)]
    drawn = sample(target.expand(TRIALS, -1), SamplingBatch.build(params, [3] * TRIALS)).token_ids
    assert fit(np.bincount(drawn.numpy(), minlength=TOKENS), p) > SIGNIFICANCE


@settings(max_examples=100, deadline=None)
@given(
    weights=st.lists(st.floats(0, 1), min_size=2, max_size=8).filter(lambda w: sum(w) > 0.01),
    drafted=st.lists(st.floats(0.001, 1), min_size=2, max_size=8),
    order=st.permutations(range(8)),
    width=st.integers(1, 8),
    key=st.integers(0, 2**64 - 1),
)
def test_rejection_never_commits_what_the_target_excludes(
    weights: list[float], drafted: list[float], order: list[int], width: int, key: int
) -> None:
    p = np.array(weights) / sum(weights)
    q = [value / sum(drafted) for value in drafted]
    tree = TokenTree(3, 0)
    tokens = [token for token in order if token < min(len(p), len(q))][:width]
    for token in tokens:
        tree.add(tree.root, token)
    tree.root.draws = Draws(tuple(tokens), DraftDistribution(range(min(len(p), len(q))), q[: len(p)]))
    own = int(p.argmax())
    assert p[RejectionRule(key).token(visit_of(tree.root, p, own))] > 0


# ---- the lossy rules


P = np.array([0.6, 0.3, 0.08, 0.02])


def children(*tokens: int) -> TokenTree:
    tree = TokenTree(3, 0)
    for token in tokens:
        tree.add(tree.root, token)
    return tree


@pytest.mark.parametrize(
    ("threshold", "drafted", "drawn", "kept"),
    [
        (0.5, [0], 2, 0),
        (0.6, [0], 2, 0),
        (0.61, [0], 2, 2),
        (0.2, [2, 1], 3, 1),
        (0.2, [1, 0], 3, 0),  # the most likely one of those above the threshold
        (0.2, [0, 3], 3, 3),  # the target's own token comes first
        (1.0, [0], 0, 0),
        (0.01, [], 1, 1),
    ],
)
def test_threshold(threshold: float, drafted: list[int], drawn: int, kept: int) -> None:
    assert ThresholdRule(threshold).token(visit_of(children(*drafted).root, P, drawn)) == kept


def test_typical() -> None:
    entropy = -float(P @ np.log(P))
    least = 0.3 * math.exp(-entropy)  # 0.117, above the posterior threshold
    assert 0.09 < least < 0.3
    assert TypicalRule(0.09, 0.3).token(visit_of(children(1).root, P, 0)) == 1
    assert TypicalRule(0.09, 0.3).token(visit_of(children(2).root, P, 0)) == 0
    assert TypicalRule(0.07, 0.3).token(visit_of(children(2).root, P, 0)) == 2
    # Each of four equally likely tokens is typical, whatever the posterior threshold: 0.25 > 0.3 exp(-log 4).
    assert TypicalRule(1.0, 0.3).token(visit_of(children(3).root, np.full(4, 0.25), 0)) == 3
    # A token that a filter excludes is never typical.
    assert TypicalRule(0.09, 0.3).token(visit_of(children(2).root, np.array([0.5, 0.5, 0.0]), 0)) == 0


@pytest.mark.parametrize("rule", [ThresholdRule(0.01), TypicalRule(0.01, 0.01)])
def test_lossy_rules_pass_over_children_that_were_not_verified(rule: ThresholdRule | TypicalRule) -> None:
    """A child that was not verified would end the output without gaining anything."""
    assert rule.token(visit_of(children(0, 1).root, P, 2, verified=[])) == 2


def test_without_noise_all_rules_are_one() -> None:
    greedy = SamplingParams(temperature=0)
    assert all(isinstance(rule_of(Acceptance(rule), greedy), CoupledRule) for rule in RuleName)
    assert isinstance(rule_of(COUPLED, SamplingParams()), CoupledRule)


def test_the_coupled_walk_is_the_rules_own_token_by_token() -> None:
    """`CoupledRule.walk` takes a shortcut that must lead to the same tokens as `token`."""
    rng = random.Random(3)
    lengths = set()
    for _ in range(300):
        tree = TokenTree(1, 0)
        for _ in range(rng.randint(0, 20)):
            tree.add(rng.choice([tree.root, *tree.nodes()]), rng.randrange(3))
        nodes = [node for node in tree.nodes() if rng.random() < 0.9]
        drawn = [rng.randrange(-1, 3) for _ in range(1 + len(nodes))]
        rows = AskedRows(drawn, None, torch.empty(0), torch.empty(0), None)
        verified = VerifiedTree(tree.root, nodes, drawn, None, SamplingParams(), rows)
        accepted, tokens = CoupledRule().walk(verified)
        assert (accepted, tokens) == AcceptanceRule.walk(CoupledRule(), verified)
        lengths.add(len(accepted))
    assert {0, 1, 2, 3} <= lengths


@pytest.mark.parametrize("field", ["threshold", "posterior_threshold", "posterior_alpha"])
@pytest.mark.parametrize("value", [0.0, -0.1, 1.1, math.nan])
def test_thresholds_out_of_range(field: str, value: float) -> None:
    with pytest.raises(FieldError) as raised:
        Acceptance(RuleName.TYPICAL, **{field: value}).validate()
    assert raised.value.field == f"speculation.{field}"
