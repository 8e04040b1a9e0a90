"""A tensor of a GGUF file: its blocks as they are in the file, and their values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from draftwire_core.engine.checkpoint.gguf.gguf_header import PLAIN_TYPES

_DTYPES = dict(zip(PLAIN_TYPES, (torch.float32, torch.float16, torch.bfloat16), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class GgufTensor:
    """A tensor of a GGUF file."""

    type: str
    """Name of the type, such as "Q4_K"; one of `gguf_header.SUPPORTED_TYPES`."""
    shape: tuple[int, ...]
    """The shape as in transformers: [outputs, inputs], or [values]."""
    mapped: torch.Tensor
    """The blocks in the order of the file: uint8, [outputs, bytes per row], or [bytes]; a view of the mapped file,
    which must not be written to."""
    permuted_heads: int = 0
    """Number of the attention heads whose rows are in llama.cpp's order; 0 if the rows are in transformers' order."""

    added: float = 0.0
    """The number that llama.cpp's converter added to the values, which `dequantised` takes away."""

    @property
    def raw(self) -> torch.Tensor:
        """The blocks in transformers' order: uint8, [outputs, bytes per row], or [bytes].

        A view of the mapped file, which must not be written to; of permuted rows, a new copy at each call.
        """
        if not self.permuted_heads:
            return self.mapped
        # llama.cpp rotates neighbouring values, transformers those half a head apart: each head's two halves were
        # interleaved. A row is whole blocks, or one value of a bias.
        rows = self.mapped.view(self.permuted_heads, self.shape[0] // self.permuted_heads // 2, 2, -1)
        return rows.transpose(1, 2).reshape(self.mapped.shape)

    @property
    def plain(self) -> torch.Tensor | None:
        """The values in the type of the file, as `raw` has them; None for a tensor in blocks."""
        dtype = _DTYPES.get(self.type)
        return None if dtype is None else self.raw.view(dtype)

    def dequantised(self) -> torch.Tensor:
        """The values: a new float32 tensor of `shape`."""
        plain = self.plain
        if plain is not None:
            return plain.to(torch.float32, copy=True).sub_(self.added)
        with np.errstate(all="ignore"):  # a scale may be infinite or not a number
            values = dequantize(self.raw.numpy(), GGMLQuantizationType[self.type])
        return torch.from_numpy(values)
