"""Acceptance of a draft model's guesses by the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftwire_core.training.data.example import Example, make_batch
from draftwire_core.training.distillation.divergence import draft_outcomes, target_outcomes


@dataclass(frozen=True, slots=True)
class DraftAcceptance:
    """Acceptance over all positions of some examples."""

    coupled: float
    """Probability that target and draft draw the same token at temperature 1 with the same noise, so that the draft
    token is accepted. A lower bound: matches outside the target's likeliest tokens are not counted."""
    agreement: float
    """Share of positions with the same likeliest token: the acceptance rate in greedy decoding."""
    positions: int
    """Positions measured."""

    def __str__(self) -> str:
        return f"{100 * self.coupled:.1f} % sampled, {100 * self.agreement:.1f} % greedy ({self.positions} positions)"


def coupled_acceptance(target: Tensor, draft: Tensor) -> Tensor:
    """Returns the probability of equal Gumbel-max tokens, [rows], from log-probabilities, [rows, outcomes].

    Token v wins in both with probability 1 / sum over u of max(q_u / q_v, p_u / p_v). The last outcome is "any other
    token": its part of that sum is at most the sum of both ratios, and a match there is not counted.
    """
    q, p = target.double(), draft.double()
    known = slice(0, q.shape[1] - 1)
    ratio_q = (q[:, None, known] - q[:, known, None]).exp()
    ratio_p = (p[:, None, known] - p[:, known, None]).exp()
    others = (q[:, -1:] - q[:, known]).exp() + (p[:, -1:] - p[:, known]).exp()
    return (1 / (torch.maximum(ratio_q, ratio_p).sum(2) + others)).sum(1)


def measure(
    model: torch.nn.Module, examples: Sequence[Example], *, batch_size: int, device: str = "cpu"
) -> DraftAcceptance:
    """Measures a draft model on examples; what is no number agrees with nothing. Raises ValueError without examples."""
    if not examples:
        raise ValueError("there are no examples to measure acceptance on")
    was_training = model.training
    model.eval()
    coupled = agreeing = 0.0
    positions = 0
    for start in range(0, len(examples), batch_size):
        batch = make_batch(examples[start : start + batch_size], device)
        with torch.no_grad():
            logits = batch.logits(model)
        target = target_outcomes(batch.log_probs)
        draft = draft_outcomes(logits, batch.token_ids)
        known = ~logits.isnan().any(1)
        coupled += coupled_acceptance(target, draft)[known].sum().item()
        agreeing += (logits.argmax(1) == batch.token_ids[:, 0])[known].sum().item()
        positions += len(logits)
    model.train(was_training)
    return DraftAcceptance(coupled / positions, agreeing / positions, positions)
