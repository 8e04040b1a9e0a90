"""The product of rows and a packed weight in compiled code (`csrc/products/gemm.c`)."""

from __future__ import annotations

import ctypes

import torch
from torch import nn

from draftwire_core.engine.kernels.library import gemm_kind, loaded
from draftwire_core.engine.kernels.structs import WEIGHT_TYPES, Gemm


class CompiledProduct(nn.Module):
    """The product of rows and a weight that is packed once. Subclasses pack it."""

    def __init__(
        self,
        weight_type: str,
        stored: torch.Tensor,
        outputs: int,
        inputs: int,
        scales: torch.Tensor | None = None,
        group: int = 0,
    ):
        """weight_type: one of WEIGHT_TYPES. stored: the packed weight. scales: float32, of the type "int8" alone.
        group: inputs per scale, of the types "group4", "group8" and "fp8" alone"""
        super().__init__()
        self.weight_type = weight_type
        self.number = WEIGHT_TYPES.index(weight_type)
        """The library's number for the type."""
        self.outputs, self.inputs, self.group = outputs, inputs, group
        self.wide = False
        """Whether results are float32, as the sums are, instead of bfloat16."""
        self.register_buffer("stored", stored, persistent=False)
        self.register_buffer("scales", scales, persistent=False)

    @property
    def in_blocks(self) -> bool:
        """Whether the weight is quantised in blocks (`csrc/products/gemm_blocks.c`)."""
        return WEIGHT_TYPES.index("q8_0") <= self.number <= WEIGHT_TYPES.index("group8")

    def rows_at_once(self, rows: int) -> int:
        """The most rows that a product of `rows` rows takes at once. With more it divides them into as few blocks as
        possible, and goes through the weight once for each."""
        return int(loaded().draftwire_rows_at_once(self.number, gemm_kind(), rows))

    def forward(self, rows: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """rows: bfloat16 or float32 [rows, inputs], bias: bfloat16 [outputs] -> bfloat16 or float32 [rows, outputs]"""
        rows = rows.contiguous()
        out = rows.new_empty(len(rows), self.outputs, dtype=torch.float32 if self.wide else torch.bfloat16)
        working = torch.empty(rows.shape, dtype=torch.float32)
        call = Gemm(
            rows.data_ptr(), self.stored.data_ptr(), None if self.scales is None else self.scales.data_ptr(),
            None if bias is None else bias.data_ptr(), out.data_ptr(), working.data_ptr(),
            len(rows), self.outputs, self.outputs, self.inputs, self.group, self.number, self.wide,
            rows.dtype == torch.float32,
        )  # fmt: skip
        loaded().draftwire_gemm(ctypes.addressof(call), gemm_kind(), torch.get_num_threads())
        return out
