"""Architectures of decoders with mixtures of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from transformers import PretrainedConfig

from draftwire_core.engine.checkpoint.gguf.architectures.dense import (
    ATTENTION_BIAS,
    GRANITE_SCALES,
    SLIDING,
    granite_attention,
    kinds_of_layers,
)
from draftwire_core.engine.checkpoint.gguf.architectures.gguf_architecture import (
    EXPERTS,
    GgufArchitecture,
    GgufRule,
    Values,
    rows_permuted,
)
from draftwire_core.engine.checkpoint.gguf.architectures.gguf_change import (
    Dealt,
    GgufChange,
    Halved,
    Transposed,
    TransposedAndDealt,
    Unfolded,
)
from draftwire_core.engine.checkpoint.gguf.architectures.gguf_keys import GgufKeys

USED = {"num_experts_per_tok": "expert_used_count"}
EXPERT_COUNT = {"num_experts": "expert_count"} | USED
_LOCAL_COUNT = {"num_local_experts": "expert_count"} | USED
EXPERT_WIDTH = {"moe_intermediate_size": "expert_feed_forward_length"}
SHARED_WIDTH = {"shared_expert_intermediate_size": "expert_shared_feed_forward_length"}
"""Sizes of mixtures."""
CORRECTION = GgufRule(r"(e_score_correction_bias|\.expert_bias)", names=("exp_probs_b.bias",))
"""The rule for what is added to the scores of experts before some are chosen."""
_ALL_SPARSE = {"decoder_sparse_step": 1, "mlp_only_layers": []}
GRANITE_EXPERTS = (
    *rows_permuted(),
    *EXPERTS,
    GgufRule(r"block_sparse_moe\.router\.weight", names=("ffn_gate_inp.weight",)),
    GgufRule(r"shared_mlp\.input_linear\.weight", lambda _: Halved(), ("ffn_gate_shexp.weight", "ffn_up_shexp.weight")),
)
"""The rules of Granite's mixtures."""


def gating(keys: GgufKeys, usual: int) -> None:
    """Refuses files whose scores of experts are computed in another way. usual: 1 for softmax, 2 for sigmoid."""
    found = keys.length("expert_gating_func", usual)
    if found not in (0, usual):
        raise keys.refusal("expert_gating_func", f"is {found}; only {usual} is supported")


def _gpt_oss(keys: GgufKeys, values: Values) -> Values:
    rope = values["rope_parameters"]
    return {
        "sliding_window": keys.length(SLIDING),
        "layer_types": kinds_of_layers(keys.sliding("attention.sliding_window_pattern", 2)),
        "rope_parameters": rope | ({"truncate": False} if rope["rope_type"] == "yarn" else {}),
    }


def _glm4_moe(keys: GgufKeys, values: Values) -> Values:
    gating(keys, 2)
    return {
        "first_k_dense_replace": keys.count("leading_dense_block_count", 0),
        "n_shared_experts": keys.count("expert_shared_count", 0),
        "n_group": keys.size("expert_group_count", 1),
        "topk_group": keys.size("expert_group_used_count", 1),
        "routed_scaling_factor": keys.positive("expert_weights_scale", 1.0),
        "norm_topk_prob": keys.flag("expert_weights_norm", True),
        "num_nextn_predict_layers": 0,
    }


def _minimax(keys: GgufKeys, values: Values) -> Values:
    gating(keys, 2)
    return {"rotary_dim": keys.size("rope.dimension_count", int(values["head_dim"]))}


