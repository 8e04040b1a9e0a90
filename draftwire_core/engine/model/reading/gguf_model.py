"""Makes a model of transformers from a GGUF file, with weights in blocks as they lie in the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile
from draftwire_core.engine.checkpoint.gguf.gguf_repacking import Repacking, repacking_of
from draftwire_core.engine.checkpoint.gguf.gguf_superblock import GroupedSuperblocks
from draftwire_core.engine.checkpoint.gguf.gguf_tensor import GgufParameter, GgufTensor
from draftwire_core.engine.checkpoint.load_errors import stop_if_abandoned
from draftwire_core.engine.kernels.huge_pages import empty_in_huge_pages, in_huge_pages
from draftwire_core.engine.kernels.products.gemm_blocks import FORMATS, BlockType
from draftwire_core.engine.model.experts.experts import (
    Expert,
    StoredExperts,
    is_experts,
    linear_of,
    without_weights,
)
from draftwire_core.engine.model.file_pages import let_go
from draftwire_core.engine.model.linear.block_linear import StoredEmbedding
from draftwire_core.engine.model.linear.block_weight import BlockWeight
from draftwire_core.engine.model.linear.group_weight import GroupWeight
from draftwire_core.engine.model.linear.half_weight import HalfWeight
from draftwire_core.engine.model.linear.linear_weight import QuantisedWeight, StoredLinear
from draftwire_core.engine.model.reading.completeness import compute_buffers
from draftwire_core.engine.model.reading.conversions import Conversions

_VALUES_AT_ONCE = 1 << 20
"""Values that are converted at once, which bounds the memory for them as float32 numbers."""
_SCALE_AND_ZERO = 5
"""Bytes of the scale and the zero point of a group of integers in memory."""


def gguf_model(file: GgufFile, config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Makes the model of a file on the CPU.

    Weights in blocks and in float16 stay views of the mapped file, unless their rows are in another order there: linear
    layers are `StoredLinear`, experts `StoredExperts`, and the embedding is a `StoredEmbedding`. Blocks without a
    product of their own become another type with the same values (`StoredWeights`), or float16 if no type has these
    values; the log has these types and what they cost. Other weights are converted to `dtype`.

    config: the file's, with all layers or only the first ones. Raises ModelLoadError.
    """
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    weights = StoredWeights()
    _ReadParameters(file, model, dtype, weights).fill()
    compute_buffers(model)
    weights.conversions.tell(str(file.path))
    return model


