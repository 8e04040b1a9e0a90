"""The formats of AutoGPTQ and GPTQModel: integers of 4 or 8 bits, with zero points."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftwire_core.engine.checkpoint.quantised.awq import inputs_per_group
from draftwire_core.engine.checkpoint.quantised.fields import Fields
from draftwire_core.engine.checkpoint.quantised.stored_format import checked_group, checked_scales, input_order
from draftwire_core.engine.checkpoint.quantised.stored_weight import IntegerRows, IntegerWeight, unpacked
from draftwire_core.engine.checkpoint.tensor_files import TensorFiles

_OFFSETS = {"gptq": 1, "gptq_v2": 0}
"""The number that is added to a stored zero point, by the name of the format; the sum wraps around."""
_KNOWN = frozenset(["quant_method", "bits", "group_size", "checkpoint_format", "format", "desc_act", "lm_head"])
_KNOWN |= {"modules_in_block_to_quantize", "modules_to_not_convert"}  # the tensors show it
# How the weights were quantised, and how other engines are to run them:
_KNOWN |= {"sym", "static_groups", "true_sequential", "damp_percent", "damp_auto_increment", "mse", "act_group_aware"}
_KNOWN |= {"dataset", "tokenizer", "model_seqlen", "batch_size", "block_name_to_quantize", "pad_token_id", "meta"}
_KNOWN |= {"module_name_preceding_first_block", "cache_block_outputs", "quantizer", "model_name_or_path", "backend"}
_KNOWN |= {"model_file_base_name", "pack_dtype", "use_cuda_fp16", "use_exllama", "exllama_config", "disable_exllama"}
_KNOWN |= {"max_input_length", "pack_impl"}


class Gptq:
    """A checkpoint of AutoGPTQ or GPTQModel."""

    def __init__(self, fields: Fields, files: TensorFiles):
        """Raises ModelLoadError for a configuration that is not supported."""
        fields.nothing_but(_KNOWN)
        self._bits = fields.one_of("bits", (4, 8))
        self._group = inputs_per_group(fields, "group_size")
        name = "format" if fields["checkpoint_format"] is None else "checkpoint_format"
        self._offset = torch.tensor(_OFFSETS[fields.one_of(name, (None, *_OFFSETS)) or "gptq"], dtype=torch.uint8)
        fields.one_of("pack_dtype", (None, "int32"))
        self._reordered = bool(fields["desc_act"])
        self._files = files

    def weight(self, layer: str, outputs: int, inputs: int) -> IntegerWeight | None:
        """The weight of a linear layer by its name; None if it is not quantised. Raises ModelLoadError."""
        files, name, bits = self._files, f"{layer}.qweight", self._bits
        if name not in files and f"{layer}.scales" not in files:
            return None
        if outputs * bits % 32:
            raise files.refusal(name, f"has {outputs} outputs, which do not fill whole words")
        group = checked_group(files, name, inputs, self._group or inputs)
        groups = inputs // group
        found = {
            "qweight": files.tensor(name, [(inputs * bits // 32, outputs)], [torch.int32]),
            "qzeros": files.tensor(f"{layer}.qzeros", [(groups, outputs * bits // 32)], [torch.int32]),
            "scales": checked_scales(files, f"{layer}.scales", [(groups, outputs)]),
            "zero_offset": self._offset,  # one of the tensors, since it makes two models different
        }
        found |= input_order(files, f"{layer}.g_idx", inputs, group, required=self._reordered)
        return _GptqIntegers(outputs, inputs, bits, group, found)


@dataclass(frozen=True, slots=True, eq=False)
class _GptqIntegers(IntegerWeight):
    """Integers with the words of an output in a column, and zero points with those of a group in a row."""

    def rows(self, first: int, last: int) -> IntegerRows:
        zeros = unpacked(self.tensors["qzeros"], self.bits)[:, first:last].t()
        return IntegerRows(
            unpacked(self.tensors["qweight"][:, first:last].t(), self.bits),
            self.tensors["scales"][:, first:last].t().float(),
            (zeros + self.tensors["zero_offset"]) & ((1 << self.bits) - 1),
        )
