"""Facts about a loaded model, read before its layers are replaced."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from draftwire_core.engine.model.linear.block_linear import StoredEmbedding
from draftwire_core.engine.model.linear.linear_weight import StoredLinear

WIDENED_ON_GPUS = ("f16",)
"""Types of linear layers' weights that become bfloat16 on GPUs."""


def architecture_of(model: PreTrainedModel) -> str:
    """Name of a model's class; for the text part of a multimodal model, of that one's."""
    whole: str | None = getattr(model, "text_part_of", None)
    return whole or type(model).__name__


def parameter_count(model: PreTrainedModel) -> int:
    """Number of parameters, weights in blocks included. Weights that modules share count once."""
    found = {parameter.data_ptr(): parameter.numel() for parameter in model.parameters()}
    for each in model.modules():
        if isinstance(each, StoredLinear):
            first = next(iter(each.stored.tensors.values()))
            found[first.data_ptr()] = each.out_features * each.in_features
            if each.bias is not None:
                found[each.bias.data_ptr()] = each.bias.numel()
        elif isinstance(each, StoredEmbedding):
            found[each.weight.data_ptr()] = each.num_embeddings * each.embedding_dim
    return sum(found.values())


def has_blocks(model: PreTrainedModel) -> bool:
    """Whether linear layers keep weights as they lie in a file."""
    return any(isinstance(each, StoredLinear) for each in model.modules())


def block_types(model: PreTrainedModel, *, converted: Container[str]) -> Counter[str]:
    """Number of weights of each type that linear layers keep as they lie in a file. converted: types that they do not
    keep."""
    found: Counter[str] = Counter()
    for each in model.modules():
        if isinstance(each, StoredLinear) and each.stored.type_name not in converted:
            found[each.stored.type_name] += each.out_features * each.in_features
    return found


def query_group_size(config: PreTrainedConfig) -> int | None:
    """Query heads per key-value head; None without attention heads. Where layers differ, that of which the most queries
    make a multiple of 8 rows: so many do at every layer."""
    groups = []
    told = (values_of_layers(config, name) for name in ("num_attention_heads", "num_key_value_heads"))
    for heads, kv_heads in zip(*told, strict=True):
        if not isinstance(heads, int) or heads < 1:
            return None
        groups.append(heads // int(kv_heads or heads))
    return min(groups, key=lambda size: math.gcd(8, size))


def values_of_layers(config: PreTrainedConfig, name: str) -> list[Any]:
    """A field of a configuration at each layer, None where it has none.

    Transformers refuses to read one in which layers differ, such as a head's length in Gemma 4, from the configuration
    of the whole model.
    """
    if not getattr(config, "is_heterogeneous", False):
        return [getattr(config, name, None)]
    return [getattr(each, name, None) for each in config.per_layer_config]


def most_query_heads(model: PreTrainedModel, group_size: int) -> int:
    """The most query heads per key-value head of any layer: in Laguna and Step 3.7 those with sliding windows have more
    than the others. group_size: that of the configuration"""
    groups = (getattr(each, "num_key_value_groups", None) for each in model.modules())
    return max(group_size, *(each for each in groups if isinstance(each, int)), 1)


def eos_token_ids(model: PreTrainedModel, vocab_size: int) -> tuple[int, ...]:
    """Tokens that end a text; none if the model does not say, or names only ids, such as -1, that are no tokens."""
    generation = getattr(model, "generation_config", None)
    ids = getattr(generation, "eos_token_id", None)
    if ids is None:
        ids = getattr(model.config, "eos_token_id", None)
    if ids is None:
        return ()
    named = map(int, ids if isinstance(ids, list | tuple) else [ids])
    return tuple(token for token in named if 0 <= token < vocab_size)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype without that of its package."""
    return str(dtype).removeprefix("torch.")
