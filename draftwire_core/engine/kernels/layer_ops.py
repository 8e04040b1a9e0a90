"""The operations between the gemms of a Llama-style decoder layer, in compiled code (`csrc/layers/layer_ops.c`).

Unless noted otherwise, tensors are contiguous, on a CPU, and share one dtype, bfloat16 or float32; with weights of
norms in bfloat16 all others may be float32. A row of a result depends only on that row of the inputs, to the bit.
"""

from __future__ import annotations

import ctypes

import torch

from draftwire_core.engine.kernels.kv_rows import KV_TYPES, elements
from draftwire_core.engine.kernels.library import BF16, loaded
from draftwire_core.engine.kernels.structs import GATES, Angles, Rope


def rms_norm(inputs: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Root mean square norm (Zhang and Sennrich 2019): inputs [rows, width], weight [width] -> [rows, width]

    dtype: the result's, the weight's by default. Float32 inputs may have a bfloat16 result.
    """
    out = torch.empty_like(inputs, dtype=dtype or weight.dtype)
    rows, width = inputs.shape
    loaded().draftwire_rms_norm(
        inputs.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, width,
        eps, BF16[inputs.dtype], BF16[weight.dtype], BF16[out.dtype], torch.get_num_threads(),
    )  # fmt: skip
    return out


def rope(
    projected: torch.Tensor,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor | None, float] | None,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    rotary: int | None = None,
    *,
    value_norm: torch.Tensor | None = None,
    gated: bool = False,
    kv_parts: int = 2,
) -> torch.Tensor:
    """Applies rotary position embeddings to queries and keys (Su et al. 2021); writes keys and values to their slots.

    projected: [rows, (heads + 2 * kv_heads) * dim], queries, keys and values; may be overwritten. cosines and sines:
    [rows, rotary]. norms: weights of the norms of queries and keys, [dim] for norms of each head, or [heads * dim] and
    [kv_heads * dim] for norms of all heads at once, and their epsilon; None in models without these norms. slots: int64
    [rows]. keys and values: [kv_heads, capacity, dim], or rows of `kv_rows`. rotary: leading elements of a head that
    are rotated, a multiple of 16; all by default, 0 for none. value_norm: weight [dim] of the norm of each head's
    values, with the same epsilon. gated: whether a gate of `dim` elements follows each head's query. kv_parts: 2 for
    keys and values, 1 for keys that are the values, too, 0 for queries alone. Returns queries times `scale`, float32
    [heads, rows, dim]
    """
    rows, width = projected.shape
    kv_heads, capacity, _ = keys.shape
    dim = elements(keys)
    heads = (width // dim - kv_parts * kv_heads) // (2 if gated else 1)
    query = torch.empty(heads, rows, dim, dtype=torch.float32)
    query_weight, key_weight, eps = norms or (None, None, 0.0)
    norms_whole = query_weight is not None and len(query_weight) != dim
    call = Rope(
        projected.data_ptr(), cosines.data_ptr(), sines.data_ptr(),
        *(None if each is None else each.data_ptr() for each in (query_weight, key_weight, value_norm)),
        slots.data_ptr(), query.data_ptr(), keys.data_ptr(), values.data_ptr(),
        rows, heads, kv_heads, dim, dim if rotary is None else rotary, capacity, scale, eps,
        BF16[projected.dtype], BF16[projected.dtype if query_weight is None else query_weight.dtype], norms_whole,
        KV_TYPES[keys.dtype], gated, kv_parts,
    )  # fmt: skip
    loaded().draftwire_rope(ctypes.addressof(call), torch.get_num_threads())
    return query


def gate_heads(projected: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
    """Overwrites results of attention with themselves times the sigmoids of their gates, and returns them.

    projected: float32 [rows, width], as for `rope` with gates. attended: float32 [rows, heads, dim]
    """
    rows, heads, dim = attended.shape
    loaded().draftwire_gate_heads(
        projected.data_ptr(), attended.data_ptr(), rows, heads, dim, projected.shape[1], torch.get_num_threads()
    )
    return attended


def rotary_angles(
    positions: torch.Tensor, frequencies: torch.Tensor, scaling: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes the cosines and sines of rotary position embeddings, [rows, dim] of `dtype`, times `scaling`.

    positions: int64 [rows]. frequencies: float32 [dim / 2], radians per position. The halves of a row are equal.
    """
    rows, dim = len(positions), 2 * len(frequencies)
    cosines, sines = torch.empty(rows, dim, dtype=dtype), torch.empty(rows, dim, dtype=dtype)
    call = Angles(
        positions.data_ptr(), frequencies.data_ptr(), cosines.data_ptr(), sines.data_ptr(),
        rows, dim, scaling, BF16[dtype],
    )  # fmt: skip
    loaded().draftwire_angles(ctypes.addressof(call), torch.get_num_threads())
    return cosines, sines


def gate(both: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    """The activation of each row's first half times its second half: [rows, 2 * width] -> [rows, width]

    activation: one of GATES
    """
    rows, width = both.shape
    out = both.new_empty(rows, width // 2)
    loaded().draftwire_gate(
        both.data_ptr(), out.data_ptr(), rows, width // 2,
        GATES.index(activation), BF16[both.dtype], torch.get_num_threads(),
    )  # fmt: skip
    return out
