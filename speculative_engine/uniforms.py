"""Random numbers of a request besides its noise: what drafters draw by, and what decides whether a draw is kept.

All are Philox-4x32-10 words with the counter (index, position, 0, domain), in domains that the noise does not use
(gumbel.py). Drafters draw by the request's seed. The verifier's own numbers have another key, made from the seed: under
the rule of rejection they must not depend on anything that a drafter's choice depends on, and some drafters choose by the
request's noise.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from speculative_engine.philox import MASK, philox4x32

DOMAIN_VERIFIER_KEY = 3
DOMAIN_ACCEPTANCE = 4
DOMAIN_DRAW = 5


def uniforms(seeds: Tensor, positions: Tensor, indices: Tensor, domain: int) -> Tensor:
    """Numbers (x + 1/2) / 2^52 in (0, 1), float64. All int64, broadcast together; seeds are the bits of uint64s."""
    low, high, _, _ = _words(seeds, positions, indices, domain)
    return (((high << 20) | (low >> 12)).double() + 0.5) * 2.0**-52


def acceptance_uniforms(key: int, position: int, count: int) -> np.ndarray:
    """What decides over the token at a position: a number for each draft token in turn, and one for the draw from what
    is left. [count] float64."""
    return uniforms(_int64(key), torch.tensor(position), torch.arange(count), DOMAIN_ACCEPTANCE).numpy()


def verifier_key(seed: int) -> int:
    """The key, an unsigned 64-bit integer, of what the verifier draws for a request under the rule of rejection."""
    zero = torch.tensor(0)
    low, high, _, _ = _words(_int64(seed), zero, zero, DOMAIN_VERIFIER_KEY)
    return (int(high) << 32) | int(low)


def _words(seeds: Tensor, positions: Tensor, indices: Tensor, domain: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    zero = torch.zeros((), dtype=torch.int64, device=indices.device)
    # >> copies the sign of seeds >= 2^63; the mask takes the copies off.
    return philox4x32((indices, positions, zero, zero + domain), (seeds & MASK, (seeds >> 32) & MASK))


def _int64(value: int) -> Tensor:
    """The int64 with the bits of a uint64."""
    return torch.tensor(value - (1 << 64) if value >= 1 << 63 else value)
