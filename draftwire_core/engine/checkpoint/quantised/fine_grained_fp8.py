"""The format of transformers' "fp8", as checkpoints of DeepSeek and Qwen have it: 8-bit floats (e4m3) with a scale for
each block of outputs and inputs."""

from __future__ import annotations

import torch

from draftwire_core.engine.checkpoint.quantised.fields import Fields
from draftwire_core.engine.checkpoint.quantised.stored_format import checked_float_group
from draftwire_core.engine.checkpoint.quantised.stored_weight import FloatWeight
from draftwire_core.engine.checkpoint.tensor_files import FLOATS, TensorFiles

_KNOWN = frozenset(["quant_method", "activation_scheme", "weight_block_size", "fmt", "scale_fmt"])
_KNOWN |= {"modules_to_not_convert", "ignored_layers"}  # the tensors show it
_FLOAT8 = torch.float8_e4m3fn


class FineGrainedFp8:
    """A checkpoint with quantisation method "fp8"."""

    def __init__(self, fields: Fields, files: TensorFiles):
        """Raises ModelLoadError for a configuration that is not supported."""
        fields.nothing_but(_KNOWN)
        fields.one_of("activation_scheme", (None, "dynamic"))
        fields.one_of("fmt", (None, "e4m3", "float8_e4m3fn"))
        fields.one_of("scale_fmt", (None, "float", "ue8m0"))
        block = fields["weight_block_size"]
        if block is not None and not (
            isinstance(block, list) and len(block) == 2 and all(type(each) is int and each > 0 for each in block)
        ):
            raise fields.refusal("weight_block_size", f"is {block}; must be two positive numbers")
        self._block: tuple[int, int] | None = None if block is None else (block[0], block[1])
        """Outputs and inputs per scale; None if a weight has a single one."""
        self._files = files

    def weight(self, layer: str, outputs: int, inputs: int) -> FloatWeight | None:
        """The weight of a linear layer by its name; None if it is not quantised. Raises ModelLoadError."""
        files, name = self._files, f"{layer}.weight"
        if files.dtype(name) != _FLOAT8:
            return None
        rows, group = self._block or (outputs, inputs)
        shapes: list[tuple[int, ...]] = [(-(-outputs // rows), -(-inputs // group))]
        if self._block is None:
            shapes += [(1,), ()]
        found = {
            "weight": files.tensor(name, [(outputs, inputs)], [_FLOAT8]),
            "weight_scale_inv": files.tensor(
                f"{layer}.weight_scale_inv", shapes, [*FLOATS, torch.float8_e8m0fnu]
            ),
        }  # fmt: skip
        group = checked_float_group(files, name, inputs, group)
        no_numbers = files.refusal(name, "has elements that are no numbers")
        return FloatWeight(outputs, inputs, group, rows, found, "weight_scale_inv", no_numbers)
