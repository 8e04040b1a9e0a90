"""The kinds of decoder layers that fused layers compute: what cannot be read off the modules of transformers.

A kind says where a layer has norms and what its attention sees. The rest, such as biases, sizes, norms of heads and the
activation, is in the modules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

Of = Callable[[nn.Module], int | None]


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What sets a class of decoder layers apart. Norms are root mean square norms, named as the layer's attributes."""

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
    plain: bool = False
    """Whether the model around the layers is that of Llama: embedding, layers, norm, output head."""


def _own_window(attention: nn.Module) -> int | None:
    window: int | None = attention.sliding_window
    return window


def _window_of_config(attention: nn.Module) -> int | None:
    window: int | None = attention.config.sliding_window
    return window


def _window_of_exaone(attention: nn.Module) -> int | None:
    return _own_window(attention) if attention.is_sliding else None


_LLAMA = LayerKind(plain=True)
_WINDOWED = LayerKind(_own_window, plain=True)
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
    "Phi3DecoderLayer": LayerKind(_window_of_config, plain=True),
    "GraniteDecoderLayer": LayerKind(),
    "GemmaDecoderLayer": LayerKind(adds_one=True),
    "Gemma2DecoderLayer": _GEMMA,
    "Gemma3DecoderLayer": _GEMMA,
    "Olmo2DecoderLayer": _OLMO,
    "Olmo3DecoderLayer": replace(_OLMO, window=_own_window),
    "Exaone4DecoderLayer": replace(
        _OLMO,
        window=_window_of_exaone,
        rotates=lambda attention: attention.sliding_window is None or bool(attention.is_sliding),
    ),
    "Qwen2VLDecoderLayer": LayerKind(_own_window),
    "Qwen2_5_VLDecoderLayer": LayerKind(_own_window),
    "Qwen3VLTextDecoderLayer": LayerKind(),
}
"""The supported layers; the first layers of EAGLE-3 read features as well (`FusedFeatureLayer`)."""
