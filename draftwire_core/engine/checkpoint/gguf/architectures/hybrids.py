"""Architectures of which some layers keep a state instead of attending, or besides."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from draftwire_core.engine.checkpoint.gguf.architectures.dense import ATTENTION_BIAS, GRANITE_SCALES, granite_attention
from draftwire_core.engine.checkpoint.gguf.architectures.gguf_architecture import (
    EXPERTS,
    NORMS_PLUS_ONE,
    GgufArchitecture,
    GgufRule,
    Values,
    rows_permuted,
)
from draftwire_core.engine.checkpoint.gguf.architectures.gguf_change import (
    SAME,
    GgufChange,
    GroupedByKind,
    Halved,
    NegativeExponential,
    Reshaped,
    Squeezed,
    Tiled,
    TiledColumns,
)
from draftwire_core.engine.checkpoint.gguf.architectures.gguf_keys import GgufKeys
from draftwire_core.engine.checkpoint.gguf.architectures.mixtures import (
    CORRECTION,
    EXPERT_COUNT,
    EXPERT_WIDTH,
    GRANITE_EXPERTS,
    SHARED_WIDTH,
    gating,
)

# ---- delta rule: Qwen 3 Next, Qwen 3.5 -------------------------------------------------------------------------------


def _delta(keys: GgufKeys, values: Values) -> Values:
    interval, heads = keys.size("full_attention_interval", 4), keys.size("ssm.time_step_rank")
    inner, key_heads = keys.size("ssm.inner_size"), keys.size("ssm.group_count")
    if inner % heads:
        raise keys.refusal("ssm.inner_size", f"is {inner}, no multiple of the {heads} value heads")
    if heads % key_heads:
        raise keys.refusal("ssm.time_step_rank", f"is {heads}, no multiple of the {key_heads} key heads")
    return {
        "layer_types": [
            "linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(keys.layers)
        ],
        "linear_conv_kernel_dim": keys.size("ssm.conv_kernel"),
        "linear_key_head_dim": keys.size("ssm.state_size"),
        "linear_value_head_dim": inner // heads,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": heads,
    }


def _qwen35(keys: GgufKeys, values: Values) -> Values:
    found = _delta(keys, values)
    if "rope.dimension_sections" in keys:
        sections = [int(number) for number in keys.numbers("rope.dimension_sections", 3)]
        found["rope_parameters"] = values["rope_parameters"] | {"mrope_section": sections}
    return found


def _grouped(config: PretrainedConfig) -> GgufChange:
    heads = config.linear_num_key_heads
    shared = config.linear_num_value_heads // heads
    return GroupedByKind(heads, config.linear_key_head_dim, shared * config.linear_value_head_dim)


def _tiled(config: PretrainedConfig, *, after_keys: bool = False, within: GgufChange = SAME) -> GgufChange:
    heads, keys = config.linear_num_value_heads, config.linear_num_key_heads
    return Tiled(keys, heads, 2 * keys * config.linear_key_head_dim if after_keys else 0, within)


def _tiled_columns(config: PretrainedConfig) -> GgufChange:
    return TiledColumns(config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim)


_DELTA_NORM = GgufRule(r"linear_attn\.norm\.weight")
_QWEN3_NEXT = (
    _DELTA_NORM,
    *NORMS_PLUS_ONE,
    GgufRule(r"linear_attn\.dt_bias", names=("ssm_dt.bias",)),
    GgufRule(r"linear_attn\.A_log", lambda _: NegativeExponential(), ("ssm_a",)),
    GgufRule(r"linear_attn\.conv1d\.weight", lambda _: Squeezed()),
    GgufRule(r"linear_attn\.in_proj_qkvz\.weight", names=("ssm_in.weight",)),  # of old converters
    GgufRule(r"linear_attn\.in_proj_qkvz\.weight", _grouped, ("attn_qkv.weight", "attn_gate.weight")),
    *EXPERTS,
)
_QWEN35 = (
    _DELTA_NORM,
    *NORMS_PLUS_ONE,
    GgufRule(r"linear_attn\.dt_bias", _tiled, ("ssm_dt.bias",)),
    GgufRule(r"linear_attn\.A_log", lambda config: _tiled(config, within=NegativeExponential()), ("ssm_a",)),
    GgufRule(r"linear_attn\.conv1d\.weight", lambda config: _tiled(config, after_keys=True, within=Squeezed())),
    GgufRule(r"linear_attn\.in_proj_qkv\.weight", lambda config: _tiled(config, after_keys=True)),
    GgufRule(r"linear_attn\.in_proj_[zba]\.weight", _tiled),
    GgufRule(r"linear_attn\.out_proj\.weight", _tiled_columns),
    *EXPERTS,
)

# ---- Mamba 2: Granite 4, Falcon H1, Nemotron H -----------------------------------------------------------------------


def _mamba(groups: str) -> tuple[GgufRule, ...]:
    """The rules of Mamba 2. groups: the field for the number of groups of the norm."""
    return (
        GgufRule(r"\.dt_bias", names=("ssm_dt.bias",)),
        GgufRule(r"\.A_log", lambda _: NegativeExponential(column=True), ("ssm_a",)),
        GgufRule(r"(mamba|mixer)\.D", lambda _: Reshaped((-1, 1)), ("ssm_d",)),
        GgufRule(r"(mamba|mixer)\.conv1d\.weight", lambda _: Squeezed(), ("ssm_conv1d.weight",)),
        GgufRule(
            r"(mamba|mixer)\.norm\.weight",
            lambda config: Reshaped((getattr(config, groups), -1)),
            ("ssm_norm.weight",),
        ),
    )


def _mamba_sizes(keys: GgufKeys) -> tuple[int, int]:
    """The heads, and the values of each one."""
    heads, inner = keys.size("ssm.time_step_rank"), keys.size("ssm.inner_size")
    if inner % heads:
        raise keys.refusal("ssm.inner_size", f"is {inner}, no multiple of the {heads} heads")
    return heads, inner // heads


_MAMBA_SIZES = {
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_d_state": "ssm.state_size",
    "mamba_n_groups": "ssm.group_count",
}
_MAMBA_BIASES = {"mamba_conv_bias": "ssm_conv1d.bias", "mamba_proj_bias": "ssm_in.bias"}


def _granite_hybrid(keys: GgufKeys, values: Values) -> Values:
    heads, head = _mamba_sizes(keys)
    hidden, mamba = int(values["hidden_size"]), keys.layers_with("ssm_in.weight")
    if heads * head % hidden:
        raise keys.refusal("ssm.inner_size", f"is {heads * head}, no multiple of the embedding length, {hidden}")
    experts = keys.count("expert_count", 0)
    shared = "expert_shared_feed_forward_length"
    return granite_attention(keys, values) | {
        "layer_types": ["linear_attention" if each else "full_attention" for each in mamba],
        "mamba_n_heads": heads,
        "mamba_d_head": head,
        "mamba_expand": heads * head // hidden,
        "num_local_experts": experts,
        "num_experts_per_tok": keys.count("expert_used_count", 0),
        "intermediate_size": keys.count("feed_forward_length", 0),
        # The MLP of models without experts.
        "shared_intermediate_size": keys.size(shared if shared in keys else "feed_forward_length"),
        "position_embedding_type": "rope" if keys.flag("rope.scaling.finetuned", False) else None,
    }


def _falcon_h1(keys: GgufKeys, values: Values) -> Values:
    heads, head = _mamba_sizes(keys)
    return {"mamba_n_heads": heads, "mamba_d_head": head, "mamba_d_ssm": heads * head}


def _nemotron_h(keys: GgufKeys, values: Values) -> Values:
    heads, head = _mamba_sizes(keys)
    kinds = {"ssm_in.weight": "linear_attention", "attn_q.weight": "full_attention", "ffn_up_exps.weight": "moe"}
    types = ["mlp"] * keys.layers
    for part, kind in kinds.items():
        types = [kind if found else other for found, other in zip(keys.layers_with(part), types, strict=True)]
    fields: dict[str, Any] = {
        "layer_types": types,
        "mamba_num_heads": heads,
        "mamba_head_dim": head,
        "intermediate_size": max(1, *keys.sizes("feed_forward_length")),
    }
    if "moe" in types:
        gating(keys, 2)
        fields |= {
            "n_routed_experts": keys.size("expert_count"),
            "num_experts_per_tok": keys.size("expert_used_count"),
            "moe_intermediate_size": keys.size("expert_feed_forward_length"),
            "moe_shared_expert_intermediate_size": keys.size("expert_shared_feed_forward_length"),
            "n_shared_experts": keys.size("expert_shared_count", 1),
            "norm_topk_prob": keys.flag("expert_weights_norm", True),
            "routed_scaling_factor": keys.positive("expert_weights_scale", 1.0),
            "n_group": keys.size("expert_group_count", 1),
            "topk_group": keys.size("expert_group_used_count", 1),
            "moe_latent_size": keys.count("moe_latent_size", 0) or None,
        }
    return fields


_NEMOTRON_H: dict[str, Any] = {
    "sizes": {"conv_kernel": "ssm.conv_kernel", "ssm_state_size": "ssm.state_size", "n_groups": "ssm.group_count"},
    "parts": ATTENTION_BIAS
    | {"mlp_bias": "ffn_up.bias", "use_conv_bias": "ssm_conv1d.bias", "mamba_proj_bias": "ssm_in.bias"},
    "read": _nemotron_h,
    "rules": (
        CORRECTION,
        *_mamba("n_groups"),
        *rows_permuted(),
        GgufRule(r"experts\.up_proj", names=("ffn_up_exps.weight",)),
        GgufRule(r"experts\.down_proj", names=("ffn_down_exps.weight",)),
    ),
    "epsilon": "layer_norm_epsilon",
    "fixed_rotary": True,  # there is none
    "kv_heads_by_layer": True,
    "feed_forward": False,
    "renamed": ("model.", "backbone."),
}

# ---- short convolutions: LFM 2 ---------------------------------------------------------------------------------------


def _lfm2(keys: GgufKeys, values: Values) -> Values:
    return {"layer_types": ["full_attention" if heads else "conv" for heads in keys.sizes("attention.head_count_kv")]}


def _lfm2_moe(keys: GgufKeys, values: Values) -> Values:
    gating(keys, 2)
    return _lfm2(keys, values) | {"num_dense_layers": keys.count("leading_dense_block_count", 0)}


_CONVOLUTION = GgufRule(r"\.conv\.conv\.weight", lambda _: Squeezed(), ("shortconv.conv.weight",))

HYBRIDS = (
    GgufArchitecture(
        "qwen3next",
        "qwen3_next",
        sizes=EXPERT_COUNT | EXPERT_WIDTH | SHARED_WIDTH,
        constants={"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
        parts=ATTENTION_BIAS,
        read=_delta,
        rules=_QWEN3_NEXT,
        partly_rotated=True,
        mixture=True,
        feed_forward=False,
    ),
    GgufArchitecture("qwen35", "qwen3_5_text", parts=ATTENTION_BIAS, read=_qwen35, rules=_QWEN35, partly_rotated=True),
    GgufArchitecture(
        "qwen35moe",
        "qwen3_5_moe_text",
        sizes=EXPERT_COUNT | EXPERT_WIDTH | SHARED_WIDTH,
        parts=ATTENTION_BIAS,
        read=_qwen35,
        rules=_QWEN35,
        partly_rotated=True,
        mixture=True,
        feed_forward=False,
    ),
    GgufArchitecture(
        "granitehybrid",
        "granitemoehybrid",
        sizes=_MAMBA_SIZES,
        numbers=GRANITE_SCALES,
        parts=ATTENTION_BIAS | _MAMBA_BIASES,
        read=_granite_hybrid,
        rules=(
            *_mamba("mamba_n_groups"),
            *GRANITE_EXPERTS[:-1],
            GgufRule(r"shared_mlp\.input_linear\.weight", lambda _: Halved(), ("ffn_gate.weight", "ffn_up.weight")),
            GRANITE_EXPERTS[-1],
            GgufRule(r"shared_mlp\.output_linear\.weight", names=("ffn_down.weight",)),
            GgufRule(r"shared_mlp\.output_linear\.weight", names=("ffn_down_shexp.weight",)),
        ),
        kv_heads_by_layer=True,
        feed_forward=False,
        mixture=None,
    ),
    GgufArchitecture(
        "falcon-h1",
        "falcon_h1",
        sizes=_MAMBA_SIZES,
        constants={
            "mamba_norm_before_gate": False,  # as in llama.cpp
            # llama.cpp's converter multiplies the weights instead.
            "lm_head_multiplier": 1.0,
            "embedding_multiplier": 1.0,
            "mlp_multipliers": [1.0, 1.0],
            "key_multiplier": 1.0,
            "attention_out_multiplier": 1.0,
            "attention_in_multiplier": 1.0,
            "ssm_multipliers": [1.0] * 5,
            "ssm_in_multiplier": 1.0,
            "ssm_out_multiplier": 1.0,
        },
        parts=ATTENTION_BIAS
        | _MAMBA_BIASES
        | {"mlp_bias": "ffn_gate.bias", "mamba_rms_norm": "ssm_norm.weight", "projectors_bias": "ssm_out.bias"},
        read=_falcon_h1,
        rules=_mamba("mamba_n_groups"),
    ),
    GgufArchitecture("nemotron_h", "nemotron_h", mixture=None, **_NEMOTRON_H),
    GgufArchitecture("nemotron_h_moe", "nemotron_h", mixture=True, **_NEMOTRON_H),
    GgufArchitecture(
        "lfm2",
        "lfm2",
        sizes={"conv_L_cache": "shortconv.l_cache"},
        constants={"block_auto_adjust_ff_dim": False},
        parts={"conv_bias": "shortconv.conv.bias"},
        read=_lfm2,
        rules=(_CONVOLUTION,),
        epsilon="norm_eps",
        kv_heads_by_layer=True,
    ),
    GgufArchitecture(
        "lfm2moe",
        "lfm2_moe",
        sizes={"conv_L_cache": "shortconv.l_cache"} | EXPERT_COUNT | EXPERT_WIDTH,
        constants={"norm_topk_prob": True, "routed_scaling_factor": 1.0},
        parts={"conv_bias": "shortconv.conv.bias", "use_expert_bias": "exp_probs_b.bias"},
        read=_lfm2_moe,
        rules=(_CONVOLUTION, CORRECTION, *EXPERTS),
        epsilon="norm_eps",
        kv_heads_by_layer=True,
        mixture=True,
    ),
)
"""The architectures."""
