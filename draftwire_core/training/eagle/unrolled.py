"""EAGLE-3's training-time test: the network's forward passes over several steps of drafting, for whole texts at once.

In step 0 each row reads the target's feature; in step s it reads the hidden state that it computed in step s - 1, and
the token s places further, as if it had drafted that. It sees what it would see while drafting: the rows of step 0 up
to its own place, and its own rows of the steps between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb


class Unrolled:
    """The steps of a network with a single decoder layer."""

    def __init__(self, model: PreTrainedModel, feed_back: nn.Module):
        """model: made by `eagle_model`. feed_back: maps a row's last hidden states to what the next step reads."""
        if len(model.model.layers) != 1:
            raise ValueError("only networks with one layer can be trained")
        self._model: Any = model
        self._layer: Any = model.model.layers[0]
        self._feed_back = feed_back

    def steps(self, features: torch.Tensor, tokens: torch.Tensor, steps: int) -> Iterator[torch.Tensor]:
        """Yields each step's logits [texts, rows, draft vocabulary].

        features: [texts, rows, hidden]; row i has that of token i. tokens: int64 [texts, rows + steps], from token 1
        on. Row i of step s predicts token i + s + 2.
        """
        rows = features.shape[1]
        places = torch.arange(rows, device=features.device)
        causal = places.unsqueeze(1) < places
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        state = features
        for step in range(steps):
            embedded = self._model.model.embed_tokens(tokens[:, step : step + rows])
            angles = self._model.model.rotary_emb(embedded, (places + step).unsqueeze(0))
            inputs, residual = self._layer.mixed(embedded, state)
            residual = residual + self._attended(inputs, angles, keys, values, causal)
            state = residual + self._layer.mlp(self._layer.post_attention_layernorm(residual))
            logits: torch.Tensor = self._model.lm_head(self._model.model.norm(state))
            yield logits
            state = self._feed_back(state)

    def _attended(
        self,
        inputs: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        causal: torch.Tensor,
    ) -> torch.Tensor:
        """Returns the attention's output, and adds the step's keys and values to those of earlier steps.

        inputs: [texts, rows, 2 * hidden]. causal: bool [rows, rows], whether a row must not see another.
        """
        attention = self._layer.self_attn
        shape = (*inputs.shape[:2], -1, attention.head_dim)
        query, key = attention.q_proj(inputs).view(shape), attention.k_proj(inputs).view(shape)
        if hasattr(attention, "q_norm"):
            query, key = attention.q_norm(query), attention.k_norm(key)
        query, key = apply_rotary_pos_emb(query.transpose(1, 2), key.transpose(1, 2), *angles)
        value = attention.v_proj(inputs).view(shape).transpose(1, 2)
        groups = query.shape[1] // key.shape[1]
        keys.append(key.repeat_interleave(groups, dim=1))
        values.append(value.repeat_interleave(groups, dim=1))
        scores = [(query @ keys[0].transpose(2, 3)).masked_fill(causal, -torch.inf)]
        scores += [(query * own).sum(-1, keepdim=True) for own in keys[1:]]
        weights = torch.softmax(torch.cat(scores, dim=-1).float() * attention.scaling, dim=-1).to(query.dtype)
        rows = len(causal)
        seen = weights[..., :rows] @ values[0]
        for place, own in enumerate(values[1:], start=rows):
            seen = seen + weights[..., place : place + 1] * own
        attended: torch.Tensor = attention.o_proj(seen.transpose(1, 2).flatten(2))
        return attended
