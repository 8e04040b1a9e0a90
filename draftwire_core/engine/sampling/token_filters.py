"""The filters top-k, top-p and min-p as one threshold per row, the least scaled logit kept. typical_p: `kept_range`.

All three keep the tokens at or above some value of s = logit / T, so no filter builds a mask over the vocabulary.
Tokens tied with the last one kept are kept too: dropping some of them would need an order among equals, which no
request specifies. The order of the filters is transformers':

    s = logit / T;  keep the k largest;  of these keep the smallest set whose probability reaches top_p;
    keep those with at least min_p of the largest probability

Probability mass is summed in integers (fixed point), which gives the same sum in any order. On one device a row's
threshold is therefore the same to the bit whatever the batch and the number of threads. Another device may differ: its
exponentials differ in their last bits.
"""

import torch
from torch import Tensor

from draftwire_core.engine.sampling.gumbel import NOISE_BLOCK
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch

MASS_BITS = 42
"""exp(s - max s) counts in units of 2^-42; 2^20 tokens of full mass still fit an int64."""
MAX_VOCABULARY = 1 << 20
BINS = 4096
BINS_PER_UNIT = 128
"""Resolution of the bins of top_p, of which only the one with the edge is sorted. BINS / BINS_PER_UNIT = 32 units of s
reach beyond the 29.1 = 42 log 2 where mass rounds to 0."""
CPU_CHUNK = 1 << 18
"""Values that a pass over whole rows processes at a time on a CPU, so that temporaries stay in the cache."""
GPU_CHUNK = 1 << 24
"""As `CPU_CHUNK`, on other devices: temporaries take up to 40 bytes a value, and little memory is left over."""


def thresholds(logits: Tensor, block_top: Tensor, batch: SamplingBatch) -> Tensor | None:
    """The least logit / T that each row keeps, [R] float32 (-inf where a row keeps all); None if no row filters.

    logits [R, V], block_top [R, ceil(V / 64)] float32 their largest values by blocks of 64.
    """
    if not (batch.top_k or batch.top_p or batch.min_p_rows):
        return None
    least = torch.full((len(batch),), -torch.inf, dtype=torch.float32, device=logits.device)
    vocabulary = logits.shape[1]
    top_k = {row: k for row, k in batch.top_k.items() if k < vocabulary}
    for rows in _by_depth(top_k):
        least[rows] = _top_k_then_top_p(logits, block_top, batch, rows)
    nucleus = [row for row in batch.top_p if row not in top_k]
    step = rows_a_pass(logits)
    for i in range(0, len(nucleus), step):
        rows = nucleus[i : i + step]
        p = torch.tensor([batch.top_p[row] for row in rows], dtype=torch.float64, device=logits.device)
        least[rows] = _top_p(logits[rows], block_top[rows].amax(1), batch.temperatures[rows], p)
    if batch.min_p_rows:
        rows = list(batch.min_p_rows)
        top = block_top[rows].amax(1) / batch.temperatures[rows, 0]
        least[rows] = torch.maximum(least[rows], top + batch.log_min_p)
    return least


def block_tops(logits: Tensor) -> Tensor:
    """The largest logit of each block of 64 consecutive ids, [R, V] -> [R, ceil(V / 64)] float32."""
    whole = logits.shape[1] // NOISE_BLOCK * NOISE_BLOCK
    parts = [logits[:, :whole].unflatten(1, (-1, NOISE_BLOCK)).amax(2)] if whole else []
    if whole < logits.shape[1]:
        parts.append(logits[:, whole:].amax(1, keepdim=True))
    return torch.cat(parts, dim=1).float()


def total_mass(logits: Tensor, temperatures: Tensor, top: Tensor) -> Tensor:
    """The sum of exp(s - top) over each row in units of 2^-42, int64 [R]; top [R] float32 the row's largest s."""
    if logits.shape[1] > MAX_VOCABULARY:
        raise ValueError(f"vocabulary of {logits.shape[1]} tokens exceeds {MAX_VOCABULARY}")
    step = rows_a_pass(logits)
    total = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    for i in range(0, len(logits), step):
        rows = slice(i, i + step)
        torch.sum(mass_of((logits[rows] / temperatures[rows]).sub_(top[rows, None])), 1, out=total[rows])
    return total


def block_logits(logits: Tensor, which: Tensor, blocks: Tensor) -> Tensor:
    """The 64 logits of each block, -inf beyond the vocabulary.

    logits [R, V], rows `which` [n] int64, their blocks [n, m] int64 -> [n, m, 64] float32.
    """
    vocabulary = logits.shape[1]
    if vocabulary % NOISE_BLOCK == 0:  # the usual case; copying runs of 64 is several times faster
        return logits.unflatten(1, (-1, NOISE_BLOCK))[which.unsqueeze(1), blocks].float()
    ids = (blocks * NOISE_BLOCK).unsqueeze(-1) + torch.arange(NOISE_BLOCK, device=logits.device)
    values = logits[which[:, None, None], ids.clamp(max=vocabulary - 1)].float()
    return values.masked_fill_(ids >= vocabulary, -torch.inf)


