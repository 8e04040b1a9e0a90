"""Makes a model of transformers from a quantised checkpoint in safetensors files, with weights as they lie in them."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator

import torch
from torch import nn
from transformers import AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedModel

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.checkpoint.load_errors import stop_if_abandoned
from draftwire_core.engine.checkpoint.module_budget import skeleton
from draftwire_core.engine.checkpoint.quantised.float4 import Mxfp4
from draftwire_core.engine.checkpoint.quantised.formats import read_format
from draftwire_core.engine.checkpoint.quantised.stored_format import StoredFormat
from draftwire_core.engine.checkpoint.quantised.stored_weight import (
    ConvertedWeight,
    FloatWeight,
    IntegerWeight,
    Mxfp4Blocks,
    StoredWeight,
)
from draftwire_core.engine.checkpoint.tensor_files import FLOATS, TensorFiles
from draftwire_core.engine.checkpoint.weight_files import weight_files
from draftwire_core.engine.kernels.huge_pages import empty_in_huge_pages
from draftwire_core.engine.model.experts.experts import Expert, StoredExperts, is_experts, linear_of
from draftwire_core.engine.model.file_pages import let_go
from draftwire_core.engine.model.linear.float8_weight import Float8Weight
from draftwire_core.engine.model.linear.group_weight import GroupWeight
from draftwire_core.engine.model.linear.half_weight import HalfWeight
from draftwire_core.engine.model.linear.linear_weight import QuantisedWeight, StoredLinear
from draftwire_core.engine.model.linear.mxfp4_weight import Mxfp4Weight
from draftwire_core.engine.model.reading.completeness import compute_buffers, needs_no_place
from draftwire_core.engine.model.reading.conversions import Conversions
from draftwire_core.engine.model.reading.quantisation import forget_quantisation, quantisation_of

_VALUES_AT_ONCE = 1 << 20
"""Values that are converted at once, which bounds the memory for them as float32 numbers."""
GENERATION = "generation_config.json"
"""The file that names, among others, all tokens that end a text."""
_MIXTRAL = ((r"\.mlp\b", ".block_sparse_moe"),)
_STORED = {
    "ernie4_5_moe": ((r"\.mlp\.gate\.moe_statics", ".mlp.moe_statics"),),
    "exaone_moe": ((r"\.mlp\.gate\.e_score", ".mlp.e_score"),),
    "hy_v3": (
        (r"\.mlp\.gate\b", ".mlp.router.gate"),
        (r"\.mlp\.e_score_correction_bias", ".mlp.expert_bias"),
        (r"\.mlp\.shared_experts\b", ".mlp.shared_mlp"),
    ),
    "laguna": ((r"\.mlp\.gate\.e_score", ".mlp.experts.e_score"), (r"\.mlp\.shared_experts\b", ".mlp.shared_expert")),
    "mimo_v2_flash": ((r"\.self_attn\.sinks", ".self_attn.attention_sink_bias"),),
    "minimax_m2": _MIXTRAL,
    "mixtral": _MIXTRAL,
    "nemotron_h": ((r"^model\.", "backbone."),),
    "phimoe": ((r"\.mlp\.router\b", ".mlp.gate"), *_MIXTRAL),
}
"""Patterns of transformers' names, and what checkpoints have in their place, by the type of the model. transformers
renames plain weights as it reads them."""
_DECODERS = ("model.language_model", "language_model.model", "model")
"""Names of decoders in checkpoints of multimodal models, as transformers has written them over time."""
_NUMBERS = re.compile(r"\.(\d+)\.")


def quantised_model(
    checkpoint: Checkpoint,
    config: PretrainedConfig,
    dtype: torch.dtype,
    *,
    kind: type[PreTrainedModel] | None = None,
    trust_remote_code: bool = False,
    layers: int | None = None,
) -> PreTrainedModel:
    """Makes the model of a checkpoint whose configuration has a `quantisation_of`, on the CPU.

    Quantised weights stay views of the mapped files, in `StoredLinear`, or become float16 if no product reads their
    type; a warning names these types and what they cost. Other weights are converted to `dtype`.

    config: the checkpoint's, with all layers or only the first `layers`. kind: the class of the model; None for that of
    the configuration's causal model. Raises ModelLoadError, which names the tensor or the field of the configuration,
    for a checkpoint that is damaged or not supported.
    """
    first = weight_files(checkpoint)[0].name
    if not first.endswith(".safetensors"):
        raise ModelLoadError(
            f"model {checkpoint.name}: quantised weights are read from safetensors files only, and the directory has "
            f"{first}: save the model with safe_serialization=True, or serve the unquantised checkpoint"
        )
    files = TensorFiles.open(checkpoint)
    form = read_format(quantisation_of(config), files)
    forget_quantisation(config)  # transformers would look for the format's own library

    def make() -> PreTrainedModel:
        if kind is not None:
            return kind._from_config(copy.deepcopy(config), dtype=dtype)  # which changes its fields
        made: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=dtype, trust_remote_code=trust_remote_code
        )
        return made

    model = skeleton(checkpoint.name, len(files.unread), make)
    if (checkpoint.directory / GENERATION).is_file():
        model.generation_config = GenerationConfig.from_pretrained(checkpoint.directory)
    read = _ReadTensors(files, form, model, dtype)
    read.fill()
    read.conversions.tell(str(checkpoint.directory))
    compute_buffers(model)
    ignored = model._keys_to_ignore_on_load_unexpected or ()
    text = config.get_text_config(decoder=True)
    for name in sorted(files.unread):
        known = needs_no_place(name, text) or any(re.search(pattern, name) for pattern in ignored)
        known = known or read.is_left_out(name)
        if not known and not (layers and _is_beyond(name, layers)):
            # A tensor that nobody uses would mean that the model computes something else.
            raise files.refusal(name, f"is not known for {type(model).__name__}")
    return model


class _ReadTensors:
    """Gives the modules of a model their tensors."""

    def __init__(self, files: TensorFiles, form: StoredFormat, model: PreTrainedModel, dtype: torch.dtype):
        self._files = files
        self._form = form
        self._model = model
        self._dtype = dtype
        self._in_float32 = tuple(model._keep_in_fp32_modules_strict or ())
        self._stored = _STORED.get(model.config.model_type, ())
        self._places = _places(model, files)
        self._in_part = model.config.get_text_config(decoder=True) is not model.config
        self.conversions = Conversions()

    def is_left_out(self, tensor: str) -> bool:
        """Whether a tensor of the checkpoint belongs to neither the decoder nor the head of a multimodal model."""
        return self._in_part and not any(tensor.startswith(f"{stored}.") for _, stored in self._places)

    def fill(self) -> None:
        """Fills all modules. Raises ModelLoadError."""
        model = self._model
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        may_be_tied = getattr(model.config, "tie_word_embeddings", False)  # Llama 3.2 Vision has no such field
        tied: nn.Module | None = None
        for own_name, module in list(model.named_modules()):
            name = self._stored_name(own_name)
            if type(module) is nn.Linear:
                stored = self._linear(name, module)
                if stored is not None:
                    model.set_submodule(own_name, stored)
                    continue
            if is_experts(module):
                model.set_submodule(own_name, self._experts(name, module))
                continue
            if module is head and may_be_tied and f"{name}.weight" not in self._files:
                tied = module
                continue
            for own, like in _persistent(module):
                stored_name = self._stored_name(f"{own_name}.{own}" if name else own)
                if stored_name in self._files or not self.is_left_out(stored_name):
                    self._set(module, own, self._plain(stored_name, like))
        if tied is not None:
            tied.weight = embedding.weight

    def _stored_name(self, name: str) -> str:
        """The name in the checkpoint of what has a name in the model."""
        for own, stored in self._places:
            if f"{name}.".startswith(f"{own}."):
                name = stored + name.removeprefix(own)
                break
        for pattern, stored in self._stored:
            name = re.sub(pattern, stored, name)
        return name

    def _linear(self, name: str, module: nn.Linear) -> nn.Module | None:
        weight = self._form.weight(name, module.out_features, module.in_features)
        if weight is None:
            return None
        kept = self._kept(weight)
        bias = f"{name}.bias"
        if module.bias is not None:
            return StoredLinear(kept, self._plain(bias, module.bias))
        if bias in self._files:  # old tools write one of zeros for every layer
            found = self._files.tensor(bias, [(module.out_features,)], FLOATS)
            if found.any():
                raise self._files.refusal(bias, "is not zero, in a layer without a bias")
        return StoredLinear(kept, None)

    def _kept(self, weight: StoredWeight) -> QuantisedWeight:
        """A weight as it is computed with."""
        match weight:
            case IntegerWeight():
                return GroupWeight(weight)
            case FloatWeight():
                return Float8Weight(weight)
            case Mxfp4Blocks():
                return Mxfp4Weight(weight)
        tensors = weight.tensors.values()
        self.conversions.add(weight.type_name, sum(each.nbytes for each in tensors), weight.outputs * weight.inputs)
        return HalfWeight(_halves(weight))

    def _experts(self, name: str, module: nn.Module) -> StoredExperts:
        """The experts of a layer, each in tensors of its own, except in the format of gpt-oss."""
        if isinstance(self._form, Mxfp4):
            return StoredExperts(self._experts_in_blocks(self._form, name, module), module)
        numbered = ".block_sparse_moe." in name or self._model.config.model_type == "lfm2_moe"
        gate, up, down = ("w1", "w3", "w2") if numbered else ("gate_proj", "up_proj", "down_proj")
        firsts = (gate, up) if module.has_gate else (up,)
        count, outputs, inputs = module.down_proj.shape
        return StoredExperts(
            [
                Expert(
                    [self._expert(f"{name}.{index}.{each}", inputs, outputs) for each in firsts],
                    self._expert(f"{name}.{index}.{down}", outputs, inputs),
                )
                for index in range(count)
            ],
            module,
        )

    def _expert(self, name: str, outputs: int, inputs: int) -> nn.Module:
        with torch.device("meta"):
            layer = nn.Linear(inputs, outputs, bias=False, dtype=self._dtype)
        return self._linear(name, layer) or linear_of(self._plain(f"{name}.weight", layer.weight), None)

    def _experts_in_blocks(self, form: Mxfp4, name: str, module: nn.Module) -> list[Expert]:
        count, width, hidden = module.down_proj.shape
        both, down = f"{name}.gate_up_proj", f"{name}.down_proj"
        biases = (
            self._plain(f"{both}_bias", module.gate_up_proj_bias),
            self._plain(f"{down}_bias", module.down_proj_bias),
        )
        firsts, seconds = form.experts(both, count, 2 * width, hidden), form.experts(down, count, hidden, width)
        return [
            Expert([StoredLinear(Mxfp4Weight(first), of_both)], StoredLinear(Mxfp4Weight(second), of_down))
            for first, second, of_both, of_down in zip(firsts, seconds, *biases, strict=True)
        ]

    def _plain(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """A tensor that is not quantised, in the model's type for it."""
        found = self._files.tensor(name, [tuple(like.shape)], FLOATS if like.is_floating_point() else [like.dtype])
        # A model that is made without being read does not have them in float32 yet.
        whole = like.is_floating_point() and any(part in name for part in self._in_float32)
        return found.to(torch.float32 if whole else like.dtype)

    def _set(self, module: nn.Module, name: str, tensor: torch.Tensor) -> None:
        if name in module._parameters:
            module._parameters[name] = nn.Parameter(tensor, requires_grad=False)
        else:
            module._buffers[name] = tensor


