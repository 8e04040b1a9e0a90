"""The range of scaled logits that each row keeps after all filters: a minimum, and with typical_p also a maximum.

typical_p keeps the tokens whose surprise, -log p, is nearest to the distribution's entropy H, until their probability
reaches it (Meister et al., arXiv 2202.00666). With s = logit / T relative to the row's largest, and Z = sum exp(s),

    -log p(v) - H = (log Z - s(v)) - (log Z - sum p s) = sum p s - s(v)

so the distance is that of s from its own mean: no logarithm is needed, and the kept tokens are one range of s. Tokens
as near as the last one kept are kept too. Sums are of integers, as for top_p: the same in any order and any batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.token_filters import (
    BINS,
    BINS_PER_UNIT,
    columns,
    mass_of,
    rank_reaching,
    rows_a_pass,
    thresholds,
)

_NO_MASS = -64.0
"""Scaled logit relative to the largest whose mass, e^-64, rounds to 0 (see MASS_BITS)."""


class KeptRange(NamedTuple):
    """The least and the greatest logit / T that each row keeps."""

    least: Tensor
    """[R] float32; -inf where a row has no lower limit."""
    most: Tensor | None
    """[R] float32, inf where a row has no upper limit; None if no row has typical_p."""

    def drop(self, scaled: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Sets filtered values to -inf, in place. scaled [n, ...] of the given rows."""
        shape = (-1, *[1] * (scaled.dim() - 1))
        scaled.masked_fill_(scaled < self.least[rows].view(shape), -torch.inf)
        if self.most is not None:
            scaled.masked_fill_(scaled > self.most[rows].view(shape), -torch.inf)
        return scaled

    def bound(self, block_top: Tensor) -> Tensor:
        """Lowers each block's largest value, in place, to a bound of its kept tokens; -inf if it keeps none.

        block_top [R, blocks]; returned.
        """
        block_top.masked_fill_(block_top < self.least.unsqueeze(1), -torch.inf)
        return block_top if self.most is None else block_top.clamp_(max=self.most.unsqueeze(1))


def kept_range(logits: Tensor, block_top: Tensor, batch: SamplingBatch) -> KeptRange | None:
    """The range that each row keeps; None if no row filters.

    logits [R, V], block_top [R, ceil(V / 64)] float32 their largest values by blocks of 64.
    """
    below = thresholds(logits, block_top, batch)
    if not batch.typical_p:
        return None if below is None else KeptRange(below, None)
    least = torch.full((len(batch),), -torch.inf, dtype=torch.float32, device=logits.device)
    most = torch.full_like(least, torch.inf)
    if below is not None:
        least.copy_(below)
    typical, step = list(batch.typical_p), rows_a_pass(logits)
    for first in range(0, len(typical), step):
        rows = typical[first : first + step]
        scaled = logits[rows] / batch.temperatures[rows]
        if below is not None:
            scaled = torch.where(scaled < below[rows].unsqueeze(1), -torch.inf, scaled)
        p = torch.tensor([batch.typical_p[row] for row in rows], dtype=torch.float64, device=logits.device)
        least[rows], most[rows] = _typical(scaled, p)
    return KeptRange(least, most)


def _typical(scaled: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest of the values that typical_p keeps, both [n].

    scaled [n, V] float32, -inf where a token was dropped; p [n] float64.
    """
    rows, device = len(scaled), scaled.device
    relative = (scaled - scaled.amax(1, keepdim=True)).nan_to_num_(nan=-torch.inf)  # bad rows: avoids index errors
    mass = mass_of(relative.clone())
    total = mass.sum(1)
    target = p * total.double()
    moment = relative.clamp_(min=_NO_MASS).mul(mass.float()).to(torch.int64).sum(1)
    mean = moment.double() / total.clamp(min=1)
    distance = relative.sub_(mean.float().unsqueeze(1)).abs_()

    # As for top_p, the values are binned by size, and only the bin that holds the edge is sorted.
    bin_index = (distance * BINS_PER_UNIT).clamp_(max=BINS - 1).to(torch.int64)
    bins = torch.zeros((rows, BINS), dtype=torch.int64, device=device)
    running = bins.scatter_add_(1, bin_index, mass).cumsum(1)
    _, edge = rank_reaching(running, target)
    edge.unsqueeze_(1)
    before = (running - bins).gather(1, edge)
    row, token = (bin_index == edge).nonzero(as_tuple=True)
    column, width = columns(row, rows)
    ranked = torch.full((rows, width), torch.inf, dtype=torch.float32, device=device)
    masses = torch.zeros((rows, width), dtype=torch.int64, device=device)
    ranked[row, column], masses[row, column] = distance[row, token], mass[row, token]
    ranked, order = ranked.sort(dim=1)
    _, rank = rank_reaching(before + masses.gather(1, order).cumsum(1), target)
    kept = (distance <= ranked.gather(1, rank.unsqueeze(1))) & (mass > 0)
    nothing = scaled.new_tensor(torch.inf)
    return torch.where(kept, scaled, nothing).amin(1), torch.where(kept, scaled, -nothing).amax(1)
