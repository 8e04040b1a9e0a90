"""The kinds of decoder layers that fused layers compute: what cannot be read off the modules of transformers.

A kind says where a layer has norms, what its attention sees, and how transformers names its parts. The rest, such as
biases, sizes, norms of heads and the activation, is in the modules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

Of = Callable[[nn.Module], int | None]


@dataclass(frozen=True, slots=True)
class LayerKind:
    """A class of decoder layers. Norms are root mean square norms, named as the layer's attributes."""

    window: Of = lambda attention: None
    """The sliding window of a layer's attention."""
    input_norm: str | None = "input_layernorm"
    """The norm of the inputs of attention."""
    attended_norm: str | None = None
    """The norm of the outputs of attention."""
    output_norm: str | None = "post_attention_layernorm"
    """The norm of the inputs of the feed-forward block."""
    forwarded_norm: str | None = None
    """The norm of the outputs of the feed-forward block."""
    adds_one: bool = False
    """Whether 1 is added to the weights of norms."""
    rotates: Callable[[nn.Module], bool] = lambda attention: True
    """Whether an attention has rotary position embeddings."""
    partly_rotated: bool = False
    """Whether transformers' code of it knows `partial_rotary_factor`, which other code ignores."""
    plain: bool = False
    """Whether the model around the layers is that of Llama: embedding, layers, norm, output head. The embedding may
    scale its rows, and layers may differ in their angles, by their types."""
    mixers: tuple[str, ...] = ("self_attn",)
    """Attributes of which a layer has one: attention first, then mixers of tokens that stay transformers' code."""
    query_norm: str = "q_norm"
    key_norm: str = "k_norm"
    gated: bool = False
    """Whether the query projection gives gates, too, by whose sigmoids the results of attention are multiplied."""
    capped: bool = False
    """Whether a soft cap of the configuration bounds the scores of attention."""
    lender: Of = lambda attention: None
    """The layer whose keys and values an attention sees in place of its own."""
    halved_angles: bool = False
    """Whether transformers computes the angles of half a head, as its halves have the same."""
    feed_forward: str = "mlp"
    """The attribute of the feed-forward block."""
    gate: str | None = None
    """The activation of a feed-forward block that calls a function; None if it has a module for it."""
    beside: Callable[[nn.Module], Callable[[torch.Tensor], torch.Tensor] | None] = lambda layer: None
    """Code of a layer in place of the feed-forward block and the norm of its inputs, where it does more."""
    last_norm: str = "norm"
    """The attribute of the model's last norm."""


def _own_window(attention: nn.Module) -> int | None:
    window: int | None = attention.sliding_window
    return window


def _window_of_config(attention: nn.Module) -> int | None:
    window: int | None = getattr(attention.config, "sliding_window", None)
    return window


def _window_if_any(attention: nn.Module) -> int | None:
    window: int | None = getattr(attention, "sliding_window", None)
    return window


def _window_of_exaone(attention: nn.Module) -> int | None:
    return _own_window(attention) if attention.is_sliding else None


def _rotates_of_exaone(attention: nn.Module) -> bool:
    return attention.sliding_window is None or bool(attention.is_sliding)


def _rotates_by_config(attention: nn.Module) -> bool:
    return (attention.config.rope_parameters or {}).get("rope_theta") is not None


def _last_of_its_type(attention: nn.Module) -> int | None:
    if not attention.is_kv_shared_layer:
        return None
    types, modes = attention.config.layer_types, attention.config.kv_sharing_modes
    return next(
        index for index, mode in enumerate(modes) if mode == "store" and types[index] == types[attention.layer_idx]
    )


def _experts_beside(layer: nn.Module) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The feed-forward block of Gemma 4 with experts: they and a dense block see the same rows, each by its norms."""
    if not layer.enable_moe_block:
        return None

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        dense = layer.post_feedforward_layernorm_1(layer.mlp(layer.pre_feedforward_layernorm(hidden)))
        rows = hidden.flatten(0, 1)
        _, shares, chosen = layer.router(rows)
        routed = layer.experts(layer.pre_feedforward_layernorm_2(rows), chosen, shares)
        total: torch.Tensor = dense + layer.post_feedforward_layernorm_2(routed).view_as(hidden)
        return total

    return forward


def _shared_expert_beside(layer: nn.Module) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The feed-forward block of Granite with experts: a dense block for all rows next to them."""
    if layer.shared_mlp is None:
        return None

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        rows = layer.post_attention_layernorm(hidden)
        total: torch.Tensor = layer.block_sparse_moe(rows) + layer.shared_mlp(rows)
        return total

    return forward


