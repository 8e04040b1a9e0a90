"""Tiny models of the kinds of attention that transformers' decoders have."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from tests.harness.engine.engines import tiny_model

_SHARED: dict[str, object] = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 300,
    "head_dim": 16,
    "sliding_window": 8,
}
_LATENT: dict[str, object] = {
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
}
_ROUTED: dict[str, object] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 64,
}
_PHI: dict[str, object] = {"original_max_position_embeddings": 32}


def longrope(original: int = 32, heads: int = 8, **changes: object) -> dict[str, object]:
    """Rotary parameters with two sets of factors; the short ones are for up to `original` positions."""
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.1 * step for step in range(heads)],
        "long_factor": [1.0 + step for step in range(heads)],
        "original_max_position_embeddings": original,
        **changes,
    }


ATTENTION_MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "chunks and scaled queries": (
        "Llama4",
        {
            "num_hidden_layers": 4,
            "head_dim": 16,
            "num_local_experts": 4,
            "attention_chunk_size": 8,
            "no_rope_layer_interval": 2,
            "floor_scale": 4,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 96,
        },
    ),
    "shared keys and values": ("Gemma4", {**_SHARED, "global_head_dim": 32, "use_double_wide_mlp": True}),
    "keys as values": (
        "Gemma4",
        {
            **_SHARED,
            "global_head_dim": 32,
            "num_kv_shared_layers": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
        },
    ),
    "shared keys, predicted layers": ("Gemma3n", {**_SHARED, "laurel_rank": 16, "intermediate_size": 96}),
    "no rotary layers": ("SmolLM3", {"no_rope_layer_interval": 2}),
    "sinks": ("GptOss", {"head_dim": 16, "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "softcap": ("Gemma2", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}),
    "window of the mask alone": (
        "Phimoe",
        {"sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 96},
    ),
    "normed heads": ("Qwen3", {"head_dim": 16}),
    "normed projections": ("Olmo2", {}),
    "partial rotary": (
        "Phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "latent": ("MiniCPM3", {**_LATENT, "q_lora_rank": 32}),
    "latent, interleaved": ("DeepseekV2", {**_LATENT, **_ROUTED, "q_lora_rank": None, "num_hidden_layers": 2}),
    "latent, experts": ("DeepseekV3", {**_LATENT, **_ROUTED, "q_lora_rank": 32, "num_hidden_layers": 2}),
    "latent, partial": ("Glm4MoeLite", {**_LATENT, **_ROUTED, "q_lora_rank": 32, "num_hidden_layers": 2}),
}
"""Maps kinds of attention to transformers' class prefix and what its configuration has besides the usual sizes."""

LONG_MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "Phi 3": ("Phi3", {**_PHI, "rope_parameters": longrope()}),
    "Phi 4 mini": ("Phi3", {**_PHI, "rope_parameters": longrope(heads=4, partial_rotary_factor=0.5)}),
    "MiniCPM 3": ("MiniCPM3", {**_LATENT, "q_lora_rank": 32, "rope_parameters": longrope()}),
    "Phi 3.5 MoE": (
        "Phimoe",
        {
            "rope_parameters": longrope(short_mscale=1.1, long_mscale=1.3),
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "intermediate_size": 96,
        },
    ),
}
"""Models with two sets of rotary factors."""


def attention_model(kind: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Returns a random model of ATTENTION_MODELS or LONG_MODELS."""
    name, changes = {**ATTENTION_MODELS, **LONG_MODELS}[kind]
    return tiny_model(name, dtype, **changes)
