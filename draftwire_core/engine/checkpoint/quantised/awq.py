"""The format of AutoAWQ: integers of 4 bits with zero points, in the layout for matrix products ("gemm")."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftwire_core.engine.checkpoint.quantised.fields import OF_TOOLS, Fields
from draftwire_core.engine.checkpoint.quantised.stored_format import checked_group, checked_scales
from draftwire_core.engine.checkpoint.quantised.stored_weight import IntegerRows, IntegerWeight, unpacked
from draftwire_core.engine.checkpoint.tensor_files import TensorFiles

_BITS = 4
_PER_WORD = 32 // _BITS
_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""The place within a word, from its lowest bits on, of each of its outputs."""
_KNOWN = OF_TOOLS | {"quant_method", "bits", "w_bit", "group_size", "q_group_size", "version", "format", "zero_point"}
_KNOWN |= {"checkpoint_format", "data_type", "pack_dtype"}


class Awq:
    """A checkpoint of AutoAWQ."""

    def __init__(self, fields: Fields, files: TensorFiles):
        """Raises ModelLoadError for a configuration that is not supported."""
        fields.nothing_but(_KNOWN)
        fields.one_of("w_bit" if fields["bits"] is None else "bits", (_BITS,))
        fields.one_of("zero_point", (True, False))  # symmetric weights have tensors of zero points, too
        fields.one_of("data_type", (None, "int"))
        fields.one_of("pack_dtype", (None, "int32"))
        for name in ("version", "format", "checkpoint_format"):
            if fields[name] is not None and str(fields[name]).lower() != "gemm":
                raise fields.refusal(name, f"is {fields[name]}; only gemm is supported")
        self._group = inputs_per_group(fields, "q_group_size" if fields["group_size"] is None else "group_size")
        self._files = files

    def weight(self, layer: str, outputs: int, inputs: int) -> IntegerWeight | None:
        """The weight of a linear layer by its name; None if it is not quantised. Raises ModelLoadError."""
        files, name = self._files, f"{layer}.qweight"
        if name not in files and f"{layer}.scales" not in files:
            return None
        if outputs % _PER_WORD:
            raise files.refusal(name, f"has {outputs} outputs, which are not a multiple of {_PER_WORD}")
        group, words = checked_group(files, name, inputs, self._group or inputs), outputs // _PER_WORD
        return _AwqIntegers(
            outputs,
            inputs,
            _BITS,
            group,
            {
                "qweight": files.tensor(name, [(inputs, words)], [torch.int32]),
                "qzeros": files.tensor(f"{layer}.qzeros", [(inputs // group, words)], [torch.int32]),
                "scales": checked_scales(files, f"{layer}.scales", [(inputs // group, outputs)]),
            },
        )


@dataclass(frozen=True, slots=True, eq=False)
class _AwqIntegers(IntegerWeight):
    """Integers with the words of an input side by side, each of eight outputs."""

    def rows(self, first: int, last: int) -> IntegerRows:
        return IntegerRows(
            self._outputs(self.tensors["qweight"], first, last),
            self.tensors["scales"][:, first:last].t().float(),
            self._outputs(self.tensors["qzeros"], first, last),
        )

    def _outputs(self, words: torch.Tensor, first: int, last: int) -> torch.Tensor:
        """Returns some outputs of words [n, words], uint8 [outputs, n]."""
        begin = first // _PER_WORD
        found = unpacked(words[:, begin : -(-last // _PER_WORD)], self.bits).unflatten(1, (-1, _PER_WORD))
        whole = found[..., _PLACES].flatten(1).t()
        return whole[first - begin * _PER_WORD :][: last - first].contiguous()


def inputs_per_group(fields: Fields, name: str) -> int | None:
    """A field's number of inputs per group; None, stored as -1, for one group. Raises ModelLoadError."""
    return None if fields[name] == -1 else fields.size(name)