def _places(model: PreTrainedModel, files: TensorFiles) -> list[tuple[str, str]]:
    """The names of a model's decoder and output head, and those that they have in the checkpoint: the text part of a
    multimodal one has been called in several ways. Nothing if the model does not say which module its decoder is."""
    decoder, embedding, head = model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings()
    names = {module: name for name, module in model.named_modules()}
    whole, first = names.get(decoder, ""), names.get(embedding, "")
    if not whole or not first.startswith(f"{whole}.") or head not in names:
        return []
    inner = f"{first.removeprefix(whole)}.weight"
    stored = next((each for each in (whole, *_DECODERS) if each + inner in files), whole)
    of_head = f"language_model.{names[head]}"
    in_part = any(name.startswith(f"{of_head}.") for name in files.unread)
    return [(names[head], of_head if in_part else names[head]), (whole, stored)]


def _halves(weight: ConvertedWeight) -> torch.Tensor:
    """The values of a weight, rounded to float16 [outputs, inputs]; beyond its range, its largest ones."""
    found = empty_in_huge_pages((weight.outputs, weight.inputs), torch.float16)
    most = torch.finfo(torch.float16).max
    at_once = max(1, _VALUES_AT_ONCE // weight.inputs)
    for first in range(0, weight.outputs, at_once):
        stop_if_abandoned()
        last = min(first + at_once, weight.outputs)
        found[first:last] = weight.rows(first, last).clamp_(-most, most)
    for tensor in weight.tensors.values():
        let_go(tensor)
    return found


def _persistent(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a module itself that are stored in checkpoints, by name."""
    yield from list(module.named_parameters(recurse=False))
    for name, buffer in list(module.named_buffers(recurse=False)):
        if name not in module._non_persistent_buffers_set:
            yield name, buffer


def _is_beyond(tensor: str, layers: int) -> bool:
    """Whether a tensor belongs to a layer after the first `layers`."""
    found = _NUMBERS.search(tensor)
    return found is not None and int(found[1]) >= layers
