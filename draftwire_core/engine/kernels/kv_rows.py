"""Keys and values of another type than the model's: rounding them, and reading them back.

`csrc/attention/kv_rows.h` describes the rows.

In 8 bits, a block of 32 elements of a head has one bfloat16 scale, so an element takes 8.5 bits. The product of a quant
and its scale is exact in float32. Compiled code and torch therefore write the same bits and read the same values.
"""

from __future__ import annotations

import ctypes

import torch

from draftwire_core.engine.kernels.library import BF16, library, loaded
from draftwire_core.engine.kernels.structs import KvRows

BLOCK = 32
"""Elements per scale."""
STORED = torch.int8
"""The dtype of tensors of such rows."""
KV_TYPES = {torch.float32: 0, torch.bfloat16: 1, STORED: 2, torch.float16: 3}
"""The library's number for the type of keys and values, by the dtype of their tensors."""
_SCALE_BYTES = 2
_MOST_FLOAT16 = torch.finfo(torch.float16).max
_LARGEST = 127
_NAN = 0x7FC0
"""The bfloat16 scale of a block with an infinite element or a NaN."""


def stored_width(dim: int) -> int:
    """Bytes of a row of `dim` elements, a multiple of BLOCK."""
    return dim + dim // BLOCK * _SCALE_BYTES


def elements(stored: torch.Tensor) -> int:
    """Elements of a row of keys or values of any type."""
    width: int = stored.shape[-1]
    return width // (BLOCK + _SCALE_BYTES) * BLOCK if stored.dtype == STORED else width


def write_rows(rows: torch.Tensor, slots: torch.Tensor, stored: torch.Tensor) -> None:
    """Rounds rows [heads, rows, dim] and writes them to their slots of `stored`, STORED [heads, capacity, width].

    slots: int64 [rows]. dim is a multiple of BLOCK.
    """
    if library() is None or rows.dtype not in BF16 or rows.stride(-1) != 1:
        stored.index_copy_(1, slots, rounded(rows))
        return
    heads, count, dim = rows.shape
    call = KvRows(
        rows.data_ptr(), rows.stride(0), rows.stride(1), slots.data_ptr(), stored.data_ptr(),
        heads, count, dim, stored.shape[1], BF16[rows.dtype],
    )  # fmt: skip
    loaded().draftwire_write_kv(ctypes.addressof(call), torch.get_num_threads())


def rounded(rows: torch.Tensor) -> torch.Tensor:
    """Rounds rows [..., dim], dim a multiple of BLOCK, to STORED [..., width]."""
    blocks = rows.float().unflatten(-1, (-1, BLOCK))
    scales = (blocks.abs().amax(-1, keepdim=True) / _LARGEST).to(torch.bfloat16).float()
    scales = torch.where(scales < torch.finfo(torch.float32).smallest_normal, 0.0, scales)
    finite = blocks.isfinite().all(-1, keepdim=True)
    quants = torch.where((scales > 0) & finite, (blocks * (1 / scales)).round(), 0.0).to(STORED)
    # Set as bits, since torch has several for NaN.
    scale_bits = scales.to(torch.bfloat16).view(torch.int16).masked_fill(~finite, _NAN)
    return torch.cat([quants.flatten(-2), scale_bits.squeeze(-1).view(STORED)], -1)


def as_float16(rows: torch.Tensor) -> torch.Tensor:
    """Rounds rows to float16 and to its range, at most 65504 in magnitude."""
    return rows.clamp(-_MOST_FLOAT16, _MOST_FLOAT16).to(torch.float16)


def widened(stored: torch.Tensor) -> torch.Tensor:
    """The values of rounded rows, STORED [..., width], as float32 [..., dim]."""
    dim = elements(stored)
    quants = stored[..., :dim].unflatten(-1, (-1, BLOCK))
    scales = stored[..., dim:].contiguous().view(torch.bfloat16).float()
    return (quants * scales.unsqueeze(-1)).flatten(-2)
