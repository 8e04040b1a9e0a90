"""Tiny models whose decoder layers are fused, wholly or in part."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from tests.harness.engine.engines import tiny_model

SIZES: dict[str, object] = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32}
_GEMMA4: dict[str, object] = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 300,
    "global_head_dim": 64,
    "sliding_window": 8,
}
_DELTA: dict[str, object] = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_ROPE_OF_A_HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [6, 5, 5]}
FUSED_MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "grouped heads": ("Llama", {}),
    "a width without products of ours": ("Llama", {"intermediate_size": 176}),
    "biases everywhere": ("Llama", {"attention_bias": True}),
    "long heads": ("Llama", {"head_dim": 64, "tie_word_embeddings": True}),
    "sliding window": ("Mistral", {"sliding_window": 8}),
    "biases": ("Qwen2", {}),
    "normed heads": ("Qwen3", {}),
    "norms after blocks, softcap": ("Gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 16}),
    "two kinds of angles": (
        "Gemma3",
        {
            "sliding_window": 8,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "attn_logit_softcapping": 1.0,  # which transformers' layers of this kind do not apply
        },
    ),
    "weights that 1 is added to": ("Gemma", {}),
    "norms of all heads": ("Olmo2", {}),
    "norms of all heads, windows": ("Olmo3", {"sliding_window": 8}),
    "scaled blocks": ("Granite", {"attention_multiplier": 0.25, "residual_multiplier": 0.7}),
    "layers without positions": ("SmolLM3", {"no_rope_layer_interval": 2}),
    "positions in windows alone": (
        "Exaone4",
        {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "joined weights": ("Phi3", {}),
    "partial rotary": (
        "Phi3",
        {"head_dim": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "rotary of half a vector": (
        "Phi3",
        {"head_dim": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}},
    ),
    "rotary of a vector and a half": (
        "Phi3",
        {"head_dim": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}},
    ),
    "windows of some layers": ("Ministral", {"sliding_window": 8}),
    "biases of projections": ("SeedOss", {}),
    "softcap without norms after blocks": ("VaultGemma", {"sliding_window": 8, "query_pre_attn_scalar": 16}),
    "normed values, keys as values": (
        "Gemma4",
        {**_GEMMA4, "num_kv_shared_layers": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    ),
    "inputs by token, shared keys": ("Gemma4", {**_GEMMA4, "num_kv_shared_layers": 2, "use_double_wide_mlp": True}),
    "gated attention, delta nets": ("Qwen3_5", {**_DELTA, "rope_parameters": _ROPE_OF_A_HALF}),
    "gated attention of few positions, unequal delta nets": (
        "Qwen3_5",
        {**_DELTA, "linear_num_value_heads": 20, "linear_key_head_dim": 32, "partial_rotary_factor": 0.25},
    ),
}
_EXPERTS: dict[str, object] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}
_SHARED_EXPERT: dict[str, object] = {**_EXPERTS, "n_shared_experts": 1, "first_k_dense_replace": 1}
PARTLY_FUSED: dict[str, tuple[str, dict[str, object]]] = {
    "experts": ("Mixtral", {**_EXPERTS, "sliding_window": 8}),
    "experts, normed heads": ("Qwen3Moe", {**_EXPERTS, "mlp_only_layers": [1]}),
    "experts, sinks": ("GptOss", {**_EXPERTS, "sliding_window": 8}),
    "experts, sinks, positions in windows alone": (
        "Flint",
        {
            **_EXPERTS,
            "mlp_only_layers": [1],
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "experts, norms of all heads": ("Olmoe", _EXPERTS),
    "experts, norms after blocks": ("FlexOlmo", _EXPERTS),
    "experts, scaled blocks": ("GraniteMoe", {**_EXPERTS, "residual_multiplier": 0.7}),
    "experts beside a dense block": ("GraniteMoeShared", {**_EXPERTS, "shared_intermediate_size": 64}),
    "experts, each with norms": (
        "Gemma4",
        {
            **_GEMMA4,
            **_EXPERTS,
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "top_k_experts": 2,
        },
    ),
    "experts, partial rotary": (
        "Glm4Moe",
        {
            **_SHARED_EXPERT,
            "head_dim": 64,
            "use_qk_norm": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        },
    ),
    "experts, positions in windows alone": (
        "ExaoneMoe",
        {**_SHARED_EXPERT, "sliding_window": 8, "num_shared_experts": 1, "n_group": 1, "topk_group": 1},
    ),
    "gated attention, delta nets, experts": (
        "Qwen3Next",
        {**_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 64, "partial_rotary_factor": 0.5},
    ),
    "norms after blocks, delta nets": ("OlmoHybrid", {**_DELTA, "num_attention_heads": 4}),
    "short convolutions": (
        "Lfm2",
        {"layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
    ),
    "no positions, scans": (
        "Jamba",
        {
            **_EXPERTS,
            "mamba_d_state": 16,
            "mamba_dt_rank": 8,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
        },
    ),
    "scaled blocks, scans": (
        "GraniteMoeHybrid",
        {
            **_EXPERTS,
            "layer_types": ["mamba", "attention", "mamba"],
            "mamba_n_heads": 8,
            "mamba_d_head": 32,
            "mamba_d_state": 16,
            "shared_intermediate_size": 64,
            "attention_multiplier": 0.25,
            "residual_multiplier": 0.7,
            "position_embedding_type": "rope",
        },
    ),
    "a block without a gate": ("Arcee", {}),
    "a block without a gate, normed heads": ("Apertus", {}),
    "heads of another size": ("Llama", {"head_dim": 16}),
    "a width without a gate of ours": ("Llama", {"intermediate_size": 172}),
    "a gate of theirs": ("Llama", {"hidden_act": "gelu"}),
    "a gate of theirs, norms after blocks": ("Gemma2", {"hidden_activation": "gelu", "query_pre_attn_scalar": 16}),
}
"""Layers of which some blocks stay transformers' code."""


def fused_model(case: str, dtype: torch.dtype = torch.float32, **changes: object) -> PreTrainedModel:
    """Returns a random model of FUSED_MODELS or PARTLY_FUSED."""
    name, own = {**FUSED_MODELS, **PARTLY_FUSED}[case]
    return tiny_model(name, dtype, **{**SIZES, **own, **changes})
