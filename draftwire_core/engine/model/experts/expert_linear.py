"""A linear layer of each of several experts, for rows that are sorted by expert."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import torch
from torch import nn

from draftwire_core.engine.kernels.library import gemm_kind, loaded
from draftwire_core.engine.kernels.structs import ExpertRows
from draftwire_core.engine.model.linear.linear_structs import LinearStructs, are_compiled


class ExpertLinear(nn.Module):
    """The linear layers of several experts, all with the same sizes.

    Each expert multiplies its rows at once, and those that have none do nothing. Where the products are compiled code,
    one call multiplies all rows.
    """

    def __init__(self, linears: Iterable[nn.Module]):
        """linears: those of all experts, in their order"""
        super().__init__()
        self.linears = nn.ModuleList(linears)
        first = self.linears[0]
        self.in_features, self.out_features = first.in_features, first.out_features
        self._structs = LinearStructs(list(self.linears)) if are_compiled(list(self.linears)) else None

    def forward(self, rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """rows [rows, in_features]; experts: that of each row, int64 [rows], ascending -> [rows, out_features]"""
        if self._structs is not None:
            return self._multiply(self._structs, rows.contiguous(), experts)
        taken, counts = (each.tolist() for each in experts.unique_consecutive(return_counts=True))
        parts = [self.linears[expert](part) for expert, part in zip(taken, rows.split(counts), strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _multiply(self, structs: LinearStructs, rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        out = rows.new_empty(len(rows), self.out_features)
        working = torch.empty(rows.shape, dtype=torch.float32)
        call = ExpertRows(
            ctypes.addressof(structs.array), experts.data_ptr(), rows.data_ptr(), out.data_ptr(), working.data_ptr(),
            len(rows), self.in_features, self.out_features,
        )  # fmt: skip
        loaded().draftwire_expert_rows(ctypes.addressof(call), gemm_kind(), torch.get_num_threads())
        return out
