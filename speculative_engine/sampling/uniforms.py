"""Random numbers of a request besides its noise: what drafters draw by, and what decides whether a draw is kept.

All are Philox-4x32-10 words with the counter (index, position, 0, domain), in domains that the noise does not use
(gumbel.py). Drafters draw by the request's seed. The verifier's own numbers have another key, made from the seed:
under the rule of rejection they must not depend on anything that a drafter's choice depends on, and some drafters
choose by the request's noise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from speculative_engine.sampling.philox import MASK, philox4x32, philox4x32_once

DOMAIN_VERIFIER_KEY = 3
DOMAIN_ACCEPTANCE = 4
DOMAIN_DRAW = 5


def uniforms(seeds: Tensor, positions: Tensor, indices: Tensor, domain: int) -> Tensor:
    """Numbers (x + 1/2) / 2^52 in (0, 1), float64. All int64, broadcast together; seeds are the bits of uint64s."""
    zero = torch.zeros((), dtype=torch.int64, device=indices.device)
    # >> copies the sign of seeds >= 2^63; the mask takes the copies off.
    key = seeds & MASK, (seeds >> 32) & MASK
    low, high, _, _ = philox4x32((indices, positions, zero, zero + domain), key)
    return (((high << 20) | (low >> 12)).double() + 0.5) * 2.0**-52


def acceptance_uniform(key: int, position: int, turn: int) -> float:
    """What decides over the token at a position: a number for each draft token in turn, then one for the draw from what
    is left."""
    low, high, _, _ = philox4x32_once((turn, position, 0, DOMAIN_ACCEPTANCE), (key & MASK, key >> 32))
    return (((high << 20) | (low >> 12)) + 0.5) * 2.0**-52


def verifier_key(seed: int) -> int:
    """The key, an unsigned 64-bit integer, of what the verifier draws for a request under the rule of rejection."""
    low, high, _, _ = philox4x32_once((0, 0, 0, DOMAIN_VERIFIER_KEY), (seed & MASK, seed >> 32))
    return (high << 32) | low
