"""Divergence of a draft model's distribution from the target's, if only the target's likeliest tokens are known.

Both distributions are taken over the same outcomes: each known token, and "any other token" as one. The result is a
lower bound of the divergence of the full distributions, because merging outcomes never raises one of these divergences.
It is exact where the known tokens have all the mass.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Divergence = Literal["forward-kl", "reverse-kl", "total-variation", "jensen-shannon"]
"""forward-kl: KL(target, draft), mass-covering. reverse-kl: KL(draft, target), mode-seeking. total-variation: half the
sum of differences, which is the share of tokens that classic speculative sampling rejects. jensen-shannon: the mean KL
of both to their mean."""

DIVERGENCES: tuple[Divergence, ...] = get_args(Divergence)

_LEAST = 1e-8
"""Least probability of "any other token", so that its logarithm is finite."""


def target_outcomes(log_probs: Tensor) -> Tensor:
    """Returns log-probabilities of the known tokens and of any other: [rows, top] -> [rows, top + 1]."""
    rest = (1 - log_probs.exp().sum(1, keepdim=True)).clamp_min(_LEAST).log()
    return torch.cat([log_probs, rest], 1)


def draft_outcomes(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Returns the draft model's log-probabilities of the known tokens and of any other.

    logits [rows, vocabulary], token_ids [rows, top] -> [rows, top + 1].
    """
    log_probs = logits.float().log_softmax(1)
    known = log_probs.gather(1, token_ids)
    if token_ids.shape[1] == logits.shape[1]:
        rest = torch.full_like(known[:, :1], _LEAST).log()
    else:
        others = log_probs.scatter(1, token_ids, float("-inf"))
        rest = others.logsumexp(1, keepdim=True).clamp_min(torch.tensor(_LEAST).log().item())
    return torch.cat([known, rest], 1)


def divergence(kind: Divergence, target: Tensor, draft: Tensor) -> Tensor:
    """Returns the divergence of log-probabilities over the same outcomes, [rows, outcomes] each, as [rows]; in nats
    except for total-variation."""
    if kind == "forward-kl":
        return (target.exp() * (target - draft)).sum(1)
    if kind == "reverse-kl":
        return (draft.exp() * (draft - target)).sum(1)
    if kind == "total-variation":
        return (target.exp() - draft.exp()).abs().sum(1) / 2
    mean = torch.logaddexp(target, draft) - torch.log(torch.tensor(2.0, device=target.device))
    return ((target.exp() * (target - mean)).sum(1) + (draft.exp() * (draft - mean)).sum(1)) / 2
