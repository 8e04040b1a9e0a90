"""Makes a model of transformers from a GGUF file, with weights in blocks as they lie in the file."""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile
from draftwire_core.engine.checkpoint.gguf.gguf_tensor import GgufTensor
from draftwire_core.engine.kernels.huge_pages import empty_in_huge_pages, in_huge_pages
from draftwire_core.engine.kernels.products.gemm_blocks import FORMATS, BlockType
from draftwire_core.engine.model.file_pages import let_go
from draftwire_core.engine.model.linear.block_linear import StoredEmbedding
from draftwire_core.engine.model.linear.block_weight import BlockWeight
from draftwire_core.engine.model.linear.half_weight import HalfWeight
from draftwire_core.engine.model.linear.linear_weight import StoredLinear

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


def gguf_model(file: GgufFile, config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Makes the model of a file on the CPU.

    Weights in blocks and in float16 stay views of the mapped file: linear layers are `StoredLinear`, and the embedding
    is a `StoredEmbedding`. Other weights are converted to `dtype`.

    config: the file's, with all layers or only the first ones. Raises ModelLoadError.
    """
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    for name, module in list(model.named_modules()):
        weight = file.tensors.get(f"{name}.weight")
        if weight is None and f"{name}.weight" == _HEAD:
            weight = file.tensors[_EMBEDDING]  # the embedding takes its place
        if weight is not None:
            model.set_submodule(name, _loaded(module, weight, file.tensors.get(f"{name}.bias"), dtype))
        elif hasattr(module, "inv_freq"):
            # Its frequencies are computed, not stored.
            model.set_submodule(name, type(module)(config=config))
    missing = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    assert not missing, f"the file has no {missing[0]}, which its architecture has"
    return model


def _loaded(module: nn.Module, weight: GgufTensor, bias: GgufTensor | None, dtype: torch.dtype) -> nn.Module:
    """Gives a module its weights; returns it or its replacement."""
    kind = _block_type(weight)
    if isinstance(module, nn.Linear | nn.Embedding) and (kind is not None or weight.type == "F16"):
        raw = _blocks(weight)
        stored = HalfWeight(raw.view(torch.float16)) if kind is None else BlockWeight(kind, raw)
        if isinstance(module, nn.Embedding):
            return StoredEmbedding(stored)
        return StoredLinear(stored, None if bias is None else _plain(bias, dtype))
    module.weight = nn.Parameter(_plain(weight, dtype), requires_grad=False)
    if bias is not None:
        module.bias = nn.Parameter(_plain(bias, dtype), requires_grad=False)
    return module


def _blocks(weight: GgufTensor) -> torch.Tensor:
    """The blocks of a tensor, uint8 [outputs, bytes of a row]: a view of the mapped file where its order is right."""
    if not weight.permuted_heads:
        return weight.mapped
    # In memory of its own, which is free again as soon as the weight is packed.
    ordered = in_huge_pages(weight.raw)
    let_go(weight.mapped)
    return ordered


def _plain(weight: GgufTensor, dtype: torch.dtype) -> torch.Tensor:
    """The values of a tensor of plain numbers: a view of the mapped file where they have the type already."""
    values = weight.plain
    assert values is not None, "a tensor in blocks that belongs to no linear layer and no embedding"
    if values.dtype == dtype:
        return values
    converted = empty_in_huge_pages(weight.shape, dtype).copy_(values)
    let_go(weight.mapped)
    return converted


def _block_type(weight: GgufTensor) -> BlockType | None:
    return next((kind for kind in FORMATS if kind == weight.type.lower()), None)
