"""A forward pass whose layers are all compiled, without transformers' code around them.

That code takes some 0.5 ms a pass in Python, whatever the model: a twentieth of a step of 400 M parameters in 4 bits.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from transformers import PreTrainedModel

from draftwire_core.engine.model.attention.packed_attention import ATTENTION_NAME, current_pass
from draftwire_core.engine.model.attention.rotary_angles import RotaryAngles
from draftwire_core.engine.model.layers.compiled_decoder import CompiledDecoder
from draftwire_core.engine.model.layers.decoder_layer import LayersTogether
from draftwire_core.engine.model.layers.fused_layer import FusedLayer, FusedNorm
from draftwire_core.engine.model.layers.layer_fusion import runs_compiled
from draftwire_core.engine.model.packed_batch import PackedBatch


class CompiledPass:
    """The modules of a model that `runs_compiled`, in the order in which they run. It shares them with the model."""

    def __init__(self, model: PreTrainedModel):
        decoder = model.get_decoder()
        self._config = model.config
        self._embedding: nn.Module = decoder.embed_tokens
        self._angles: RotaryAngles = decoder.rotary_emb
        self._layers: list[FusedLayer] = list(decoder.layers)
        kinds = list(self._angles.frequencies)
        types = [""] * len(self._layers) if kinds == [""] else decoder.config.layer_types
        self._angles_of = [kinds.index(each) for each in types[: len(self._layers)]]
        """The index of each layer's angles."""
        compiled = [layer.compiled for layer in self._layers if layer.compiled is not None and layer.compiled.is_plain]
        self._together: LayersTogether | None = None
        if len(compiled) == len(self._layers):
            self._together = LayersTogether(compiled, self._angles_of)
        self._norm: nn.Module = decoder.norm
        self._head: nn.Module = model.get_output_embeddings()
        self.decoder: CompiledDecoder | None = None
        """The same pass without modules; None unless all layers are plain."""
        if self._together is not None and CompiledDecoder.takes(self._norm, self._head):
            self.decoder = CompiledDecoder(
                self._embedding, self._angles, self._together, cast(FusedNorm, self._norm), self._head
            )

    @classmethod
    def of(cls, model: PreTrainedModel) -> CompiledPass | None:
        """Returns the pass of a model; None for one that does not run compiled."""
        return cls(model) if model.device.type == "cpu" and runs_compiled(model) else None

    @property
    def available(self) -> bool:
        """Whether the layers run compiled now: with another attention function they are transformers' own."""
        return bool(self._config._attn_implementation == ATTENTION_NAME)

    def logits(self, batch: PackedBatch, wanted: torch.Tensor) -> torch.Tensor:
        """Runs the pass within a packed context. wanted: int64, rows -> logits [wanted rows, vocabulary]"""
        under_way = current_pass()
        hidden = self._embedding(batch.token_ids.unsqueeze(0))
        positions = batch.positions.unsqueeze(0)
        angles = [self._angles(hidden, positions, kind) for kind in self._angles.frequencies]
        reading, count = under_way.reading, len(self._layers)
        for begin, end in [(0, count)] if reading is None else reading.between(count, hidden[0]):
            if self._together is not None:
                self._together.run(begin, end, hidden, angles, under_way)
                continue
            for layer, which in zip(self._layers[begin:end], self._angles_of[begin:end], strict=True):
                layer.run_compiled(hidden, angles[which], under_way)
        logits: torch.Tensor = self._head(self._norm(hidden, wanted))
        return logits[0]
