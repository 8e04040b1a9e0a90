"""Tokens of a drafting step, among those that earlier steps of the same graph have found."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["rows"])
def take_tokens_kernel(ranked, sources, tokens, rows, ROWS: tl.constexpr):
    """One program for all; see `take_tokens`."""
    row = tl.arange(0, ROWS)
    inside = row < rows
    source = tl.load(sources + row, mask=inside, other=-1)
    known = source >= 0
    found = tl.load(ranked + tl.where(known, source, 0), mask=known, other=0).to(tl.int64)
    # No token, where logits are spoilt: what follows is not used, but it must be in the vocabulary.
    tl.store(tokens + row, tl.maximum(found, 0), mask=known)


def take_tokens(ranked: Tensor, sources: Tensor, tokens: Tensor) -> None:
    """Writes to `tokens`, int64 [rows], the elements of `ranked`, int32, with the indices `sources`, int64 [rows].

    Where these are -1 the tokens stay as they are.
    """
    rows = len(sources)
    take_tokens_kernel[1,](ranked, sources, tokens, rows, ROWS=triton.next_power_of_2(rows), num_warps=1)
