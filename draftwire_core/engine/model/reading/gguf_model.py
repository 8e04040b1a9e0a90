"""Makes a model of transformers from a GGUF file, with weights in blocks as they lie in the file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from math import prod

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile
from draftwire_core.engine.checkpoint.gguf.gguf_repacking import REPACKINGS, repacked
from draftwire_core.engine.checkpoint.gguf.gguf_tensor import GgufTensor
from draftwire_core.engine.checkpoint.load_errors import stop_if_abandoned
from draftwire_core.engine.kernels.huge_pages import empty_in_huge_pages, in_huge_pages
from draftwire_core.engine.kernels.products.gemm_blocks import FORMATS, BlockType
from draftwire_core.engine.model.file_pages import let_go
from draftwire_core.engine.model.linear.block_linear import StoredEmbedding
from draftwire_core.engine.model.linear.block_weight import BlockWeight
from draftwire_core.engine.model.linear.half_weight import HalfWeight
from draftwire_core.engine.model.linear.linear_weight import StoredLinear

log = logging.getLogger(__name__)

_VALUES_AT_ONCE = 1 << 20
"""Values that are converted at once, which bounds the memory for them as float32 numbers."""
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


def gguf_model(file: GgufFile, config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Makes the model of a file on the CPU.

    Weights in blocks and in float16 stay views of the mapped file: linear layers are `StoredLinear`, and the embedding
    is a `StoredEmbedding`. Blocks without a product of their own become blocks of another type with the same values, or
    float16 if no type has these values; one warning names these types and what they cost. Other weights are converted
    to `dtype`.

    config: the file's, with all layers or only the first ones. Raises ModelLoadError.
    """
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    embedding: BlockWeight | HalfWeight | None = None
    for name, module in list(model.named_modules()):
        weight = file.tensors.get(f"{name}.weight")
        if weight is None and f"{name}.weight" == _HEAD:  # the embedding takes its place, and is converted once
            weight, stored = file.tensors[_EMBEDDING], embedding
        elif weight is not None and isinstance(module, nn.Linear | nn.Embedding):
            stored = stored_weight(weight)
        else:
            stored = None
        if f"{name}.weight" == _EMBEDDING:
            embedding = stored
        if weight is not None:
            model.set_submodule(name, _loaded(module, weight, stored, file.tensors.get(f"{name}.bias"), dtype))
        elif any(buffer.endswith("inv_freq") for buffer, _ in module.named_buffers(recurse=False)):
            # Its frequencies are computed, not stored.
            model.set_submodule(name, type(module)(config=config))
    _warn_of_conversions(file)
    missing = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    assert not missing, f"the file has no {missing[0]}, which its architecture has"
    return model


def _loaded(
    module: nn.Module,
    weight: GgufTensor,
    stored: BlockWeight | HalfWeight | None,
    bias: GgufTensor | None,
    dtype: torch.dtype,
) -> nn.Module:
    """Gives a module its weights; returns it or its replacement. stored: the weight as it is computed with, if not in
    `dtype`."""
    scale = getattr(module, "scalar_embed_scale", None)
    if stored is not None:
        if isinstance(module, nn.Embedding):
            return StoredEmbedding(stored, scale)
        return StoredLinear(stored, None if bias is None else _plain(bias, dtype))
    module.weight = nn.Parameter(_plain(weight, dtype), requires_grad=False)
    if bias is not None:
        module.bias = nn.Parameter(_plain(bias, dtype), requires_grad=False)
    if scale is not None:  # a constant, which the module was made without
        module.embed_scale = torch.tensor(scale)
    return module


def stored_weight(weight: GgufTensor) -> BlockWeight | HalfWeight | None:
    """The weight as it is computed with; None for one in float32 or bfloat16."""
    kind = _block_type(weight.type)
    if kind is not None:
        return BlockWeight(kind, _blocks(weight))
    if weight.type == "F16":
        return HalfWeight(_blocks(weight).view(torch.float16))
    if weight.plain is not None:
        return None
    repacking = REPACKINGS.get(weight.type)
    if repacking is None:
        return HalfWeight(_halves(weight))
    form, inputs = FORMATS[repacking.into], weight.shape[1]
    found = empty_in_huge_pages((weight.shape[0], inputs // form.inputs * form.size), torch.uint8)
    for part, into in _in_parts(weight, found):
        into.copy_(repacked(weight.type, part.raw))
    return BlockWeight(repacking.into, found)


def _halves(weight: GgufTensor) -> torch.Tensor:
    """The values of a tensor in blocks, rounded to float16 [outputs, inputs]; beyond its range, its largest ones."""
    found = empty_in_huge_pages(weight.shape, torch.float16)
    most = torch.finfo(torch.float16).max
    for part, into in _in_parts(weight, found):
        into.copy_(part.dequantised().clamp_(-most, most))
    return found


def _in_parts(weight: GgufTensor, found: torch.Tensor) -> Iterator[tuple[GgufTensor, torch.Tensor]]:
    """Parts of a tensor's rows with those of what it becomes, so that memory for the conversion is bounded.

    The tensor is taken out of this process's memory at the end.
    """
    raw = weight.raw
    at_once = max(1, _VALUES_AT_ONCE // weight.shape[1])
    for part, into in zip(raw.split(at_once), found.split(at_once), strict=True):
        stop_if_abandoned()
        yield GgufTensor(weight.type, (len(part), weight.shape[1]), part), into
    let_go(weight.mapped)


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
    if weight.added:
        return weight.dequantised().to(dtype)
    if values.dtype == dtype:
        return values
    converted = empty_in_huge_pages(weight.shape, dtype).copy_(values)
    let_go(weight.mapped)
    return converted


def _block_type(type_name: str) -> BlockType | None:
    return next((kind for kind in FORMATS if kind == type_name.lower()), None)


def _warn_of_conversions(file: GgufFile) -> None:
    """Logs which types of the file became float16, since their products read more bytes than the file has."""
    sizes: dict[str, list[int]] = {}
    for tensor in file.tensors.values():
        if tensor.plain is None and _block_type(tensor.type) is None and tensor.type not in REPACKINGS:
            size = sizes.setdefault(tensor.type, [0, 0])
            size[0] += tensor.mapped.nbytes
            size[1] += 2 * prod(tensor.shape)
    for name, (before, after) in sizes.items():
        log.warning(
            "tensors converted to float16",
            extra={"file": str(file.path), "type": name, "mib_in_file": before >> 20, "mib_in_memory": after >> 20},
        )
