"""What single architectures need besides the rules of shrunken.py, by model type."""

from __future__ import annotations

from typing import Any

_MIXED = {"layer_types": ["linear_attention", "full_attention"] * 2}
_CONVOLUTIONS = {"layer_types": ["conv", "full_attention"] * 2}
_SHARED: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "intermediate_size": 64,
}
_SECTIONS: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}}
_FEW_SECTIONS: dict[str, Any] = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
}
_SCALED = {"attention_multiplier": 0.2}
_ROUTED: dict[str, Any] = {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
_WIDTH = 128

EXCEPTIONS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3], "mamba_n_heads": 8, "mamba_d_head": 16},
    "blt": {"encoder_hash_byte_group_size": [3, 4], "encoder_hash_byte_group_vocab": 50},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("sliding_attention", "full_attention")
        },
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": _WIDTH},
        "initializer_range": 0.15,
    },
    "deepseek_v2": {"topk_method": "greedy", "num_key_value_heads": 4, **_ROUTED, "num_experts_per_tok": 2},
    "deepseek_v4": {"mlp_layer_types": ["moe"] * 4, "n_shared_experts": 1, "o_groups": 2},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "emu3": {"vocabulary_map": {"<image>": 5}},
    "dots1": {**_ROUTED, "num_experts_per_tok": 2},
    "falcon_h1": {"mamba_d_ssm": _WIDTH, "mamba_n_heads": 8, "mamba_d_head": 16},
    "gemma3n_text": {**_SHARED, "laurel_rank": 16, "activation_sparsity_pattern": None},
    "gemma4_text": {**_SHARED, "global_head_dim": 64},
    "glm4v_moe_text": _FEW_SECTIONS,
    "glm4v_text": _SECTIONS,
    "glm_ocr_text": _SECTIONS,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granite": _SCALED,
    "granite_docling_text": _SCALED,
    "granite_docling_vision": {"out_hidden_size": _WIDTH},
    "granite_swa": _SCALED,
    "granitemoe": _SCALED,
    "granitemoe_swa": _SCALED,
    "granitemoeshared": _SCALED,
    "granitemoehybrid": {**_MIXED, **_SCALED, "mamba_n_heads": 8, "mamba_d_head": 16},
    "hunyuan_v1_dense": {"head_dim": 32},
    "hunyuan_vl_text": {"head_dim": 32},
    "hunyuan_v1_moe": {"head_dim": 32, "moe_topk": [2] * 4},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": _CONVOLUTIONS,
    "lfm2_moe": _CONVOLUTIONS,
    "llama4_text": {"floor_scale": 4, "no_rope_layer_interval": 2, "interleave_moe_layer_step": 2},
    "longcat_flash": {
        "head_dim": 16,
        "expert_ffn_hidden_size": 64,
        "moe_topk": 2,
        "zero_expert_num": 1,
        "qk_head_dim": None,
    },
    "ministral": {"head_dim": 32},
    "moshi": {"audio_vocab_size": 60},
    "nemotron": {"head_dim": 32, "num_key_value_heads": 2},
    "nemotron_h": {
        "layer_types": ["linear_attention", "moe", "full_attention", "mlp"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
    },
    "paddleocr_vl_text": _SECTIONS,
    "qwen2_5_omni_text": _SECTIONS,
    "qwen2_5_vl_text": _SECTIONS,
    "qwen2_vl_text": _SECTIONS,
    "qwen3_5_moe_text": {"head_dim": 128},
    "qwen3_5_text": {"head_dim": 128},
    "qwen3_next": {"head_dim": 128},
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 32,
        "indexer_budget": 64,
        "indexer_compress_ratio": 4,
        "ngram_vocab_size_base": 100,
        "ple_embed_dim": 64,
    },
    "reformer": {"attn_layers": ["local", "lsh"] * 2, "axial_pos_embds": False, "attention_head_size": 32},
    "xmod": {"default_language": "en_XX"},
    "xlm": {"emb_dim": _WIDTH, "causal": True},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_hidden_size": 2 * _WIDTH,
        "attention_head_dim": 64,
    },
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "num_key_value_heads": 4, "mamba_expand": 2},
    "zaya": {"num_experts_per_tok": 1},
}
"""Fields of configurations."""
