"""Log-probabilities: what the target gives to the tokens of a text, and to the likeliest ones at their positions.

They are the softmax of the target's own logits, at temperature 1 and before a request's changes to them. A row's
numbers depend on that row alone, to the bit: sums over the vocabulary are `coupled_sampler`'s, of integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from speculative_engine.sampling.coupled_sampler import top_candidates
from speculative_engine.sampling.sampling_batch import SamplingBatch
from speculative_engine.sampling.sampling_params import SamplingParams

_GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class LogProbs:
    """Of tokens that follow each other in a text."""

    token_ids: np.ndarray
    """The tokens, int64 [n]."""
    log_probs: np.ndarray
    """Their natural log-probabilities, float32 [n]; NaN where the logits are no numbers."""
    ranks: np.ndarray
    """How many tokens have a logit at least as high, int64 [n]."""
    top_ids: np.ndarray
    """The likeliest tokens, best first, the lowest id first among equals, int64 [n, top]; -1 where there are fewer."""
    top_log_probs: np.ndarray
    """Their log-probabilities, float32 [n, top]."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def part(self, which: slice) -> LogProbs:
        """Those of some of the tokens."""
        return LogProbs(
            self.token_ids[which],
            self.log_probs[which],
            self.ranks[which],
            self.top_ids[which],
            self.top_log_probs[which],
        )


def log_probs(logits: Tensor, token_ids: Sequence[int], top: int) -> LogProbs:
    """What rows of logits [n, V] give to one token each, and to their `top` likeliest."""
    rows = len(token_ids)
    batch = SamplingBatch.build([_GREEDY] * rows, [0] * rows, logits.device)
    best = top_candidates(logits, batch, max(top, 1))
    ids = torch.tensor(token_ids, dtype=torch.int64, device=logits.device).unsqueeze(1)
    own = logits.gather(1, ids)
    ranks = (logits >= own).sum(1)
    # The best token's log-probability is what is taken from every logit's distance to the best.
    scores = torch.cat([own.float(), best.scores[:, :top]], dim=1)
    told = ((scores - best.scores[:, :1]).double() + best.log_probs[:, :1].double()).float()
    told.masked_fill_(best.bad_rows.unsqueeze(1), torch.nan)
    numbers = told.cpu().numpy()
    return LogProbs(
        token_ids=ids[:, 0].cpu().numpy(),
        log_probs=numbers[:, 0],
        ranks=ranks.cpu().numpy(),
        top_ids=best.token_ids[:, :top].cpu().numpy(),
        top_log_probs=numbers[:, 1:],
    )