class _ReadParameters:
    """Gives the modules of a model their parameters."""

    def __init__(self, file: GgufFile, model: PreTrainedModel, dtype: torch.dtype, weights: StoredWeights):
        self._file = file
        self._model = model
        self._dtype = dtype
        self._weights = weights
        self._in_float32 = tuple(model._keep_in_fp32_modules_strict or ())

    def fill(self) -> None:
        """Fills all modules."""
        model, tensors = self._model, self._file.tensors
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        tied: QuantisedWeight | None = None
        is_tied = False
        for name, module in list(model.named_modules()):
            weight = tensors.get(f"{name}.weight")
            if is_experts(module):
                model.set_submodule(name, self._experts(name, module))
            elif module is head and weight is None:  # the embedding takes its place, and is converted once
                is_tied = True
                if tied is not None:
                    model.set_submodule(name, StoredLinear(tied, None))
            elif isinstance(module, nn.Linear | nn.Embedding) and weight is not None:
                stored = self._weights.of_parameter(weight, looked_up=isinstance(module, nn.Embedding))
                if stored is None:
                    self._fill(name, module)
                elif isinstance(module, nn.Linear):
                    bias = None if module.bias is None else self._plain(f"{name}.bias")
                    model.set_submodule(name, StoredLinear(stored, bias))
                else:
                    assert isinstance(stored, BlockWeight | HalfWeight), "as asked"
                    model.set_submodule(name, StoredEmbedding(stored, getattr(module, "scalar_embed_scale", None)))
                if module is embedding:
                    tied = stored
            else:
                self._fill(name, module)
        if is_tied and tied is None:
            head.weight = embedding.weight

    def _fill(self, name: str, module: nn.Module) -> None:
        """Fills a module that stays transformers' own."""
        for own in list(module._parameters):
            if module._parameters[own] is not None:
                full = f"{name}.{own}"
                module._parameters[own] = nn.Parameter(self._plain(full), requires_grad=False)
        for own, buffer in list(module.named_buffers(recurse=False)):
            if own not in module._non_persistent_buffers_set:
                values = self._plain(f"{name}.{own}")
                module._buffers[own] = values if buffer.is_floating_point() else values.to(buffer.dtype)

    def _experts(self, name: str, module: nn.Module) -> StoredExperts:
        """The experts of a layer, whose matrices are views of tensors with those of all experts."""
        first = "gate_up_proj" if module.has_gate else "up_proj"
        both, down = self._linears(f"{name}.{first}", module), self._linears(f"{name}.down_proj", module)
        experts = [Expert(of_both, of_down) for *of_both, of_down in zip(*both, *down, strict=True)]
        if self._file.tensors[f"{name}.{first}"].change.interleaved:
            return StoredExperts(experts, InterleavedGate(module))
        return StoredExperts(experts, module)

    def _linears(self, name: str, module: nn.Module) -> list[list[nn.Module]]:
        """The linear layers of each part of experts' weights: for each part those of all experts."""
        parts = self._file.tensors[name].parts
        biases: list[Tensor | None] = [None] * len(parts)
        if module.has_bias:
            biases = [self._converted(part.dequantised()) for part in self._file.tensors[f"{name}_bias"].parts]
        return [
            [self._linear(part.rows_of(index), None if bias is None else bias[index]) for index in range(part.shape[0])]
            for part, bias in zip(parts, biases, strict=True)
        ]

    def _linear(self, weight: GgufTensor, bias: Tensor | None) -> nn.Module:
        stored = self._weights.of_tensor(weight)
        if stored is not None:
            return StoredLinear(stored, bias)
        assert weight.plain is not None
        return linear_of(self._converted(weight.plain), bias)

    def _plain(self, name: str) -> Tensor:
        """The values of a parameter in the model's type: a view of the mapped file where they have it already."""
        parameter = self._file.tensors[name]
        dtype = torch.float32 if any(part in name for part in self._in_float32) else self._dtype
        values = parameter.plain
        if values is None:
            self._weights.count(parameter.parts)
            values = parameter.dequantised()
        elif values.dtype == dtype:
            return values
        converted = self._converted(values, dtype)
        for part in parameter.parts:
            let_go(part.raw)
        return converted

    def _converted(self, values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        dtype = dtype or self._dtype
        return values if values.dtype == dtype else empty_in_huge_pages(values.shape, dtype).copy_(values)


class InterleavedGate(nn.Module):
    """The activation of experts that take gates and values in turn, for outputs that have all gates first."""

    has_gate = True
    has_post_expert_norm = False

    def __init__(self, experts: nn.Module):
        """experts: those of transformers, without weights after the call"""
        super().__init__()
        self.experts = without_weights(experts)

    def _apply_gate(self, gate_and_up: Tensor) -> Tensor:
        activated: Tensor = self.experts._apply_gate(torch.stack(gate_and_up.chunk(2, dim=-1), dim=-1).flatten(-2))
        return activated


class StoredWeights:
    """Makes the weights that a model computes with from those of a file."""

    def __init__(self) -> None:
        self.conversions = Conversions()
        """The tensors that became another type."""

    def of_parameter(self, parameter: GgufParameter, *, looked_up: bool = False) -> QuantisedWeight | None:
        """A weight [outputs, inputs] as it is computed with; None for one in float32 or bfloat16. looked_up: as in
        `of_tensor`"""
        whole = parameter.whole
        if whole is None:
            if all(part.plain is not None and part.type != "F16" for part in parameter.parts):
                return None
            self.count(parameter.parts)
            values = parameter.dequantised()
            for part in parameter.parts:
                let_go(part.raw)
            return HalfWeight(_half(values, empty_in_huge_pages(values.shape, torch.float16)))
        moved = whole.raw.data_ptr() != parameter.parts[0].raw.data_ptr()
        if moved and (_block_type(whole.type) is not None or whole.type == "F16"):
            # In memory of its own, which is free again as soon as the weight is packed.
            whole = GgufTensor(whole.type, whole.shape, in_huge_pages(whole.raw))
        stored = self.of_tensor(whole, looked_up=looked_up)
        if moved and stored is not None:
            for part in parameter.parts:
                let_go(part.raw)
        return stored

    def of_tensor(self, weight: GgufTensor, *, looked_up: bool = False) -> QuantisedWeight | None:
        """A weight [outputs, inputs] as it is computed with; None for one in float32 or bfloat16.

        looked_up: whether single outputs are read, which weights of integers do not allow.
        """
        kind = _block_type(weight.type)
        if kind is not None:
            return BlockWeight(kind, weight.raw)
        if weight.type == "F16":
            return HalfWeight(weight.raw.view(torch.float16))
        if weight.plain is not None:
            return None
        repacking = repacking_of(weight.type, weight.raw)
        if repacking is not None:
            return self._repacked(weight, repacking)
        groups = None if looked_up else GroupedSuperblocks.of(weight.type, weight.raw)
        if groups is not None:
            after = groups.outputs * (groups.inputs + groups.groups * _SCALE_AND_ZERO)
            self.conversions.add_repacked(weight.type, "int8", weight.raw.nbytes, after)
            return GroupWeight(groups)
        self.count([weight])
        return HalfWeight(_halves(weight))

    def count(self, parts: Sequence[GgufTensor]) -> None:
        """Counts tensors whose values become floats; those without blocks do not matter."""
        for part in parts:
            if part.plain is None:
                self.conversions.add(part.type, part.raw.nbytes, prod(part.shape))

    def _repacked(self, weight: GgufTensor, how: Repacking) -> BlockWeight:
        form = FORMATS[how.into]
        found = empty_in_huge_pages((weight.shape[0], weight.shape[1] // form.inputs * form.size), torch.uint8)
        for part, into in _in_parts(weight, found):
            into.copy_(how.rows(part.raw))
        self.conversions.add_repacked(weight.type, how.into, weight.raw.nbytes, found.nbytes)
        return BlockWeight(how.into, found)


def _halves(weight: GgufTensor) -> Tensor:
    """The values of a tensor in blocks, rounded to float16 [outputs, inputs]; beyond its range, its largest ones."""
    found = empty_in_huge_pages(weight.shape, torch.float16)
    for part, into in _in_parts(weight, found):
        _half(part.dequantised(), into)
    return found


def _half(values: Tensor, into: Tensor) -> Tensor:
    """Rounds float32 values to float16, which are put into a tensor; returns it."""
    most = torch.finfo(torch.float16).max
    return into.copy_(values.clamp_(-most, most))


def _in_parts(weight: GgufTensor, found: Tensor) -> Iterator[tuple[GgufTensor, Tensor]]:
    """Parts of a tensor's rows with those of what it becomes, so that memory for the conversion is bounded.

    The tensor is taken out of this process's memory at the end.
    """
    at_once = max(1, _VALUES_AT_ONCE // weight.shape[1])
    for part, into in zip(weight.raw.split(at_once), found.split(at_once), strict=True):
        stop_if_abandoned()
        yield GgufTensor(weight.type, (len(part), weight.shape[1]), part, weight.scale), into
    let_go(weight.raw)


def _block_type(type_name: str) -> BlockType | None:
    return next((kind for kind in FORMATS if kind == type_name.lower()), None)
