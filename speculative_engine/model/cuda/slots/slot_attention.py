"""Attention by slots for transformers' own layers."""

from __future__ import annotations

import torch
from torch import Tensor

from speculative_engine.model.cuda.slots.slot_batch import SlotRows


def write_and_attend(
    batch: SlotRows,
    query: Tensor,
    new: tuple[Tensor, Tensor],
    stored: tuple[Tensor, Tensor],
    scaling: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Writes the rows' keys and values, and computes each row's attention to what it sees: [rows, heads, value dim], in
    the dtype of the query.

    query [heads, rows, key dim]; new: keys and values of the rows, [kv_heads, rows, dim] each; stored: those of all
    slots, [kv_heads, slots, dim] each, with slots first in memory. Sinks [heads] take probability but have no value.
    """
    # Triton need not be there where other batches run.
    from speculative_engine.model.cuda.kernels.attention import attend_slots
    from speculative_engine.model.cuda.kernels.key_rows import write_keys

    new_keys, new_values = (each if each.stride(-1) == 1 else each.contiguous() for each in new)
    keys, values = (each.transpose(0, 1) for each in stored)
    write_keys(new_keys, new_values, keys, values, batch.slots)
    rows = query.transpose(0, 1)
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    out = torch.empty(*rows.shape[:2], values.shape[-1], dtype=query.dtype, device=query.device)
    for work in batch.work:
        attend_slots(work, rows, keys, values, out, scaling, window, softcap, sinks)
    return out
