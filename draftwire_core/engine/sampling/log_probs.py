"""Log-probabilities of the tokens of a text, and of the likeliest tokens at their positions, under the target.

They are the log-softmax of the target's own logits, at temperature 1 and before a request's changes to the logits. A
row's numbers depend on that row alone, to the bit: sums over the vocabulary are `coupled_sampler`'s, of integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from draftwire_core.engine.sampling.compiled_sampler import best_tokens, fits
from draftwire_core.engine.sampling.coupled_sampler import top_candidates
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams

_GREEDY = SamplingParams(temperature=0.0)
LIKELIEST = 8
"""Tokens of a position in `Likeliest`."""
_ROWS = 64
"""Most rows whose numbers are found at once. On a GPU a step has a thousand rows of a long prompt, and what they take
besides their logits is several times as large: memory that nobody has left over (`loading.slots_that_fit`)."""


@dataclass(frozen=True, slots=True)
class LogProbs:
    """Log-probabilities of consecutive tokens of a text."""

    token_ids: np.ndarray
    """The tokens, int64 [n]."""
    log_probs: np.ndarray
    """The tokens' natural log-probabilities, float32 [n]; NaN in bad rows (NaN, +inf or nothing finite)."""
    ranks: np.ndarray
    """Number of tokens whose logit is at least as high as the token's, itself included, int64 [n]."""
    top_ids: np.ndarray
    """The likeliest tokens, best first, the lowest id first among equals, int64 [n, top]; -1 where there are fewer."""
    top_log_probs: np.ndarray
    """Natural log-probabilities of `top_ids`, float32 [n, top]."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def part(self, which: slice) -> LogProbs:
        """The log-probabilities of a slice of the tokens."""
        return LogProbs(
            self.token_ids[which],
            self.log_probs[which],
            self.ranks[which],
            self.top_ids[which],
            self.top_log_probs[which],
        )


def log_probs(logits: Tensor, token_ids: Sequence[int], top: int) -> LogProbs:
    """The log-probabilities of one token per row of logits [n, V], and of the row's `top` likeliest tokens."""
    rows = len(token_ids)
    if rows > _ROWS:
        starts = range(0, rows, _ROWS)
        parts = [log_probs(logits[at : at + _ROWS], token_ids[at : at + _ROWS], top) for at in starts]
        names = [each.name for each in fields(LogProbs)]
        return LogProbs(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
    batch = SamplingBatch.build([_GREEDY] * rows, [0] * rows, logits.device)
    best = top_candidates(logits, batch, max(top, 1))
    ids = torch.tensor(token_ids, dtype=torch.int64, device=logits.device).unsqueeze(1)
    own = logits.gather(1, ids)
    ranks = (logits >= own).sum(1)
    # A token's log-probability is the best token's, plus the difference of their logits.
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


class Likeliest(NamedTuple):
    """The likeliest tokens of consecutive positions, best first, for training a draft model."""

    token_ids: np.ndarray
    """int64 [n, LIKELIEST]; 0 where a position has fewer."""
    log_probs: np.ndarray
    """Natural log-probabilities, float32 [n, LIKELIEST]; -inf where a position has fewer."""

    def part(self, which: slice) -> Likeliest:
        """The tokens of a slice of the positions."""
        return Likeliest(self.token_ids[which], self.log_probs[which])


def likeliest(logits: Tensor) -> Likeliest:
    """The likeliest tokens of each row of logits [n, V], at the least cost: no bit of them matters to anybody."""
    if fits(logits):
        rows = len(logits)
        batch = SamplingBatch.build([_GREEDY] * rows, [0] * rows, logits.device)
        token_ids, _, found = best_tokens(logits, batch, LIKELIEST, log_probs=True)
        assert found is not None, "they were requested"
    else:
        token_ids, found = top_log_probs(logits, LIKELIEST)
        lacking = (0, LIKELIEST - found.shape[1])
        token_ids, found = pad(token_ids, lacking), pad(found, lacking, value=-torch.inf)
    return Likeliest(token_ids.clamp(min=0).cpu().numpy(), found.cpu().numpy())


def top_log_probs(logits: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Returns the `top` likeliest tokens of each row, best first: ids int64, log-probabilities float32, [rows, top]."""
    if len(logits) > _ROWS:
        token_ids, found = zip(*(top_log_probs(part, top) for part in logits.split(_ROWS)), strict=True)
        return torch.cat(token_ids), torch.cat(found)
    wide = logits.float()
    best = wide.topk(min(top, wide.shape[1]), dim=1)
    return best.indices, best.values - wide.logsumexp(1, keepdim=True)
