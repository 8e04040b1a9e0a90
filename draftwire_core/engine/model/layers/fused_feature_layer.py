"""The first layer of an EAGLE-3 network, which reads features, with fused blocks."""

from __future__ import annotations

from typing import Any

import torch

from draftwire_core.engine.model.attention.packed_attention import ForwardPass, current_pass
from draftwire_core.engine.model.layers.decoder_layer import ResidualStream
from draftwire_core.engine.model.layers.fused_layer import FusedLayer, normed
from draftwire_core.engine.model.layers.layer_parts import Angles


class FusedFeatureLayer(FusedLayer):
    """A fused layer that reads features (`drafters/eagle/eagle_model.py`). All of its blocks are fused, see
    `supported_blocks`."""

    def forward(
        self, hidden_states: torch.Tensor, *args: Any, position_embeddings: Angles | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """Overwrites and returns hidden_states, embeddings [1, rows, width]. position_embeddings: as for FusedLayer."""
        self.run_compiled(hidden_states, position_embeddings, current_pass())
        return hidden_states

    def run_compiled(
        self,
        hidden: torch.Tensor,
        angles: Angles | None,
        under_way: ForwardPass,
        tokens: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        """Overwrites hidden, embeddings [1, rows, width], with the layer's output. angles: as for `forward`."""
        features = under_way.packed_batch.features
        assert features is not None, "the drafter sets them"
        if self.compiled is not None:
            self.compiled.forward(hidden, angles, under_way, features.unsqueeze(0))
        else:
            self._read_features(hidden, angles, under_way, features)

    def _read_features(
        self, hidden: torch.Tensor, angles: Angles | None, under_way: ForwardPass, features: torch.Tensor
    ) -> None:
        """Runs the layer as separate operations."""
        parts = self._parts.features
        assert parts is not None, "such a layer has a norm of features"
        residual = features.float()
        inputs = normed(residual, parts.norm)
        if parts.normed_residual:
            residual = inputs.clone()
        embedded = normed(hidden[0].float(), self._norms[0])
        self._in_parts(residual, angles, torch.cat([embedded, inputs], dim=1))
        hidden[0].copy_(residual)
        under_way.shared = ResidualStream(hidden, residual, [])
