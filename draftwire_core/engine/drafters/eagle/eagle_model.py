"""EAGLE-3's network: a decoder whose first layer reads a feature of the target next to each token.

Li et al., "EAGLE-3: Scaling up inference acceleration of large language models via training-time test",
arXiv 2503.01840. The row of a token gets the feature of the token before it: the target's own, mapped to one vector, or
while drafting the hidden state that the network itself computed for the parent. It predicts the next token.

P-EAGLE (Hui et al., arXiv 2602.01469) has one vector of states, `mask_hidden`, in place of those of tokens that are to
be guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaForCausalLM, LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3ForCausalLM

from draftwire_core.engine.drafters.eagle.eagle_config import EagleConfig
from draftwire_core.engine.model.attention.packed_attention import current_pass
from draftwire_core.engine.model.features.feature_map import FeatureMap, FeatureShape

Norm = Callable[[torch.Tensor], torch.Tensor]


def feature_map(config: EagleConfig, states: int) -> FeatureMap:
    """Returns the map from the target's states to features, with random weights on the current device.

    states: number of layers that are read.
    """
    return FeatureMap(
        FeatureShape(
            states,
            config.target_hidden_size,
            config.layers.hidden_size,
            norm_states=config.norm_before_fc,
            norm_each_state=config.fc_norm,
            epsilon=config.layers.rms_norm_eps,
        )
    )


class _FirstLayer(nn.Module):
    """A decoder layer that reads features: they are its residual stream, and its attention sees the tokens' embeddings
    next to them."""

    self_attn: nn.Module
    mlp: nn.Module
    input_layernorm: Norm
    post_attention_layernorm: Norm
    hidden_norm: Norm
    norm_before_residual: bool

    def widen(self, config: EagleConfig) -> None:
        """Replaces the first linear layers, whose inputs are twice as wide as the library's."""
        layers = config.layers
        self.norm_before_residual = config.norm_before_residual
        self.hidden_norm = LlamaRMSNorm(layers.hidden_size, layers.rms_norm_eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow: nn.Linear = getattr(self.self_attn, name)
            wide = nn.Linear(2 * layers.hidden_size, narrow.out_features, bias=narrow.bias is not None)
            setattr(self.self_attn, name, wide)

    def mixed(self, embedded: torch.Tensor, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """embedded, features: [..., hidden] -> the attention's inputs [..., 2 * hidden], and the residual stream"""
        normed = self.hidden_norm(features)
        inputs = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        return inputs, normed if self.norm_before_residual else features

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """hidden_states: embeddings [1, rows, hidden] -> [1, rows, hidden]. The features are those of the pass."""
        features = current_pass().batch.features
        assert features is not None, "the drafter sets them"
        inputs, residual = self.mixed(hidden_states, features.unsqueeze(0))
        attended, _ = self.self_attn(inputs, *args, **kwargs)
        residual = residual + attended
        out: torch.Tensor = residual + self.mlp(self.post_attention_layernorm(residual))
        return out


class LlamaFirstLayer(_FirstLayer, LlamaDecoderLayer):
    """The first layer of checkpoints with Llama's layers."""


class Qwen3FirstLayer(_FirstLayer, Qwen3DecoderLayer):
    """The first layer of checkpoints with Qwen3's layers."""


_KINDS: dict[str, tuple[type[PreTrainedModel], type[_FirstLayer]]] = {
    "llama": (LlamaForCausalLM, LlamaFirstLayer),
    "qwen3": (Qwen3ForCausalLM, Qwen3FirstLayer),
}


def eagle_model(config: EagleConfig) -> PreTrainedModel:
    """Returns the network with random weights on the current device, its output head over the draft vocabulary."""
    make_model, make_first = _KINDS[config.layers.model_type]
    model = make_model(config.layers)
    first: Any = make_first(config.layers, 0)
    first.widen(config)
    model.model.layers[0] = first
    if config.mask_token is not None:
        read = len(config.aux_layers or ()) * config.target_hidden_size
        model.mask_hidden = nn.Parameter(torch.zeros(1, 1, read))
    model.lm_head = nn.Linear(config.layers.hidden_size, config.draft_vocab_size, bias=False)
    return model
