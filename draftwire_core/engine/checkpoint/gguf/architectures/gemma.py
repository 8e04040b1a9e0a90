"""The architectures of Gemma's models."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import PretrainedConfig

from draftwire_core.engine.checkpoint.gguf.architectures.dense import PATTERN, SLIDING, kinds_of_layers
from draftwire_core.engine.checkpoint.gguf.architectures.gguf_architecture import (
    EXPERTS,
    NORMS_PLUS_ONE,
    GgufArchitecture,
    GgufRule,
    Values,
)
from draftwire_core.engine.checkpoint.gguf.architectures.gguf_change import GgufChange, Stacked
from draftwire_core.engine.checkpoint.gguf.architectures.gguf_keys import FACTORS, GgufKeys

_LAYERS_OF_27B = {2: 46, 3: 62}
"""Layers of the largest models of Gemma 2 and 3."""
_BASE = 10000.0
"""Base of the rotary embedding of layers with a window in files that give none, as in llama.cpp."""


def _scalar(values: Values, generation: int) -> int:
    """The number whose root divides the scores."""
    # As in llama.cpp: 27B is the only size of which it is not the length of a head.
    if values["num_hidden_layers"] == _LAYERS_OF_27B[generation]:
        return int(values["hidden_size"]) // int(values["num_attention_heads"])
    return int(values["head_dim"])


def _rotary(keys: GgufKeys, values: Values) -> Values:
    """The rotary embeddings of the two kinds of layers."""
    full = values["rope_parameters"]
    if full["rope_type"] == "llama3":
        raise keys.header.metadata.tensor_refusal(FACTORS, f"is not supported for architecture {keys.name}")
    sliding = {"rope_type": "default", "rope_theta": keys.positive("rope.freq_base_swa", _BASE)}
    return {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}


def _gemma2(keys: GgufKeys, values: Values) -> Values:
    return {
        "sliding_window": keys.length(SLIDING, 4096),
        "layer_types": kinds_of_layers(keys.sliding(PATTERN, 2)),
        "query_pre_attn_scalar": _scalar(values, 2),
        "attn_logit_softcapping": keys.positive("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.positive("final_logit_softcapping", 30.0),
    }


def _gemma3(keys: GgufKeys, values: Values) -> Values:
    window = keys.length(SLIDING, 0)
    sliding = keys.sliding(PATTERN, 6) if window else [False] * keys.layers
    fields = {
        "layer_types": kinds_of_layers(sliding),
        "query_pre_attn_scalar": _scalar(values, 3),
        "final_logit_softcapping": keys.number("final_logit_softcapping", 0.0) or None,
    }
    return fields | _rotary(keys, values) | ({"sliding_window": window} if window else {})


def _rows(keys: GgufKeys, tensor: str) -> int:
    """The rows of a tensor. Raises ModelLoadError."""
    found = keys.header.tensors.get(tensor)
    if found is None:
        raise keys.header.metadata.tensor_refusal(tensor, "is missing")
    return found.shape[0]


def _per_layer(keys: GgufKeys) -> Values:
    """Embeddings of layers, and what else Gemma 3n and 4 have in common."""
    width = keys.count("embedding_length_per_layer_input", 0)
    return {
        "hidden_size_per_layer_input": width,
        "vocab_size_per_layer_input": _rows(keys, "per_layer_token_embd.weight") if width else 1,
        "num_kv_shared_layers": keys.count("attention.shared_kv_layers", 0),
        "sliding_window": keys.length(SLIDING),
        "final_logit_softcapping": keys.number("final_logit_softcapping", 0.0) or None,
    }


def _gemma3n(keys: GgufKeys, values: Values) -> Values:
    inputs, scales = keys.size("altup.num_inputs"), "activation_sparsity_scale"
    if inputs != 1 + _PROJECTIONS:
        raise keys.refusal("altup.num_inputs", f"is {inputs}; only {1 + _PROJECTIONS} is supported")
    deviations = torch.tensor([float(number) for number in keys.numbers(scales, keys.layers)], dtype=torch.float64)
    fields = {
        "layer_types": kinds_of_layers(keys.sliding(PATTERN, 5)),
        "intermediate_size": keys.sizes("feed_forward_length"),
        "altup_active_idx": keys.count("altup.active_idx", 0),
        "altup_num_inputs": inputs,
        "laurel_rank": _rows(keys, "blk.0.laurel_l.weight"),
        # The file has the quantiles.
        "activation_sparsity_pattern": [
            round(share, 6) for share in torch.distributions.Normal(0.0, 1.0).cdf(deviations).tolist()
        ],
    }
    return _per_layer(keys) | _rotary(keys, values) | fields


def _gemma4(keys: GgufKeys, values: Values) -> Values:
    sliding = keys.sliding(PATTERN, 6)
    widths = keys.sizes("feed_forward_length")
    shared = keys.count("attention.shared_kv_layers", 0)
    first_shared = keys.layers - shared
    wide = any(width != widths[0] for width in widths)
    if wide and widths != [widths[0]] * first_shared + [2 * widths[0]] * shared:
        raise keys.refusal("feed_forward_length", f"is {widths[:8]}: not supported")
    kv_heads = keys.sizes("attention.head_count_kv")
    of_full = {heads for heads, slides in zip(kv_heads, sliding, strict=True) if not slides}
    of_sliding = {heads for heads, slides in zip(kv_heads, sliding, strict=True) if slides}
    if len(of_full) != 1 or len(of_sliding) != 1:
        raise keys.refusal("attention.head_count_kv", f"is {kv_heads[:8]}: not supported")
    full = [layer for layer, slides in enumerate(sliding[:first_shared]) if not slides]
    fields = _per_layer(keys) | {
        "layer_types": kinds_of_layers(sliding),
        "head_dim": keys.size("attention.key_length_swa"),
        "global_head_dim": keys.size("attention.key_length"),
        "intermediate_size": widths[0],
        "use_double_wide_mlp": wide,
        "num_key_value_heads": of_sliding.pop(),
        "num_global_key_value_heads": of_full.pop(),
        # In such models keys are the values of layers that see all tokens.
        "attention_k_eq_v": any(
            not (keys.layers_with("attn_v.weight")[layer] or keys.layers_with("attn_qkv.weight")[layer])
            for layer in full
        ),
        "enable_moe_block": False,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": keys.positive("rope.freq_base", _BASE),
                "partial_rotary_factor": _rotated_share(keys),
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": keys.positive("rope.freq_base_swa", _BASE)},
        },
    }
    if not fields["attention_k_eq_v"]:
        fields["num_global_key_value_heads"] = None
    if keys.count("expert_count", 0):
        fields |= {
            "enable_moe_block": True,
            "num_experts": keys.size("expert_count"),
            "top_k_experts": keys.size("expert_used_count"),
            "moe_intermediate_size": keys.size("expert_feed_forward_length"),
        }
    return fields


def _rotated_share(keys: GgufKeys) -> float:
    """The share of a head that is rotated in layers that see all tokens: the frequencies of the rest are divided by a
    number so large that nothing is left."""
    factors = keys.factors.get(FACTORS)
    if factors is None:
        return 1.0
    numbers = factors.dequantised()
    rotated = int((numbers == 1).sum())
    if not (numbers[:rotated] == 1).all() or not (numbers[rotated:] > _NO_FREQUENCY).all():
        raise keys.header.metadata.tensor_refusal(FACTORS, "has other factors than those of Gemma 4: not supported")
    return rotated / len(numbers)


_PROJECTIONS = 3
"""Projections to and from the streams of Gemma 3n but the first one."""
_NO_FREQUENCY = 1e20


def _stacked(parameter: str, tensor: str) -> tuple[GgufRule, ...]:
    """The rules for projections that are one tensor."""
    changes = [Stacked(index, _PROJECTIONS) for index in range(_PROJECTIONS)]
    return tuple(
        GgufRule(rf"\.{parameter}\.{change.index}\.weight", partial(_fixed, change), (tensor,)) for change in changes
    )


def _fixed(change: GgufChange, config: PretrainedConfig) -> GgufChange:
    return change


_SHARED = r"blk\.\d+\.attn_(k|v|k_norm)\.weight"
"""Tensors of layers that use the keys and values of earlier ones; checkpoints have them, too."""
_PER_LAYER: dict[str, Any] = {"kv_heads_by_layer": True, "feed_forward": False, "unused": _SHARED}

GEMMA = (
    GgufArchitecture("gemma", "gemma", rules=NORMS_PLUS_ONE),
    GgufArchitecture("gemma2", "gemma2", read=_gemma2, rules=NORMS_PLUS_ONE),
    GgufArchitecture("gemma3", "gemma3_text", read=_gemma3, rules=NORMS_PLUS_ONE),
    GgufArchitecture(
        "gemma3n",
        "gemma3n_text",
        read=_gemma3n,
        rules=(
            *_stacked("altup_projections", "altup_proj.weight"),
            *_stacked("altup_unembed_projections", "altup_unembd_proj.weight"),
            GgufRule(r"altup\.correct_output_scale", names=("altup_correct_scale.weight",)),
        ),
        **_PER_LAYER,
    ),
    GgufArchitecture(
        "gemma4",
        "gemma4_text",
        read=_gemma4,
        rules=(
            *EXPERTS,
            GgufRule(r"\.layer_scalar", names=("layer_output_scale.weight",)),
            GgufRule(r"\.router\.scale", names=("ffn_gate_inp.scale",)),
            GgufRule(r"\.router\.per_expert_scale", names=("ffn_down_exps.scale",)),
        ),
        fixed_rotary=True,
        mixture=None,
        **_PER_LAYER,
    ),
)
"""The architectures."""
