"""Tiny random models of any class of transformers, from its own default configuration.

A rule for each kind of size makes a configuration small; `EXCEPTIONS` has what single architectures need besides.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.harness.models.shrunken_exceptions import EXCEPTIONS

VOCABULARY = 300
WIDTH = 128
"""Of the residual stream: with heads of 32, layers can be fused."""
LAYERS = 4
EXPERTS = 4
_RANGE = 0.15
"""Standard deviation of weights: large enough for sharp attention and well-separated logits."""

_RULES: tuple[tuple[str, object], ...] = (
    (r"vocab_size(_per_layer_input)?|n_vocab|audio_vocab_size", VOCABULARY),
    (r"hidden_size|d_model|n_embd|embed_dim|dim|embedding_size|word_embed_proj_dim|hidden_dim|model_dim", WIDTH),
    (r"attention_hidden_size|mamba_d_ssm", WIDTH),
    (r"(moe_|shared_|shared_expert_|dense_)?(intermediate_size|ffn_dim|ffn_hidden_size)(_mlp)?", 64),
    (r"(encoder|decoder)_ffn_dim|n_inner|d_ff|ffn_size|moe_shared_expert_intermediate_size|feed_forward_size", 64),
    (r"num_hidden_layers|n_layers?|num_layers|(en|de)coder_layers|num_(en|de)coder_layers|depth", LAYERS),
    (r"(num_|n_|(en|de)coder_)(attention_)?heads?|num_(en|de)coder_attention_heads", 4),
    (r"(swa_|global_|lightning_)?head_dim|d_head|d_kv|attention_head_dim|kv_channels", 32),
    (r"(swa_|global_)?v_head_dim|qk_rope_head_dim|qk_nope_head_dim|rotary_dim", 16),
    (r"qk_head_dim", 32),
    (r"(q|kv|o)_lora_rank|laurel_rank", 32),
    (r"num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_routed_experts", EXPERTS),
    (r"num_experts_per_tok(en)?|moe_top_?k|top_k_experts|moe_k|num_experts_per_token|num_selected_experts", 2),
    (r"n_shared_experts|num_shared_experts|moe_num_shared_experts", 1),
    (r"first_k_dense_replace|num_dense_layers|moe_layer_start_index", 1),
    (r"n_group|topk_group|num_expert_group|num_expert_groups", 1),
    (r"sliding_window|attention_window|local_attention|window_size|attention_window_size", 8),
    (r"hidden_size_per_layer_input", 16),
    (r"max_position_embeddings|n_positions|n_ctx|max_seq_len|seq_length|max_sequence_length", 2048),
    (r"mamba_n_heads|mamba_num_heads|linear_num_value_heads|num_mamba_heads|n_mamba_heads", 4),
    (r"linear_num_key_heads", 2),
    (r"mamba_d_head|mamba_head_dim|linear_(key|value)_head_dim|time_step_rank", 16),
    (r"mamba_d_state|ssm_state_size|state_size", 16),
    (r"mamba_expand|expand", 1),
    (r"mamba_n_groups|n_groups|mamba_ngroups", 1),
    (r"mamba_chunk_size|chunk_size", 16),
    (r"attention_chunk_size", 8),
    (r"index_topk|index_head_dim|index_n_heads", 16),
    (r"pad_token_id", 0),
    (r"bos_token_id", 1),
    (r"eos_token_id", 2),
    (r"is_decoder", True),
    (r"initializer_range|init_std|initializer_factor", _RANGE),
)
"""Patterns of fields' names, each with the value of a tiny model. The first that fits counts."""
_KV_HEADS = re.compile(r"(swa_|global_)?num_(key_value|kv|global_key_value)_heads|kv_n_heads|num_key_value_heads")


def shrunken_config(kind: str | type[PretrainedConfig]) -> PretrainedConfig:
    """The tiny configuration of a model type or of a class. Raises whatever transformers raises for it."""
    found = CONFIG_MAPPING[kind] if isinstance(kind, str) else kind
    return found(**_changes(found))


def _changes(kind: type[PretrainedConfig]) -> dict[str, Any]:
    exceptions = EXCEPTIONS.get(kind.model_type, {})
    default = kind()
    values = {name: value for name, value in vars(default).items() if not name.startswith("_")}
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, PretrainedConfig):
            changes[name] = _changes(type(value))
            changes[name]["model_type"] = value.model_type
            continue
        if value is None or (isinstance(value, bool) and name != "is_decoder"):
            continue
        if _KV_HEADS.fullmatch(name):
            changes[name] = 2 if _few_kv_heads(values, name) else 4
            continue
        for pattern, small in _RULES:
            if re.fullmatch(pattern, name):
                changes[name] = [small] * len(value) if isinstance(value, list) and name != "eos_token_id" else small
                break
    if "qk_rope_head_dim" in changes:
        changes.pop("head_dim", None)  # latent attention
    kinds = values.get("layer_types")
    if kinds:
        changes["layer_types"] = pattern_of(kinds)
        if values.get("mlp_layer_types"):
            changes["mlp_layer_types"] = ["dense", *["sparse"] * (LAYERS - 1)]
    return {**changes, **exceptions}


def _few_kv_heads(values: dict[str, Any], name: str) -> bool:
    heads = values.get("num_attention_heads") or values.get("n_head") or 0
    return isinstance(values[name], int) and values[name] < heads


def pattern_of(kinds: list[str]) -> list[str]:
    """The kinds of LAYERS layers, each kind of a longer model at least once, as far as there is room."""
    different = list(dict.fromkeys(kinds))
    chosen = (different * LAYERS)[:LAYERS]
    return sorted(chosen, key=different.index) if len(different) == 1 else chosen


def randomised(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """Gives a model random biases, norms and buffers of biases; returns it, for inference."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 and parameter.is_floating_point():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for name, buffer in model.named_buffers():
            if "bias" in name and buffer.is_floating_point():
                buffer.add_(torch.randn_like(buffer) * 0.05)
    return model.eval()
