"""Rows of an output head, and a head of some of them, for drafters that need not draft every token."""

from __future__ import annotations

import torch
from torch import nn

from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.model.linear.block_linear import maker
from draftwire_core.engine.model.linear.drafter_linear import PackedLinear

_UNITS = 64
"""Unit vectors that go through a head at once, which bounds the memory of their logits."""


def rows_of_head(head: nn.Module, token_ids: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the rows of tokens, int64 [tokens], in a head: float32 [tokens, hidden], and its bias, float32 [tokens].

    The head's products with unit vectors are its columns, whatever form its weights have. like: with the head's dtype
    and device, [hidden, ...].
    """
    units = torch.eye(len(like), dtype=like.dtype, device=like.device)
    with torch.no_grad():
        bias = head(torch.zeros_like(units[:1]))[0, token_ids].float()
        columns = [head(part)[:, token_ids].float() for part in units.split(_UNITS)]
    return (torch.cat(columns) - bias).T.contiguous(), bias


def head_of_rows(rows: torch.Tensor, bias: torch.Tensor, dtype: torch.dtype) -> nn.Module:
    """Returns an output head of rows, float32 [tokens, hidden], and bias, float32 [tokens], for a model on a CPU with
    this dtype. Weights for bfloat16 have 8 bits; in compiled code the logits are float32."""
    make = maker(PackedLinear, "q8_0" if dtype == torch.bfloat16 else None)
    made = make(rows.to(dtype), bias.to(dtype) if bool(bias.any()) else None)
    for product in made.modules():
        if isinstance(product, CompiledProduct):
            product.wide = True
    return made
