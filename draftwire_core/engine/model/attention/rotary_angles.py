"""The angles of rotary embeddings in compiled code (`csrc/attention/angles.c`).

They have the same bits on every processor.
"""

from __future__ import annotations

import torch
from torch import nn

from draftwire_core.engine.kernels.layer_ops import rotary_angles

_FIXED = {"default", "linear", "llama3", "yarn"}
"""The types of embeddings whose frequencies do not depend on the length of the context."""

_ALIKE_FOR_TEXTS = {"Qwen3_5TextRotaryEmbedding", "Qwen3_5MoeTextRotaryEmbedding"}
"""Embeddings of positions that have parts, as those of images do. The parts of a text's positions are all alike."""


class RotaryAngles(nn.Module):
    """The rotary position embedding of a model, in place of one of transformers."""

    def __init__(self, embedding: nn.Module):
        """embedding: supported by `has_fixed_frequencies`"""
        super().__init__()
        kinds = (
            {kind: f"{kind}_" for kind in embedding.rope_type} if isinstance(embedding.rope_type, dict) else {"": ""}
        )
        self.scalings = {kind: float(getattr(embedding, f"{at}attention_scaling")) for kind, at in kinds.items()}
        self.frequencies: dict[str, torch.Tensor] = {
            kind: getattr(embedding, f"{at}inv_freq").float().contiguous() for kind, at in kinds.items()
        }
        """float32 [dim / 2], radians per position, as transformers computed them: by the type of a layer, or "" for
        all layers."""

    def forward(
        self, like: torch.Tensor, position_ids: torch.Tensor, layer_type: str = ""
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """position_ids: int64 [batch, rows], or [3, batch, rows] in models that see images, where those of texts are
        alike. layer_type: a key of `frequencies` -> cosines and sines, float32 [batch, rows, dim]"""
        if position_ids.ndim == 3:
            position_ids = position_ids[0]
        cosines, sines = rotary_angles(
            position_ids.reshape(-1).contiguous(),
            self.frequencies[layer_type],
            self.scalings[layer_type],
            torch.float32,
        )
        shape = (*position_ids.shape, -1)
        return cosines.view(shape), sines.view(shape)


def has_fixed_frequencies(embedding: nn.Module) -> bool:
    """Whether an embedding of transformers multiplies positions by frequencies that never change."""
    rope_type = getattr(embedding, "rope_type", None)  # by the type of a layer if they differ
    by_parts = hasattr(embedding, "mrope_section") and type(embedding).__name__ not in _ALIKE_FOR_TEXTS
    types = set(rope_type.values()) if isinstance(rope_type, dict) else {rope_type}
    return bool(types) and types <= _FIXED and not by_parts
