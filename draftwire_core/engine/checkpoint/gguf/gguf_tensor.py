"""Tensors of a GGUF file, and the parameters of a model that they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from draftwire_core.engine.checkpoint.gguf.architectures.gguf_change import SAME, GgufChange
from draftwire_core.engine.checkpoint.gguf.gguf_header import PLAIN_TYPES
from draftwire_core.engine.checkpoint.gguf.gguf_repacking import UNKNOWN_TO_GGUF, repacked_values

_DTYPES = dict(zip(PLAIN_TYPES, (torch.float32, torch.float16, torch.bfloat16), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class GgufTensor:
    """A tensor of a GGUF file, or some of its rows."""

    type: str
    """Name of the type, such as "Q4_K"; one of `gguf_header.SUPPORTED_TYPES`."""
    shape: tuple[int, ...]
    """The shape: [..., outputs, inputs], or [values]."""
    raw: torch.Tensor
    """The blocks: uint8, [..., outputs, bytes per row], or [bytes]. Unless rows were moved, a view of the mapped file,
    which must not be written to."""
    scale: torch.Tensor | None = None
    """A factor of all values, float32 [1], or of those of each matrix, [matrices]; None for 1. Only for types that
    become floats."""

    @property
    def plain(self) -> torch.Tensor | None:
        """The values in the type of the file, as `raw` has them; None for a tensor in blocks."""
        dtype = _DTYPES.get(self.type)
        return None if dtype is None else self.raw.view(dtype)

    def dequantised(self) -> torch.Tensor:
        """The values: a new float32 tensor of `shape`."""
        plain = self.plain
        if plain is not None:
            return plain.to(torch.float32, copy=True)
        with np.errstate(all="ignore"):  # a scale may be infinite or not a number
            if self.type in UNKNOWN_TO_GGUF:
                return repacked_values(self.type, self.raw)
            values = torch.from_numpy(dequantize(self.raw.numpy(), GGMLQuantizationType[self.type]))
        return values if self.scale is None else values.mul_(self.scale.view(-1, *[1] * (values.dim() - 1)))

    def rows_of(self, index: int) -> GgufTensor:
        """One of the matrices of a tensor [matrices, outputs, inputs]."""
        scale = None if self.scale is None else self.scale[index : index + 1]
        return GgufTensor(self.type, self.shape[1:], self.raw[index], scale)


@dataclass(frozen=True, slots=True, eq=False)
class GgufParameter:
    """A parameter of a model of transformers."""

    shape: tuple[int, ...]
    """The shape as in transformers."""
    parts: tuple[GgufTensor, ...]
    """The tensors of the file that it is made of."""
    change: GgufChange = SAME
    """The change that llama.cpp's converter made to the tensor."""

    @property
    def type(self) -> str:
        """Name of the type; of parts of different types, their names, joined by a plus sign."""
        return "+".join(dict.fromkeys(part.type for part in self.parts))

    @property
    def whole(self) -> GgufTensor | None:
        """The parameter in its blocks: a view of the mapped file, or a copy if rows are moved; None if its values are
        changed, or its parts have different types or factors."""
        kind, scale = self.parts[0].type, self.parts[0].scale
        if any(part.type != kind for part in self.parts) or not self.change.keeps_blocks(kind):
            return None
        if self.change is SAME:
            return GgufTensor(kind, self.shape, self.parts[0].raw, scale)
        if any(part.scale is not None for part in self.parts):
            return None
        bytes_of = [part.raw if len(part.shape) > 1 else part.raw.view(part.shape[0], -1) for part in self.parts]
        moved = self.change.undone(bytes_of).reshape(*self.shape[:-1], -1)
        return GgufTensor(kind, self.shape, moved)

    @property
    def raw(self) -> torch.Tensor:
        """The blocks: uint8, [..., outputs, bytes per row], or [bytes]. For parameters with `whole` only."""
        whole = self.whole
        assert whole is not None
        return whole.raw

    @property
    def plain(self) -> torch.Tensor | None:
        """The values in the type of the file, [as in transformers]; None if they are in blocks or changed."""
        whole = self.whole
        return None if whole is None else whole.plain

    def dequantised(self) -> torch.Tensor:
        """The values: a new float32 tensor of `shape`."""
        whole = self.whole
        if whole is not None:
            return whole.dequantised()
        values = [part.dequantised() for part in self.parts]
        undone = self.change.undone([part if part.dim() > 1 else part[:, None] for part in values])
        return undone.reshape(self.shape).contiguous()
