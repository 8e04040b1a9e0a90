"""The rotary embedding of the model in a GGUF file, as transformers' parameters of it."""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from draftwire_core.engine.checkpoint.gguf.architectures.gguf_architecture import GgufArchitecture
from draftwire_core.engine.checkpoint.gguf.architectures.gguf_keys import FACTORS, GgufKeys

LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
"""The tensors of the factors for long and short contexts, as in Phi 3."""
_BASE = 10000.0
"""Base in files that give none, as in llama.cpp."""
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Scaling in the models since Llama 3.1, but for the factor."""


def rotary(keys: GgufKeys, architecture: GgufArchitecture, head: int) -> dict[str, Any]:
    """The parameters.

    head: values of a head. Raises ModelLoadError, which names the file and the key or tensor.
    """
    tensors = keys.factors
    rotated = keys.size("rope.dimension_count", head)
    if rotated != head and (not architecture.partly_rotated or rotated % 2 or rotated > head):
        why = f"is {rotated}, not the length of a key, {head}: not supported"
        raise keys.refusal("rope.dimension_count", why)
    found = {"rope_type": "default", "rope_theta": keys.positive("rope.freq_base", _BASE)}
    if architecture.partly_rotated:
        found["partial_rotary_factor"] = rotated / head
    if LONG in tensors or SHORT in tensors:
        return found | _long(keys)
    for key, usual in (("attn_factor", 1.0), ("yarn_ext_factor", 1.0)):
        if keys.number(f"rope.scaling.{key}", usual) != usual:
            raise keys.refusal(
                f"rope.scaling.{key}", f"is {keys.number(f'rope.scaling.{key}')}; only {usual} is supported"
            )
    # Without a type, a factor scales linearly. The key of old files is the second one.
    kind = keys.text("rope.scaling.type") if "rope.scaling.type" in keys else "linear"
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0.0)) or 1.0
    if factor < 1:
        raise keys.refusal("rope.scaling.factor", f"is {factor}; must be at least 1")
    if kind == "yarn":
        found |= {"rope_type": "yarn", "factor": factor} | _yarn(keys, factor)
    elif kind == "linear" and factor != 1:
        found |= {"rope_type": "linear", "factor": factor}
    elif kind not in ("linear", "none"):
        raise keys.refusal("rope.scaling.type", f"{kind[:64]!r} is not supported; supported are none, linear and yarn")
    if FACTORS not in tensors:
        return found
    if found["rope_type"] != "default":
        raise keys.refusal("rope.scaling.type", f"{kind} together with the tensor {FACTORS} is not supported")
    return found | {"rope_type": "llama3", "factor": float(tensors[FACTORS].dequantised().max())} | _LLAMA3


def check_factors(config: PretrainedConfig, keys: GgufKeys) -> None:
    """Raises ModelLoadError unless the configuration gives the frequencies that the file's factors give."""
    rope, factors = config.rope_parameters, keys.factors[FACTORS]
    # Layers of different kinds may have embeddings of their own; the scaled one is that of layers that see all tokens.
    rope = rope.get("full_attention", rope)
    if rope["rope_type"] != "llama3":
        raise keys.header.metadata.tensor_refusal(FACTORS, f"is not supported for architecture {keys.name}")
    head = 2 * factors.shape[0]
    steps = torch.arange(0, head, 2, dtype=torch.float32) / head
    expected = rope["rope_theta"] ** -steps / factors.dequantised()
    plain = PretrainedConfig(
        rope_parameters=rope, head_dim=head, hidden_size=head, num_attention_heads=1,
        max_position_embeddings=config.max_position_embeddings,
    )  # fmt: skip
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](plain, "cpu")
    if not torch.allclose(frequencies, expected, rtol=1e-4, atol=0.0):
        raise keys.header.metadata.tensor_refusal(FACTORS, "has other factors than those of Llama 3.1: not supported")


def _yarn(keys: GgufKeys, factor: float) -> dict[str, Any]:
    original = keys.length("rope.scaling.original_context_length")
    if original == 0:
        raise keys.refusal("rope.scaling.original_context_length", "is 0; must be positive")
    found: dict[str, Any] = {"original_max_position_embeddings": original}
    attention = keys.number("rope.scaling.yarn_attn_factor", 1.0)
    if attention != 1:  # a multiple of the usual one, which is transformers' default
        found["attention_factor"] = attention * (0.1 * math.log(factor) + 1)
    for key in ("beta_fast", "beta_slow"):
        if f"rope.scaling.yarn_{key}" in keys:
            found[key] = keys.number(f"rope.scaling.yarn_{key}")
    multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
    if multiplier:
        if attention != 1:
            why = f"is {multiplier}, which is not supported together with {keys.full('rope.scaling.yarn_attn_factor')}"
            raise keys.refusal("rope.scaling.yarn_log_multiplier", why)
        found |= {"mscale": 1.0, "mscale_all_dim": multiplier}
    return found


def _long(keys: GgufKeys) -> dict[str, Any]:
    """Two sets of factors, one for the original context and one for longer ones."""
    tensors = keys.factors
    for name, other in ((LONG, SHORT), (SHORT, LONG)):
        if name not in tensors:
            raise keys.header.metadata.tensor_refusal(name, f"is missing, but there is {other}")
    return {
        "rope_type": "longrope",
        "long_factor": tensors[LONG].dequantised().tolist(),
        "short_factor": tensors[SHORT].dequantised().tolist(),
        "original_max_position_embeddings": keys.length("rope.scaling.original_context_length"),
        "attention_factor": keys.positive("rope.scaling.attn_factor", 1.0),
    }
