"""Divergences over sparse targets: their values, their bounds, and their gradients' direction."""

import itertools

import pytest
import torch

from draftwire_core.training.distillation.divergence import (
    DIVERGENCES,
    Divergence,
    divergence,
    draft_outcomes,
    target_outcomes,
)

VOCABULARY = 50


def two(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns logits of a target and a draft, [20, vocabulary] each."""
    generator = torch.Generator().manual_seed(seed)
    target = 2 * torch.randn(20, VOCABULARY, generator=generator)
    return target, target + torch.randn(20, VOCABULARY, generator=generator)


def sparse(kind: Divergence, target: torch.Tensor, draft: torch.Tensor, top: int) -> torch.Tensor:
    best = target.log_softmax(1).topk(top, dim=1)
    return divergence(kind, target_outcomes(best.values), draft_outcomes(draft, best.indices))


def whole(kind: Divergence, target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """Computes the textbook divergence over all tokens."""
    q, p = target.double().softmax(1), draft.double().softmax(1)
    if kind == "forward-kl":
        return (q * (q / p).log()).sum(1)
    if kind == "reverse-kl":
        return (p * (p / q).log()).sum(1)
    if kind == "total-variation":
        return (q - p).abs().sum(1) / 2
    mean = (p + q) / 2
    return ((q * (q / mean).log()).sum(1) + (p * (p / mean).log()).sum(1)) / 2


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_with_all_tokens_it_is_the_divergence(kind: Divergence) -> None:
    target, draft = two(0)
    assert torch.allclose(sparse(kind, target, draft, VOCABULARY).double(), whole(kind, target, draft), atol=1e-4)


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_with_fewer_it_is_a_lower_bound_that_rises(kind: Divergence) -> None:
    target, draft = two(1)
    values = [sparse(kind, target, draft, top) for top in (1, 4, 16, VOCABULARY)]
    for fewer, more in itertools.pairwise(values):
        assert (fewer <= more + 1e-5).all()
    assert (values[0] >= -1e-6).all()


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_it_is_zero_for_the_same_and_following_it_down_gets_there(kind: Divergence) -> None:
    target, draft = two(2)
    assert sparse(kind, target, target, 8).abs().max() < 1e-5
    learned = draft.clone().requires_grad_()
    optimizer = torch.optim.Adam([learned], lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        sparse(kind, target, learned, 8).mean().backward()
        optimizer.step()
    assert sparse(kind, target, learned, 8).mean() < 0.05 * sparse(kind, target, draft, 8).mean()


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_gradients_stay_finite_where_all_mass_is_known(kind: Divergence) -> None:
    target = torch.full((1, VOCABULARY), -30.0)
    target[0, 3] = 30.0
    for draft in (target.clone(), -target):
        draft.requires_grad_()
        sparse(kind, target, draft, 2).sum().backward()
        assert draft.grad is not None and draft.grad.isfinite().all()
