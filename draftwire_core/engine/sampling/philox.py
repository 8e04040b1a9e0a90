"""Philox-4x32-10, the counter-based random function of Random123, in torch's integer arithmetic.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The published
known-answer vectors are in tests/draftwire_core/engine/sampling/test_philox.py.

`uniforms` and the functions after it give a request's other random numbers, with which drafters draw tokens and the
rejection rule accepts them. All are Philox words with the counter (index, position, 0, domain), in domains that the
noise does not use (gumbel.py). Drafters draw with the request's seed as key. The verifier's own numbers have another
key, derived from the seed: under the rejection rule they must be independent of a drafter's choice, and some drafters
choose by the request's noise.
"""

from __future__ import annotations

import torch
from torch import Tensor

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # golden ratio and sqrt(3) - 1, as 32-bit fractions
ROUNDS = 10
MASK = 0xFFFFFFFF


def philox4x32(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four 32-bit words for each counter, the same bits on every device.

    All tensors are int64 with values in 0..2^32-1 and broadcast together; the four results have the joint shape.
    """
    # torch has no uint64 arithmetic, but needs none: an int64 product wraps modulo 2^64, so its 64 bits are those of
    # the unsigned product. Its high word is an arithmetic shift right by 32 with the extended sign masked off.
    shape = torch.broadcast_shapes(*(word.shape for word in (*counter, *key)))
    device = counter[0].device
    # One round maps (c0, c1, c2, c3) to (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0)).
    # Words 0 and 2 are stacked in `even`, 1 and 3 in `odd`, so that one call of torch serves both: the number of
    # calls dominates the cost. `odd` keeps the whole product: its high half is masked off later.
    even = torch.empty((2, *shape), dtype=torch.int64, device=device)
    odd, product = torch.empty_like(even), torch.empty_like(even)
    even[0], odd[0], even[1], odd[1] = counter
    keys = torch.stack(torch.broadcast_tensors(*key))
    keys = keys.reshape(2, *(1,) * (len(shape) - keys.dim() + 1), *keys.shape[1:])
    # By arithmetic: a tensor of the host's numbers would be a copy that waits for the device.
    rounds = torch.arange(ROUNDS, device=device)
    steps = torch.stack([rounds * step for step in KEY_STEPS])
    # Round keys are not reduced to 32 bits: the mask in the loop does it.
    round_keys = (keys.unsqueeze(1) + steps.reshape(2, ROUNDS, *(1,) * len(shape))).unbind(1)
    even_0, even_1 = even.unbind(0)
    halves, next_halves = product.unbind(0), odd.unbind(0)
    for round_key in round_keys:
        torch.mul(even_1, MULTIPLIERS[1], out=halves[0])
        torch.mul(even_0, MULTIPLIERS[0], out=halves[1])
        torch.bitwise_right_shift(product, 32, out=even)
        even.bitwise_xor_(odd).bitwise_xor_(round_key).bitwise_and_(MASK)
        odd, product, halves, next_halves = product, odd, next_halves, halves
    odd.bitwise_and_(MASK)
    return even_0, odd[0], even_1, odd[1]


def philox4x32_once(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """`philox4x32` for a single counter, in Python integers, at about a hundredth of the cost."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        first, second = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & MASK, (first >> 32) ^ c3 ^ k1, first & MASK
        k0, k1 = (k0 + KEY_STEPS[0]) & MASK, (k1 + KEY_STEPS[1]) & MASK
    return c0, c1, c2, c3


DOMAIN_VERIFIER_KEY = 3
DOMAIN_ACCEPTANCE = 4
DOMAIN_DRAW = 5


def uniforms(seeds: Tensor, positions: Tensor, indices: Tensor, domain: int) -> Tensor:
    """Numbers (x + 1/2) / 2^52 in (0, 1), float64. Arguments are int64 and broadcast; seeds are the bits of uint64s."""
    zero = torch.zeros((), dtype=torch.int64, device=indices.device)
    # >> extends the sign of seeds >= 2^63; the mask removes it.
    key = seeds & MASK, (seeds >> 32) & MASK
    low, high, _, _ = philox4x32((indices, positions, zero, zero + domain), key)
    return (((high << 20) | (low >> 12)).double() + 0.5) * 2.0**-52


def acceptance_uniform(key: int, position: int, turn: int) -> float:
    """The number in (0, 1) that decides about a draft token at a position, or draws from the residual distribution.

    turn: index of the draft token among those tried at the position; the draw comes after them.
    """
    low, high, _, _ = philox4x32_once((turn, position, 0, DOMAIN_ACCEPTANCE), (key & MASK, key >> 32))
    return (((high << 20) | (low >> 12)) + 0.5) * 2.0**-52


def verifier_key(seed: int) -> int:
    """The key, a uint64, of the verifier's own random numbers for a request under the rejection rule."""
    low, high, _, _ = philox4x32_once((0, 0, 0, DOMAIN_VERIFIER_KEY), (seed & MASK, seed >> 32))
    return (high << 32) | low
