"""One set of rotary factors for the whole context, for models that have one for short and one for long sequences.

LongRoPE (Ding et al. 2024, arXiv 2402.13753; Phi 3 and 4, MiniCPM 3) divides the frequencies by other factors once a
sequence is longer than the original context, and transformers then computes all keys again. Chosen per sequence, a
longer neighbour in the batch or a longer answer would change what a position sees. So one set is chosen at load, by
the declared length of the context: the short factors up to the original context, the long ones beyond.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

_LONGROPE = "longrope"
_SETTLED = "default"
"""The type of an embedding whose frequencies transformers' code leaves alone."""


def original_context(config: PretrainedConfig) -> int | None:
    """Positions up to which a model uses its short factors; None if it has one set. config: of the text decoder."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != _LONGROPE:
        return None
    original: int = rope["original_max_position_embeddings"]
    return original


def stretched_context(config: PretrainedConfig) -> int:
    """Positions up to which YaRN or linear scaling stretches the context of a model; 0 for others. The model cards of
    Qwen 3 and SmolLM 3 add YaRN to a configuration that keeps the shorter length; those of Vicuna 1.5 16k and LongChat
    keep it with linear scaling. config: of the text decoder"""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "linear":
        return int((rope.get("factor") or 0) * config.max_position_embeddings)
    if rope.get("rope_type") != "yarn":
        return 0
    return int((rope.get("factor") or 0) * (rope.get("original_max_position_embeddings") or 0))


def settle_factors(model: nn.Module, context_length: int) -> str | None:
    """Gives the embeddings of `model` the factors for sequences of up to `context_length` tokens, for good.

    Returns which, for logs: "short" or "long"; None for a model that has only one set.
    """
    chosen = None
    for embedding in model.modules():
        if getattr(embedding, "rope_type", None) != _LONGROPE:
            continue
        rope = embedding.config.rope_parameters
        is_long = context_length > rope["original_max_position_embeddings"]
        chosen = "long" if is_long else "short"
        _settle(embedding, rope, is_long)
    return chosen


@torch.no_grad()
def _settle(embedding: nn.Module, rope: dict[str, Any], is_long: bool) -> None:
    scaling = embedding.attention_scaling
    if "short_mscale" in rope:
        # Phi-3.5-MoE: transformers switches the scale alone, and keeps the short factors at every length.
        scaling = rope["long_mscale" if is_long else "short_mscale"]
    elif is_long:
        length = rope["original_max_position_embeddings"] + 1  # any length beyond it
        compute = ROPE_INIT_FUNCTIONS[_LONGROPE]
        frequencies, scaling = compute(embedding.config, embedding.inv_freq.device, seq_len=length)
        embedding.inv_freq.copy_(frequencies)
    embedding.rope_type = _SETTLED
    embedding.attention_scaling = scaling
    settled = embedding.inv_freq.clone()
    embedding.rope_init_fn = lambda *_, **__: (settled, scaling)  # Phi-3.5-MoE calls it in each pass
    embedding.config = copy.copy(embedding.config)
    embedding.config.rope_parameters = {**rope, "rope_type": _SETTLED}
