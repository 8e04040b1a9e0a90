"""Blocks behind many places of a text, guessed in one pass over whole texts.

A block begins with the token at its anchor, which the target has committed; masks stand for the tokens to be guessed.
Its rows see the features of the tokens before the anchor and each other, as while drafting, and no other block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from draftwire_core.engine.drafters.dflash.dflash_config import DflashConfig

Angles = tuple[torch.Tensor, torch.Tensor]


class AnchoredBlocks:
    """The forward pass of a network made by `dflash_model`."""

    def __init__(
        self, config: DflashConfig, model: PreTrainedModel, embed: Callable[[torch.Tensor], torch.Tensor] | None = None
    ):
        """embed: the target's embedding, as far as the network has none of its own."""
        self._config = config
        self._decoder: Any = model.get_decoder()
        self._head: Any = model.get_output_embeddings()
        self._embed = embed if embed is not None else self._decoder.embed_tokens

    def guess(self, features: torch.Tensor, roots: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
        """Returns the logits of the guesses of each block, [texts, blocks, guesses, draft vocabulary].

        features: [texts, length, hidden], of the tokens at places 0 to length - 1. roots: the tokens at the anchors,
        int64 [texts, blocks]. anchors: int64 [texts, blocks].
        """
        config, decoder = self._config, self._decoder
        length, size = features.shape[1], config.block_size
        tokens = roots.unsqueeze(2).repeat(1, 1, size)
        tokens[:, :, 1:] = config.mask_token
        state = self._embed(tokens.flatten(1)).to(features.dtype)
        ahead = torch.arange(size, device=anchors.device)
        places = torch.arange(length, device=anchors.device)
        angles = decoder.rotary_emb(features, (anchors.unsqueeze(2) + ahead).flatten(1))
        context_angles = decoder.rotary_emb(features, places.unsqueeze(0))
        starts = anchors.repeat_interleave(size, dim=1).unsqueeze(2)
        for layer, kind in zip(decoder.layers, config.layers.layer_types, strict=True):
            unseen = places >= starts
            if kind == "sliding_attention":
                # The configuration's window is that of a block's last row, and so wider by the block.
                unseen = unseen | (places < starts - (config.layers.sliding_window - size))
            inputs = layer.input_layernorm(state)
            state = state + self._attended(layer.self_attn, inputs, features, angles, context_angles, unseen)
            state = state + layer.mlp(layer.post_attention_layernorm(state))
        hidden = decoder.norm(state).unflatten(1, (-1, size))[:, :, size - config.guesses :]
        logits: torch.Tensor = self._head(hidden)
        return logits

    def _attended(
        self,
        attention: Any,
        inputs: torch.Tensor,
        features: torch.Tensor,
        angles: Angles,
        context_angles: Angles,
        unseen: torch.Tensor,
    ) -> torch.Tensor:
        """Returns the attention's output.

        inputs: [texts, rows, hidden]. unseen: bool [texts, rows, length], whether a row must not see a feature.
        """
        size, dim = self._config.block_size, attention.head_dim

        def heads(projected: torch.Tensor) -> torch.Tensor:
            return projected.unflatten(2, (-1, dim))

        def every(shared: torch.Tensor) -> torch.Tensor:
            return shared.repeat_interleave(attention.num_key_value_groups, dim=1)

        def keys_of(rows: torch.Tensor, their: Angles) -> torch.Tensor:
            return every(_turned(attention.k_norm(heads(attention.k_proj(rows))).transpose(1, 2), their))

        def values_of(rows: torch.Tensor) -> torch.Tensor:
            return every(heads(attention.v_proj(rows)).transpose(1, 2))

        query = _turned(attention.q_norm(heads(attention.q_proj(inputs))).transpose(1, 2), angles)
        keys, values = keys_of(features, context_angles), values_of(features)
        own_keys, own_values = (
            each.unflatten(2, (-1, size)) for each in (keys_of(inputs, angles), values_of(inputs))
        )  # [texts, heads, blocks, rows of a block, dim]
        scores = (query @ keys.transpose(2, 3)).masked_fill(unseen.unsqueeze(1), -torch.inf)
        own = (query.unflatten(2, (-1, size)) @ own_keys.transpose(3, 4)).flatten(2, 3)
        scores = torch.cat([scores, own], dim=-1).float() * attention.scaling
        weights = nn.functional.softmax(scores, dim=-1).to(values.dtype)
        length = features.shape[1]
        found = weights[..., :length] @ values
        found = found + (weights[..., length:].unflatten(2, (-1, size)) @ own_values).flatten(2, 3)
        attended: torch.Tensor = attention.o_proj(found.transpose(1, 2).flatten(2))
        return attended


def _turned(states: torch.Tensor, angles: Angles) -> torch.Tensor:
    """Rotates keys or queries [texts, heads, rows, dim] by their positions' angles."""
    cosines, sines = (each.unsqueeze(1) for each in angles)
    half = states.shape[-1] // 2
    return states * cosines + torch.cat([-states[..., half:], states[..., :half]], dim=-1) * sines
