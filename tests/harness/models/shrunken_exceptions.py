"""What single architectures need besides the rules of shrunken.py, by model type."""

from __future__ import annotations

from typing import Any

_SHARED: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": 300,
    "intermediate_size": 64,
}
_MROPE: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
_DECODER: dict[str, Any] = {"is_decoder": True}
_LATENT: dict[str, Any] = {"num_key_value_heads": 4}

EXCEPTIONS: dict[str, dict[str, Any]] = {
    "gemma3n_text": {**_SHARED, "laurel_rank": 16, "activation_sparsity_pattern": None},
    "gemma4_text": {**_SHARED, "global_head_dim": 32},
    "qwen2_vl_text": _MROPE,
    "qwen2_5_vl_text": _MROPE,
    "qwen2_5_omni_text": _MROPE,
    "paddleocr_vl_text": _MROPE,
    "llama4_text": {"floor_scale": 4, "no_rope_layer_interval": 2, "interleave_moe_layer_step": 2},
    "deepseek_v2": {"topk_method": "greedy", **_LATENT},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1},
    "ministral": {"head_dim": 16},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16, "moe_topk": [2, 2, 2, 2]},
    "nemotron": {"head_dim": 16},
    "zaya": {"num_experts_per_tok": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "gemma4_assistant": {"hidden_size_per_layer_input": 0},
}
"""Fields of configurations."""
