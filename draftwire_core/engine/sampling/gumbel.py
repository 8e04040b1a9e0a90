"""The noise of coupled sampling: g(seed, position, token), standard Gumbel, a pure function of the three.

The Gumbel-max sample argmax_v z_v / T + g_v is defined over a whole vocabulary, 152k values a row, though only a few
of them can win. The noise is therefore defined top-down (Maddison, Tarlow, Minka, "A* sampling", NIPS 2014,
arXiv 1411.0030): the vocabulary is cut into blocks of 64 consecutive ids, and for each block b

    M_b = log 64 - log(-log u_b)              the block's maximum: the largest of 64 Gumbels is Gumbel(log 64)
    w_b = one of the 64, uniformly            the id that attains it, independent of its value
    g_v = -log(exp(-M_b) - log u_v), v != w_b the others: Gumbels truncated at M_b

This is the joint distribution of 64 iid Gumbels, so the values *are* iid Gumbel(0, 1). A block whose largest logit / T
plus M_b is below the best score found cannot hold the winner and is never opened. Nothing is approximated.

The noise is computed, and is easiest to understand, as arrival times a = exp(-g), which are iid Exponential(1). The
first of 64 arrives at a_b = -log(u_b) / 64, each id is equally likely to be the first, and the others, being
memoryless, arrive at a_b - log u_v. With M_b = -log a_b these are the formulas above.

u is (x + 1/2) / 2^32 for a word x of Philox-4x32-10 with key (seed low, seed high) and counter
(index // 4, position, 0, domain), lane index % 4; index is the block for the domains BLOCK_FIRST and BLOCK_WINNER,
the token id for TOKEN; w_b is the top 6 bits of its word. A value does not depend on the vocabulary size, nor on which
other values are computed.

Resolution: u is never nearer to 0 or 1 than 2^-33, so M_b <= log 64 + 22.87 = 27.03; the tail cut off has
probability 2^-33 per block. Logarithms are float64, rounded to float32 at the end: libraries whose logarithms differ
in the last float64 bit then differ in about one float32 value in 2^29. docs/concepts.md has test vectors.
"""

import torch
from torch import Tensor

from draftwire_core.engine.sampling.philox import MASK, philox4x32

NOISE_BLOCK = 64
"""Token ids of a block, which share one maximum of the noise."""
NOISE_BLOCK_BITS = 6
MAX_POSITION = MASK

# The last word of the Philox counter. Other uses of a request's seed must take other values (philox.py).
DOMAIN_BLOCK_FIRST = 0
DOMAIN_BLOCK_WINNER = 1
DOMAIN_TOKEN = 2


def block_first_arrivals(seeds: Tensor, positions: Tensor, num_blocks: int) -> Tensor:
    """Arrival times a_b of the first id of each block.

    seeds [R] int64 (the bits of a uint64), positions [R] int64 in 0..2^32-1. Returns [R, num_blocks] float64.
    """
    quads = torch.arange((num_blocks + 3) // 4, device=seeds.device)
    words = _words(seeds[:, None], positions[:, None], quads, torch.full((1,), DOMAIN_BLOCK_FIRST, device=seeds.device))
    bits = torch.stack(words, dim=-1).flatten(-2)[:, :num_blocks]
    return _exponential(bits).mul_(1 / NOISE_BLOCK)


def gumbel_of_arrivals(arrivals: Tensor) -> Tensor:
    """Gumbel noise -log a of arrival times; float64 of any shape -> float32."""
    return arrivals.log().neg_().float()


def block_maxima(seeds: Tensor, positions: Tensor, num_blocks: int) -> Tensor:
    """M_b of blocks 0..num_blocks-1: the largest noise of the 64 ids. [R], [R] -> [R, num_blocks] float32."""
    return gumbel_of_arrivals(block_first_arrivals(seeds, positions, num_blocks))


def gumbel_at(seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """Noise of the given ids. seeds [R], positions [R], token_ids [R, k] int64 -> [R, k] float32."""
    seeds, positions = seeds.unsqueeze(1), positions.unsqueeze(1)
    words = _lanes(seeds, positions, token_ids >> NOISE_BLOCK_BITS, torch.full_like(token_ids, DOMAIN_BLOCK_FIRST))
    first = _exponential(words).mul_(1 / NOISE_BLOCK)
    return gumbel_after(first, seeds.expand_as(first), positions.expand_as(first), token_ids)


def gumbel_after(first: Tensor, seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """Noise of the given ids, from the first arrivals of their blocks.

    All arguments have one shape; `first` is float64, the others int64. Returns float32.
    """
    tokens = token_ids.unsqueeze(-1)
    winners, waits = winners_and_waits(seeds, positions, tokens >> NOISE_BLOCK_BITS, tokens)
    return gumbel_of_waits(first, waits[..., 0], winners[..., 0] == token_ids & (NOISE_BLOCK - 1))


def winners_and_waits(seeds: Tensor, positions: Tensor, blocks: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """The first id to arrive in each block, and the time from then until each token arrives, if it is not that id.

    seeds and positions [...], blocks [..., n], token_ids [..., m] int64 -> winners [..., n] int64 in 0..63, the ids'
    indices in their blocks; waits [..., m] float64.
    """
    # One call of Philox for both, since the overhead of the call dominates.
    split = blocks.shape[-1]
    domains = torch.full((split + token_ids.shape[-1],), DOMAIN_TOKEN, device=blocks.device)
    domains[:split].fill_(DOMAIN_BLOCK_WINNER)
    indices = torch.cat([blocks, token_ids], dim=-1)
    words = _lanes(seeds.unsqueeze(-1), positions.unsqueeze(-1), indices, domains)
    return words[..., :split] >> (32 - NOISE_BLOCK_BITS), _exponential(words[..., split:])


def gumbel_of_waits(first: Tensor, waits: Tensor, is_winner: Tensor) -> Tensor:
    """Noise -log a of the arrivals: `first` for the winner of a block, `first + waits` for the others.

    Arguments of float64; returns float32.
    """
    maximum = gumbel_of_arrivals(first)
    # The minimum keeps all noise at or below the block's maximum, whatever the logarithm's last bit.
    return torch.where(is_winner, maximum, torch.minimum(gumbel_of_arrivals(first + waits), maximum))


def _words(seeds: Tensor, positions: Tensor, quads: Tensor, domains: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four lanes of each quad of indices; shapes broadcast, int64 in 0..2^32-1."""
    # >> extends the sign of seeds >= 2^63; the mask removes it.
    return philox4x32((quads, positions, torch.zeros_like(domains), domains), (seeds & MASK, (seeds >> 32) & MASK))


def _lanes(seeds: Tensor, positions: Tensor, indices: Tensor, domains: Tensor) -> Tensor:
    """One word for each index; arguments broadcast to the shape of `indices`. int64 in 0..2^32-1."""
    words = torch.stack(_words(seeds, positions, indices >> 2, domains))
    return words.gather(0, (indices & 3).unsqueeze(0)).squeeze(0)


def _exponential(bits: Tensor) -> Tensor:
    """-log((x + 1/2) / 2^32) of 32-bit words, float64, in (0, 22.88)."""
    return bits.double().add_(0.5).mul_(2.0**-32).log_().neg_()
