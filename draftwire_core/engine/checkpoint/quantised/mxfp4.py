"""The format of gpt-oss: its experts' weights in blocks of 32 numbers of 4 bits (e2m1), with an exponent each."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftwire_core.engine.checkpoint.quantised.fields import Fields
from draftwire_core.engine.checkpoint.quantised.stored_format import BLOCK
from draftwire_core.engine.checkpoint.tensor_files import TensorFiles


@dataclass(frozen=True, slots=True, eq=False)
class Mxfp4Blocks:
    """A weight in blocks of MXFP4."""

    blocks: torch.Tensor
    """uint8 [outputs, blocks, 16]: two neighbouring inputs each, the first in the low bits. A view of a mapped file."""
    exponents: torch.Tensor
    """uint8 [outputs, blocks], likewise."""

    def as_gguf(self) -> torch.Tensor:
        """The blocks as GGUF has them, new uint8 [outputs, blocks * 17]: exponent, then inputs 0 to 15 in the low bits
        and 16 to 31 in the high ones."""
        numbers = torch.stack([self.blocks & 15, self.blocks >> 4], -1).flatten(2)
        bytes_of_blocks = numbers[..., : BLOCK // 2] | numbers[..., BLOCK // 2 :] << 4
        return torch.cat([self.exponents[..., None], bytes_of_blocks], -1).flatten(1)


class Mxfp4:
    """A checkpoint with quantisation method "mxfp4", whose linear layers are not quantised."""

    def __init__(self, fields: Fields, files: TensorFiles):
        """Raises ModelLoadError for a configuration that is not supported."""
        fields.nothing_but(("quant_method", "modules_to_not_convert"))
        self._files = files

    def weight(self, layer: str, outputs: int, inputs: int) -> None:
        """None: linear layers are not quantised."""

    def experts(self, name: str, count: int, outputs: int, inputs: int) -> list[Mxfp4Blocks]:
        """The weights of a layer's experts, by the name of their tensors without its end. Raises ModelLoadError."""
        files, across = self._files, -(-inputs // BLOCK)
        if inputs % BLOCK:
            raise files.refusal(f"{name}_blocks", f"has {inputs} inputs, which are not a multiple of {BLOCK}")
        blocks = files.tensor(f"{name}_blocks", [(count, outputs, across, BLOCK // 2)], [torch.uint8])
        exponents = files.tensor(f"{name}_scales", [(count, outputs, across)], [torch.uint8])
        return [Mxfp4Blocks(*pair) for pair in zip(blocks, exponents, strict=True)]
