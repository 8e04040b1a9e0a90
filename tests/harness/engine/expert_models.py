"""Tiny models of all mixtures of experts in transformers that the engine serves."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from tests.harness.engine.engines import tiny_model

EXPERTS = 8
_SIZES: dict[str, object] = {
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "moe_intermediate_size": 64,
    "head_dim": 16,
    "num_experts_per_tok": 2,
}
_LATENT: dict[str, object] = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
}
"""Sizes of attention with latent keys and values."""
_GROUPS = {"n_group": 1, "topk_group": 1}
_ROUTED = {**_GROUPS, "n_routed_experts": EXPERTS, "n_shared_experts": 1, "first_k_dense_replace": 1}
_NUMBERED = {"num_experts": EXPERTS, "num_local_experts": EXPERTS}

EXPERT_MODELS: dict[str, dict[str, object]] = {
    "Afmoe": {**_NUMBERED, "num_dense_layers": 1, "num_shared_experts": 1},
    "AriaText": {"moe_num_experts": EXPERTS, "moe_topk": 2},
    "AXK1": {**_ROUTED, **_LATENT},
    "Beam": {**_NUMBERED, "mlp_layer_types": ["sparse", "sparse"], **_GROUPS},
    "Cohere2Moe": {**_NUMBERED, "sliding_window": 8},
    "Dbrx": {
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 2,
        "max_seq_len": 2048,
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": EXPERTS, "moe_top_k": 2, "hidden_size": 64},
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8},
    },
    "DeepseekV2": {**_ROUTED, **_LATENT},
    "DeepseekV3": {**_ROUTED, **_LATENT, "n_group": 2},
    "DeepseekV4": {**_ROUTED, "layer_types": ["sliding_attention"] * 2, "sliding_window": 8},
    "Dots1": _ROUTED,
    "Ernie4_5_Moe": {"moe_num_experts": EXPERTS, "moe_k": 2, "moe_layer_start_index": 1, "moe_num_shared_experts": 1},
    "ExaoneMoe": {**_NUMBERED, "num_shared_experts": 1, "first_k_dense_replace": 1, **_GROUPS},
    "FlexOlmo": _NUMBERED,
    "Flint": {**_NUMBERED, "mlp_only_layers": []},
    "Gemma4": {
        **_NUMBERED,
        "top_k_experts": 2,
        "enable_moe_block": True,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "global_head_dim": 16,
        "sliding_window": 8,
    },
    "Glm4Moe": _ROUTED,
    "Glm4MoeLite": {**_ROUTED, **_LATENT},
    "GptOss": {**_NUMBERED, "sliding_window": 8},
    "GraniteMoe": _NUMBERED,
    "GraniteMoeSWA": _NUMBERED,
    "GraniteMoeShared": {**_NUMBERED, "shared_intermediate_size": 64},
    "HunYuanMoEV1": {**_NUMBERED, "moe_topk": [2, 2]},
    "HYV3": {**_NUMBERED, "num_shared_experts": 1, "first_k_dense_replace": 1},
    "JetMoe": {**_NUMBERED, "kv_channels": 16, "num_attention_heads": 8, "num_key_value_heads": 4},
    "Kolibri1": {**_NUMBERED, "shared_expert_intermediate_size": 64},
    "Laguna": {**_NUMBERED, "shared_expert_intermediate_size": 64},
    "Mellum": _NUMBERED,
    "MiMoV2Flash": {**_ROUTED, "v_head_dim": 16, "swa_head_dim": 16, "swa_v_head_dim": 16, "sliding_window": 8},
    "MiniMaxM2": {**_NUMBERED, "rotary_dim": 16},
    "MiniMaxM3VL": {**_NUMBERED, "shared_intermediate_size": 64},
    "Mixtral": _NUMBERED,
    "Olmoe": _NUMBERED,
    "Phimoe": _NUMBERED,
    "Qwen2Moe": {**_NUMBERED, "shared_expert_intermediate_size": 64},
    "Qwen3Moe": _NUMBERED,
    "SolarOpen": _ROUTED,
}
"""Maps transformers' class prefix to what its configuration has besides the usual sizes."""


def expert_model(name: str, dtype: torch.dtype = torch.float32, **changes: object) -> PreTrainedModel:
    """Returns a random model of EXPERT_MODELS, with biases of its routers."""
    model = tiny_model(name, dtype, **{**_SIZES, **EXPERT_MODELS[name], **changes})
    for key, buffer in model.named_buffers():
        if "bias" in key:
            buffer.add_(torch.randn_like(buffer) * 0.05)
    return model
