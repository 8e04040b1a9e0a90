"""Puts the weights of a model into a GPU's memory, packed: those of quantised checkpoints, or quantised at load."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.device.choices import KvDtype, Weights
from draftwire_core.engine.model.cuda.kernel_layer import run_on_kernels, try_kernels
from draftwire_core.engine.model.cuda.kernel_linear import KernelLinear
from draftwire_core.engine.model.cuda.weights.device_weight import DeviceWeight, DeviceWeightError
from draftwire_core.engine.model.cuda.weights.packing import narrowed_on, stored_on
from draftwire_core.engine.model.experts.experts import StoredExperts, is_experts, linear_of
from draftwire_core.engine.model.linear.block_linear import StoredEmbedding
from draftwire_core.engine.model.linear.linear_weight import QuantisedWeight, StoredLinear
from draftwire_core.engine.model.model_facts import WIDENED_ON_GPUS, has_blocks


def use_gpu_layers(model: PreTrainedModel, weights: Weights, kv_dtype: KvDtype) -> tuple[bool, list[str]]:
    """Moves packed weights of `model` to the GPU and replaces its decoder layers, in place. weights: what linear layers
    keep. kv_dtype: type of keys and values.

    Returns whether kernels compute all of the model, which otherwise only attend, and what `try_kernels` ruled out.
    Raises ModelLoadError.
    """
    if has_blocks(model):
        place_stored(model)
    if weights != "checkpoint":
        narrow(model, weights)
    return run_on_kernels(model), try_kernels(model, kv_dtype)


class PackedEmbedding(nn.Module):
    """An embedding whose rows are unpacked when they are looked up."""

    def __init__(self, weight: DeviceWeight, scale: float | None = None):
        """scale: what the rows are multiplied by, as in Gemma's models"""
        super().__init__()
        self.packed = weight
        self.scale = scale
        self.num_embeddings, self.embedding_dim = weight.shape

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids [...] -> bfloat16 [..., embedding_dim]"""
        rows = self.packed.values(token_ids.flatten()).to(torch.bfloat16)
        rows = rows.view(*token_ids.shape, self.embedding_dim)
        return rows if self.scale is None else rows * self.scale


def place_stored(model: PreTrainedModel) -> None:
    """Replaces the quantised layers of a checkpoint by such on the model's device, where its other tensors are.

    Those of `WIDENED_ON_GPUS` become bfloat16, as do embedding and output head if the kernels do not support their
    type. Raises ModelLoadError, which names the layer, for others.
    """
    device, head = model.device, model.get_output_embeddings()
    placed: dict[int, DeviceWeight] = {}  # a head may be the embedding
    for name, module in list(model.named_modules()):
        if isinstance(module, StoredExperts):
            raise ModelLoadError(f"layer {name}: mixtures of experts in quantised checkpoints run on CPUs only")
        if isinstance(module, StoredLinear):
            bias = None if module.bias is None else module.bias.to(device)
            try:
                linear: nn.Module = KernelLinear(_placed(placed, device, module.stored), bias)
            except DeviceWeightError as error:
                if module is not head and module.stored.type_name not in WIDENED_ON_GPUS:
                    raise ModelLoadError(f"layer {name}: {error}") from error
                linear = linear_of(module.stored.values().to(device), bias)
            model.set_submodule(name, linear)
        elif isinstance(module, StoredEmbedding):
            try:
                model.set_submodule(name, PackedEmbedding(_placed(placed, device, module.stored), module.scale))
            except DeviceWeightError:
                values = module.stored.values().to(device)
                values = values if module.scale is None else values * module.scale
                model.set_submodule(name, nn.Embedding.from_pretrained(values))


def narrow(model: PreTrainedModel, weights: Weights) -> None:
    """Quantises the bfloat16 weights of all linear layers, in place. Raises ModelLoadError, which names the layer."""
    for name, module in list(model.named_modules()):
        if is_experts(module):
            raise ModelLoadError(f"layer {name}: mixtures of experts have no weights {weights} on GPUs")
        if type(module) is nn.Linear:
            try:
                packed = narrowed_on(module.weight.device, module.weight.data, weights)
            except DeviceWeightError as error:
                raise ModelLoadError(f"layer {name}: weights {weights}: {error}") from error
            model.set_submodule(name, KernelLinear(packed, module.bias))


def move_plain(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """Moves all tensors of a model to a device but those of its quantised layers, which `place_stored` packs there."""
    for module in model.modules():
        if isinstance(module, StoredLinear | StoredEmbedding):
            continue
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.to(device)
        for name, buffer in list(module.named_buffers(recurse=False)):
            module._buffers[name] = buffer.to(device)
    return model


def _placed(placed: dict[int, DeviceWeight], device: torch.device, weight: QuantisedWeight) -> DeviceWeight:
    key = next(iter(weight.tensors.values())).data_ptr()
    if key not in placed:
        placed[key] = stored_on(device, weight)
    return placed[key]
