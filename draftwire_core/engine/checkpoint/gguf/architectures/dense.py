"""Architectures of plain decoders: all layers attend, and each has one MLP."""

from __future__ import annotations

from draftwire_core.engine.checkpoint.gguf.architectures.gguf_architecture import (
    NORMS_PLUS_ONE,
    GgufArchitecture,
    Values,
    rows_permuted,
)
from draftwire_core.engine.checkpoint.gguf.architectures.gguf_keys import GgufKeys

SLIDING, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
"""Keys of windows: their number of tokens, and the layers that have one."""
_LAYER_NORM = "attention.layer_norm_epsilon"
_OLMO_EPSILON = 1e-5
"""The number that OLMo's norms add to the variance, in transformers."""
ATTENTION_BIAS = {"attention_bias": "attn_q.bias"}
"""The field for biases of the projections to queries, keys and values."""
GRANITE_SCALES = {
    "embedding_multiplier": ("embedding_scale", 1.0),
    "residual_multiplier": ("residual_scale", 1.0),
    "logits_scaling": ("logit_scale", 1.0),
}
"""Numbers of Granite's models."""


def kinds_of_layers(sliding: list[bool]) -> list[str]:
    """The kinds of layers, as in transformers."""
    return ["sliding_attention" if slides else "full_attention" for slides in sliding]


def granite_attention(keys: GgufKeys, values: Values) -> Values:
    """The factor of the scores, which files of old converters leave out if it is the usual one."""
    usual = float(values["head_dim"]) ** -0.5
    return {"attention_multiplier": keys.positive("attention.scale", usual)}


def _ministral(keys: GgufKeys, values: Values) -> Values:
    scale = keys.number("attention.temperature_scale", 0.0)
    rope = values["rope_parameters"]
    if rope["rope_type"] != "yarn":
        if scale:
            raise keys.refusal("attention.temperature_scale", "is not supported without rope.scaling.type yarn")
        rope = rope | {"original_max_position_embeddings": values["max_position_embeddings"]}
    return {"rope_parameters": rope | {"llama_4_scaling_beta": scale}}


def _stablelm(keys: GgufKeys, values: Values) -> Values:
    return {"use_parallel_residual": keys.flag("use_parallel_residual", False)}


def _olmo(keys: GgufKeys, values: Values) -> Values:
    if values["layer_norm_eps"] != _OLMO_EPSILON:
        raise keys.refusal(_LAYER_NORM, f"is {values['layer_norm_eps']}; only {_OLMO_EPSILON} is supported")
    return {"clip_qkv": keys.number("attention.clamp_kqv", 0.0) or None}


def _olmo3(keys: GgufKeys, values: Values) -> Values:
    rope = values["rope_parameters"]
    return {
        "sliding_window": keys.length(SLIDING),
        "layer_types": kinds_of_layers(keys.sliding(PATTERN, 4)),
        # As in llama.cpp: windows are shorter than the original context, so their embedding is not scaled.
        "rope_parameters": {
            "full_attention": rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": rope["rope_theta"]},
        },
    }


def _cohere2(keys: GgufKeys, values: Values) -> Values:
    return {"sliding_window": keys.length(SLIDING), "layer_types": kinds_of_layers(keys.sliding(PATTERN, 4))}


def _exaone4(keys: GgufKeys, values: Values) -> Values:
    window = keys.length(SLIDING, 0)
    if not window:
        return {"sliding_window": None, "layer_types": ["full_attention"] * keys.layers}
    return {"sliding_window": window, "layer_types": kinds_of_layers(keys.sliding(PATTERN, 4))}


def _phi3(keys: GgufKeys, values: Values) -> Values:
    original = keys.length("rope.scaling.original_context_length", values["max_position_embeddings"])
    return {
        "sliding_window": keys.length(SLIDING, 0) or None,
        "original_max_position_embeddings": original,
    }


def _glm4(keys: GgufKeys, values: Values) -> Values:
    if "rope.dimension_sections" in keys:  # such files have rows in another order
        raise keys.refusal("rope.dimension_sections", "is of a multimodal model, which is not supported")
    return {}