def _shared_block_beside(layer: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """The feed-forward block of Granite 4 hybrid, whose dense block also runs alone."""

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        rows = layer.post_attention_layernorm(hidden)
        total: torch.Tensor = layer.shared_mlp(rows)
        return layer.block_sparse_moe(rows) + total if layer.has_experts else total

    return forward


_LLAMA = LayerKind(plain=True)
_BARE = LayerKind()
_PARTLY_ROTATED = LayerKind(partly_rotated=True)
_WINDOWED = LayerKind(_own_window, plain=True)
_EXPERTS_WINDOWED = LayerKind(_own_window)
_GRANITE_EXPERTS = LayerKind(feed_forward="block_sparse_moe")
_OLMO = LayerKind(
    input_norm=None,
    attended_norm="post_attention_layernorm",
    output_norm=None,
    forwarded_norm="post_feedforward_layernorm",
)
_GEMMA = LayerKind(
    _own_window,
    attended_norm="post_attention_layernorm",
    output_norm="pre_feedforward_layernorm",
    forwarded_norm="post_feedforward_layernorm",
    adds_one=True,
)
_GEMMA4 = replace(_GEMMA, adds_one=False, lender=_last_of_its_type)
_QWEN_HYBRID = LayerKind(
    adds_one=True, partly_rotated=True, plain=True, mixers=("self_attn", "linear_attn"), gated=True
)
_JAMBA = LayerKind(
    output_norm="pre_ff_layernorm",
    rotates=lambda attention: False,
    mixers=("self_attn", "mamba"),
    feed_forward="feed_forward",
    last_norm="final_layernorm",
)
_LFM = LayerKind(
    input_norm="operator_norm",
    output_norm="ffn_norm",
    mixers=("self_attn", "conv"),
    query_norm="q_layernorm",
    key_norm="k_layernorm",
    feed_forward="feed_forward",
    gate="silu",
    last_norm="embedding_norm",
)

KINDS: dict[str, LayerKind] = {
    "LlamaDecoderLayer": _LLAMA,
    "MistralDecoderLayer": LayerKind(_window_of_config, plain=True),
    "LlamaFirstLayer": _LLAMA,
    "Qwen3FirstLayer": _WINDOWED,
    "MinistralDecoderLayer": _WINDOWED,
    "Qwen2DecoderLayer": _WINDOWED,
    "Qwen3DecoderLayer": _WINDOWED,
    "CwmDecoderLayer": replace(_WINDOWED, plain=False),
    "SeedOssDecoderLayer": _LLAMA,
    "SmolLM3DecoderLayer": replace(_WINDOWED, rotates=lambda attention: bool(attention.use_rope)),
    "Phi3DecoderLayer": LayerKind(_window_of_config, partly_rotated=True, plain=True),
    "GraniteDecoderLayer": _BARE,
    "GemmaDecoderLayer": LayerKind(adds_one=True),
    "Gemma2DecoderLayer": replace(_GEMMA, capped=True),
    "Gemma3DecoderLayer": replace(_GEMMA, plain=True),
    "Gemma4TextDecoderLayer": replace(_GEMMA4, beside=_experts_beside),
    "Gemma4UnifiedTextDecoderLayer": _GEMMA4,
    "Olmo2DecoderLayer": _OLMO,
    "Olmo3DecoderLayer": replace(_OLMO, window=_own_window),
    "FlexOlmoDecoderLayer": _OLMO,
    "OlmoHybridAttentionDecoderLayer": replace(_OLMO, rotates=_rotates_by_config),
    "OlmoHybridLinearAttentionDecoderLayer": replace(_BARE, mixers=("self_attn", "linear_attn")),
    "Exaone4DecoderLayer": replace(_OLMO, window=_window_of_exaone, rotates=_rotates_of_exaone),
    "ExaoneMoeDecoderLayer": LayerKind(_window_of_exaone, rotates=_rotates_of_exaone),
    "Qwen2VLDecoderLayer": LayerKind(_own_window),
    "Qwen2_5_VLDecoderLayer": LayerKind(_own_window),
    "Qwen3VLTextDecoderLayer": _BARE,
    "Qwen2MoeDecoderLayer": LayerKind(_window_if_any),
    "Qwen3MoeDecoderLayer": _EXPERTS_WINDOWED,
    "Qwen3VLMoeTextDecoderLayer": _BARE,
    "Qwen3OmniMoeThinkerTextDecoderLayer": _EXPERTS_WINDOWED,
    "Qwen3NextDecoderLayer": _QWEN_HYBRID,
    "Qwen3_5DecoderLayer": _QWEN_HYBRID,
    "Qwen3_5MoeDecoderLayer": _QWEN_HYBRID,
    "MixtralDecoderLayer": LayerKind(_window_of_config),
    "GptOssDecoderLayer": replace(_EXPERTS_WINDOWED, halved_angles=True),
    "OlmoeDecoderLayer": LayerKind(_window_of_config),
    "GraniteMoeDecoderLayer": _GRANITE_EXPERTS,
    "GraniteMoeSharedDecoderLayer": replace(_GRANITE_EXPERTS, beside=_shared_expert_beside),
    "Dots1DecoderLayer": _EXPERTS_WINDOWED,
    "Glm4MoeDecoderLayer": _PARTLY_ROTATED,
    "MiniMaxM2DecoderLayer": _PARTLY_ROTATED,
    "SolarOpenDecoderLayer": _PARTLY_ROTATED,
    "MellumDecoderLayer": replace(_EXPERTS_WINDOWED, partly_rotated=True),
    "HYV3DecoderLayer": _BARE,
    "GraniteMoeHybridDecoderLayer": LayerKind(
        rotates=lambda attention: attention.config.position_embedding_type == "rope",
        mixers=("self_attn", "mamba"),
        feed_forward="shared_mlp",
        beside=_shared_block_beside,
    ),
    "ArceeDecoderLayer": _BARE,
    "ApertusDecoderLayer": LayerKind(input_norm="attention_layernorm", output_norm="feedforward_layernorm"),
    "VaultGemmaDecoderLayer": LayerKind(
        _own_window, output_norm="pre_feedforward_layernorm", adds_one=True, capped=True
    ),
    "FlintDecoderLayer": LayerKind(_own_window, rotates=lambda attention: attention.sliding_window is not None),
    "JambaAttentionDecoderLayer": _JAMBA,
    "JambaMambaDecoderLayer": _JAMBA,
    "Lfm2DecoderLayer": _LFM,
    "Lfm2MoeDecoderLayer": _LFM,
}
"""The supported layers; the first layers of EAGLE-3 read features as well (`FusedFeatureLayer`)."""