def columns(row: Tensor, rows: int) -> tuple[Tensor, int]:
    """The column of each element, [n] int64, and the width, of a table of rows made from a list ordered by row.

    row [n] int64 in 0..rows-1: the row of each element. The table has a column even if all rows are bad ones, which
    have no elements.
    """
    counts = torch.bincount(row, minlength=rows)
    column = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    return column, max(1, int(counts.max())) if rows else 0


def rows_a_pass(logits: Tensor) -> int:
    """Number of whole rows to process at a time."""
    values = CPU_CHUNK if logits.device.type == "cpu" else GPU_CHUNK
    width: int = max(logits.shape[1], BINS)
    return max(1, values // width)


def mass_of(relative: Tensor) -> Tensor:
    """Exponentials, in units of 2^-42, of scaled logits relative to the row's largest; float32 (<= 0) -> int64.

    Overwrites its argument.
    """
    return relative.exp_().mul_(2.0**MASS_BITS).to(torch.int64)


def _by_depth(top_k: dict[int, int]) -> list[list[int]]:
    """Groups rows by the order of magnitude of k, so that one large k does not slow down all rows."""
    groups: dict[int, list[int]] = {}
    for row, k in top_k.items():
        groups.setdefault((k - 1).bit_length(), []).append(row)
    return list(groups.values())


def _top_k_then_top_p(logits: Tensor, block_top: Tensor, batch: SamplingBatch, rows: list[int]) -> Tensor:
    """Thresholds of rows with a top_k, and perhaps a top_p among those k; [n] float32."""
    device, temperatures = logits.device, batch.temperatures[rows]
    which, block_top = torch.tensor(rows, device=device), block_top[rows]
    k = torch.tensor([batch.top_k[row] for row in rows], device=device).unsqueeze(1)
    ranked = _largest(logits, block_top, which, max(batch.top_k[row] for row in rows)) / temperatures
    least = ranked.gather(1, k - 1)
    if not any(row in batch.top_p for row in rows):
        return least.squeeze(1)
    p = torch.tensor([batch.top_p.get(row, 1.0) for row in rows], dtype=torch.float64, device=device)
    mass = mass_of(ranked - ranked[:, :1])
    mass = mass.masked_fill_(torch.arange(mass.shape[1], device=device) >= k, 0)
    # Tokens tied with the k-th are kept and count, but may lie beyond the ranks examined.
    row, block = (block_top / temperatures >= least).nonzero(as_tuple=True)
    kept = (block_logits(logits, which[row], block.unsqueeze(1)).flatten(1) / temperatures[row] >= least[row]).sum(1)
    kept = torch.zeros(len(rows), dtype=torch.int64, device=device).index_add_(0, row, kept)
    total = mass.sum(1) + (kept - k.squeeze(1)) * mass.gather(1, k - 1).squeeze(1)
    reached, rank = rank_reaching(mass.cumsum(1), p * total.double())
    nucleus = torch.where(reached, ranked.gather(1, rank.unsqueeze(1)).squeeze(1), least.squeeze(1))
    return torch.where(p < 1, nucleus, least.squeeze(1))


def _largest(logits: Tensor, block_top: Tensor, which: Tensor, depth: int) -> Tensor:
    """The `depth` largest logits of the rows `which` [n], best first; [n, depth] float32. block_top: these rows'.

    Each of the `depth` blocks with the largest maxima holds a value no less than any value outside them, so only their
    64 * depth values are searched, not the vocabulary.
    """
    if depth < block_top.shape[1] // 2:
        values = block_logits(logits, which, block_top.topk(depth, dim=1, sorted=False).indices).flatten(1)
    else:
        values = logits[which].float()
    return values.topk(depth, dim=1).values


def _top_p(logits: Tensor, top: Tensor, temperatures: Tensor, p: Tensor) -> Tensor:
    """Thresholds for rows with a top_p alone, [n] float32. logits [n, V], top [n] the largest, temperatures [n, 1],
    p [n].

    Bins the values by size and sorts only the bin that holds the edge of the nucleus.
    """
    rows, device = len(logits), logits.device
    top = top / temperatures[:, 0]
    scaled = logits / temperatures
    relative = (scaled - top.unsqueeze(1)).nan_to_num_(nan=-torch.inf)  # bad rows: avoids index errors
    bin_index = (relative * -BINS_PER_UNIT).clamp_(max=BINS - 1).to(torch.int64)
    bins = torch.zeros((rows, BINS), dtype=torch.int64, device=device)
    running = bins.scatter_add_(1, bin_index, mass_of(relative)).cumsum(1)
    target = p * running[:, -1].double()
    _, edge = rank_reaching(running, target)
    edge.unsqueeze_(1)
    before = (running - bins).gather(1, edge)

    row, token = (bin_index == edge).nonzero(as_tuple=True)
    column, width = columns(row, rows)
    ranked = torch.full((rows, width), -torch.inf, dtype=torch.float32, device=device)
    ranked[row, column] = scaled[row, token]
    ranked = ranked.sort(dim=1, descending=True).values
    _, rank = rank_reaching(before + mass_of(ranked - top.unsqueeze(1)).cumsum(1), target)
    return ranked.gather(1, rank.unsqueeze(1)).squeeze(1)


def rank_reaching(running: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each running sum [n, depth] int64 reaches its target [n] float64, and the first rank at which it does."""
    enough = running.double() >= target.unsqueeze(1)
    return enough[:, -1], enough.to(torch.int8).argmax(1)