DENSE = (
    GgufArchitecture(
        "llama",  # also Mistral's models
        "llama",
        parts=ATTENTION_BIAS | {"mlp_bias": "ffn_gate.bias"},
        rules=rows_permuted(),
    ),
    GgufArchitecture("mistral3", "ministral3", read=_ministral, rules=rows_permuted()),
    GgufArchitecture(
        "granite",
        "granite",
        numbers=GRANITE_SCALES,
        parts=ATTENTION_BIAS | {"mlp_bias": "ffn_gate.bias"},
        read=granite_attention,
        rules=rows_permuted(),
    ),
    GgufArchitecture("smollm3", "smollm3", parts=ATTENTION_BIAS | {"mlp_bias": "ffn_gate.bias"}, rules=rows_permuted()),
    GgufArchitecture("arcee", "arcee", parts=ATTENTION_BIAS | {"mlp_bias": "ffn_up.bias"}, rules=rows_permuted()),
    GgufArchitecture("qwen2", "qwen2"),
    GgufArchitecture("qwen2vl", "qwen2"),  # positions of text are the same in all sections of the rotary embedding
    GgufArchitecture("qwen3", "qwen3", parts=ATTENTION_BIAS),
    GgufArchitecture("qwen3vl", "qwen3", parts=ATTENTION_BIAS),
    GgufArchitecture("olmo2", "olmo3", when=SLIDING, parts=ATTENTION_BIAS, read=_olmo3),
    GgufArchitecture("olmo2", "olmo2", parts=ATTENTION_BIAS),
    GgufArchitecture(
        "starcoder2",
        "starcoder2",
        parts={"use_bias": "attn_q.bias"},
        epsilon="norm_epsilon",
        epsilon_key=_LAYER_NORM,
    ),
    GgufArchitecture(
        "command-r",
        "cohere",
        numbers={"logit_scale": ("logit_scale", None)},
        parts=ATTENTION_BIAS | {"use_qk_norm": "attn_q_norm.weight"},
        epsilon="layer_norm_eps",
        epsilon_key=_LAYER_NORM,
    ),
    GgufArchitecture(
        "cohere2",
        "cohere2",
        numbers={"logit_scale": ("logit_scale", None)},
        parts=ATTENTION_BIAS,
        read=_cohere2,
        epsilon="layer_norm_eps",
        epsilon_key=_LAYER_NORM,
    ),
    GgufArchitecture("phi2", "phi", epsilon="layer_norm_eps", epsilon_key=_LAYER_NORM, partly_rotated=True),
    GgufArchitecture("phi3", "phi3", read=_phi3, partly_rotated=True),
    GgufArchitecture(
        "stablelm",
        "stablelm",
        parts={"use_qkv_bias": "attn_q.bias"},
        read=_stablelm,
        epsilon="layer_norm_eps",
        epsilon_key=_LAYER_NORM,
        partly_rotated=True,
    ),
    GgufArchitecture(
        "olmo",
        "olmo",
        parts=ATTENTION_BIAS,
        read=_olmo,
        rules=rows_permuted(),
        epsilon="layer_norm_eps",
        epsilon_key=_LAYER_NORM,
    ),
    GgufArchitecture("glm4", "glm4", parts=ATTENTION_BIAS, read=_glm4, partly_rotated=True),
    GgufArchitecture("exaone4", "exaone4", read=_exaone4),
    GgufArchitecture("seed_oss", "seed_oss", parts=ATTENTION_BIAS | {"attention_out_bias": "attn_output.bias"}),
    GgufArchitecture("ernie4_5", "ernie4_5", parts={"use_bias": "attn_q.bias"}),
    GgufArchitecture(
        "nemotron",
        "nemotron",
        parts=ATTENTION_BIAS | {"mlp_bias": "ffn_up.bias"},
        rules=NORMS_PLUS_ONE,
        epsilon="norm_eps",
        epsilon_key=_LAYER_NORM,
        partly_rotated=True,
    ),
)
"""The architectures."""