def _deepseek2(keys: GgufKeys, values: Values) -> Values:
    folded = "attention.key_length_mla" in keys  # old files have what expands keys and values in one tensor
    key = keys.size("attention.key_length_mla" if folded else "attention.key_length")
    rotated, rope = values["head_dim"], values["rope_parameters"]
    if keys.number("attention.temperature_scale", 0.0):  # of Mistral Large 3, beyond its original context
        raise keys.refusal("attention.temperature_scale", "is not supported")
    if not 0 < rotated < key:
        raise keys.refusal("rope.dimension_count", f"is {rotated}; must be less than the length of a key, {key}")
    if "mscale_all_dim" in rope:  # a tenth of it in files of this architecture
        scale = round(10 * rope["mscale_all_dim"], 6)
        rope |= {"mscale": scale, "mscale_all_dim": scale}
    found = {
        "rope_parameters": rope,
        "q_lora_rank": keys.count("attention.q_lora_rank", 0) or None,
        "kv_lora_rank": keys.size("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": keys.size("attention.value_length_mla" if folded else "attention.value_length"),
        "first_k_dense_replace": keys.count("leading_dense_block_count", 0),
        "n_shared_experts": keys.count("expert_shared_count", 0),
        "n_group": keys.size("expert_group_count", 1),
        "topk_group": keys.size("expert_group_used_count", 1),
        "routed_scaling_factor": keys.positive("expert_weights_scale", 1.0),
        "norm_topk_prob": keys.flag("expert_weights_norm", False),
        "num_nextn_predict_layers": 0,
    }
    # Files of old converters do not say how scores are computed.
    sigmoid = keys.length("expert_gating_func", 2 if keys.has_part("exp_probs_b.bias") else 1) == 2
    gating(keys, 2 if sigmoid else 1)
    if not sigmoid:
        found |= {
            "model_type": "deepseek_v2",
            "topk_method": "group_limited_greedy" if found["n_group"] > 1 else "greedy",
        }
    return found


def _unfolded(config: PretrainedConfig) -> GgufChange:
    return Unfolded(config.num_attention_heads, config.qk_nope_head_dim, config.v_head_dim)


_QWEN3: dict[str, Any] = {
    "sizes": EXPERT_COUNT | EXPERT_WIDTH,
    "constants": _ALL_SPARSE | {"norm_topk_prob": True},
    "parts": ATTENTION_BIAS,
    "rules": EXPERTS,
    "mixture": True,
    "feed_forward": False,
}

_GRANITE = GgufArchitecture(
    "granitemoe",
    "granitemoe",
    sizes=_LOCAL_COUNT,
    numbers=GRANITE_SCALES,
    parts=ATTENTION_BIAS,
    read=granite_attention,
    rules=GRANITE_EXPERTS,
    mixture=True,
)

MIXTURES = (
    GgufArchitecture("llama", "mixtral", sizes=_LOCAL_COUNT, rules=(*rows_permuted(), *EXPERTS), mixture=True),
    GgufArchitecture("qwen3moe", "qwen3_moe", **_QWEN3),
    GgufArchitecture("qwen3vlmoe", "qwen3_moe", **_QWEN3),
    GgufArchitecture(
        "qwen2moe",
        "qwen2_moe",
        sizes=EXPERT_COUNT | EXPERT_WIDTH | SHARED_WIDTH,
        constants=_ALL_SPARSE | {"norm_topk_prob": False},
        parts={"qkv_bias": "attn_q.bias"},
        rules=EXPERTS,
        mixture=True,
        feed_forward=False,
    ),
    GgufArchitecture(
        "olmoe",
        "olmoe",
        sizes=EXPERT_COUNT,
        constants={"norm_topk_prob": False},
        parts=ATTENTION_BIAS,
        rules=EXPERTS,
        mixture=True,
    ),
    replace(
        _GRANITE,
        model_type="granitemoeshared",
        when="expert_shared_feed_forward_length",
        sizes=_LOCAL_COUNT | {"shared_intermediate_size": "expert_shared_feed_forward_length"},
    ),
    _GRANITE,
    GgufArchitecture(
        "gpt-oss",
        "gpt_oss",
        sizes=_LOCAL_COUNT | {"intermediate_size": "expert_feed_forward_length"},
        constants={"attention_bias": True},
        read=_gpt_oss,
        rules=(
            GgufRule(
                r"experts\.gate_up_proj", lambda _: TransposedAndDealt(), ("ffn_gate_exps.weight", "ffn_up_exps.weight")
            ),
            GgufRule(r"experts\.gate_up_proj_bias", lambda _: Dealt(), ("ffn_gate_exps.bias", "ffn_up_exps.bias")),
            GgufRule(r"experts\.down_proj", lambda _: Transposed(), ("ffn_down_exps.weight",)),
            GgufRule(r"experts\.down_proj_bias", names=("ffn_down_exps.bias",)),
            GgufRule(r"self_attn\.sinks", names=("attn_sinks.weight",)),
        ),
        mixture=True,
        feed_forward=False,
    ),
    GgufArchitecture(
        "glm4moe",
        "glm4_moe",
        sizes={"n_routed_experts": "expert_count"} | USED | EXPERT_WIDTH,
        parts=ATTENTION_BIAS | {"use_qk_norm": "attn_q_norm.weight"},
        read=_glm4_moe,
        rules=(CORRECTION, *EXPERTS),
        partly_rotated=True,
        mixture=True,
    ),
    GgufArchitecture(
        "dots1",
        "dots1",
        sizes={"n_routed_experts": "expert_count"} | USED | EXPERT_WIDTH,
        parts=ATTENTION_BIAS,
        read=_glm4_moe,
        rules=(CORRECTION, *EXPERTS),
        mixture=True,
    ),
    GgufArchitecture(
        "deepseek2",
        "deepseek_v3",
        sizes={"n_routed_experts": "expert_count"} | USED | EXPERT_WIDTH,
        parts={"attention_bias": "attn_q_a.bias"},
        read=_deepseek2,
        rules=(
            CORRECTION,
            *EXPERTS,
            GgufRule(r"kv_b_proj\.weight", names=("attn_kv_b.weight",)),
            GgufRule(r"kv_b_proj\.weight", _unfolded, ("attn_k_b.weight", "attn_v_b.weight")),
        ),
        latent=True,
        mixture=True,
    ),
    GgufArchitecture(
        "minimax-m2",
        "minimax_m2",
        sizes=_LOCAL_COUNT | {"intermediate_size": "expert_feed_forward_length"},
        read=_minimax,
        rules=(CORRECTION, *EXPERTS),
        partly_rotated=True,
        mixture=True,
        feed_forward=False,
    ),
)
"""The architectures."""
