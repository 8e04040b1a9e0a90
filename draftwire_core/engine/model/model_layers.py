"""Runs the layers of a prepared model over a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import cast

import torch
from torch import nn
from transformers import PreTrainedModel

from draftwire_core.engine.kv.kv_slots import KvCache
from draftwire_core.engine.model.attention.packed_attention import current_pass, in_packed_pass, packed_context
from draftwire_core.engine.model.features.taps import TapReading
from draftwire_core.engine.model.layers.compiled_decoder import CompiledDecoder
from draftwire_core.engine.model.layers.compiled_pass import CompiledPass
from draftwire_core.engine.model.packed_batch import PackedBatch
from draftwire_core.engine.model.rows import FixedRows, Rows


class ModelLayers:
    """The layers of a model whose attention function is ours."""

    def __init__(self, model: PreTrainedModel, compiled: CompiledPass | None = None):
        """compiled: a pass without transformers' code, taken whenever it is available."""
        self.compiled = compiled
        self._model = model
        self._dtype = model.dtype
        self._width = int(model.config.get_text_config(decoder=True).hidden_size)

    def logits(self, batch: PackedBatch, cache: KvCache) -> torch.Tensor:
        """Runs a pass: writes the rows' keys and values and returns logits [wanted rows, vocabulary]."""
        decoder = self._decoder
        if decoder is None:
            with torch.inference_mode(), torch.cuda.device_of(batch.token_ids), packed_context(batch, cache):
                return self._call(batch, batch.logit_rows)
        reading = self._reading(batch)
        logits = decoder.logits(batch, cache, reading)
        if reading is not None:
            with torch.inference_mode():
                reading.keep(torch.from_numpy(batch.numbers[2]), batch.slots)
        return logits

    def rows(self, batch: PackedBatch | FixedRows, cache: KvCache, wanted: torch.Tensor | int) -> Rows:
        """Runs a pass, and also returns the output head's inputs. wanted: rows whose results to return, int64 [n]; 0
        for all."""
        decoder = self._decoder
        if decoder is not None:
            logits = self.logits(cast(PackedBatch, batch), cache)
            return Rows(logits, decoder.head_inputs(len(logits)))
        states: list[torch.Tensor] = []
        with torch.cuda.device_of(batch.token_ids), packed_context(batch, cache), self._kept(states):
            logits = self._call(batch, wanted)
        return Rows(logits, states[0].reshape(len(logits), states[0].shape[-1]))

    @property
    def _decoder(self) -> CompiledDecoder | None:
        """The pass in a few compiled calls; None if the model has none, or not now."""
        return None if self.compiled is None or not self.compiled.available else self.compiled.decoder

    def _call(self, batch: PackedBatch | FixedRows, wanted: torch.Tensor | int) -> torch.Tensor:
        """Calls the model within a packed context."""
        reading = self._reading(batch)
        if reading is not None:
            current_pass().reading = reading
        if self.compiled is not None and self.compiled.available:
            logits = self.compiled.logits(cast(PackedBatch, batch), cast(torch.Tensor, wanted))
        else:
            with reading.hooked(self._model) if reading is not None else nullcontext():
                out = self._model(
                    input_ids=batch.token_ids.unsqueeze(0),
                    position_ids=batch.positions.unsqueeze(0),
                    use_cache=False,
                    logits_to_keep=wanted,
                )
            logits = out.logits[0]
        if reading is not None:
            reading.keep(torch.from_numpy(cast(PackedBatch, batch).numbers[2]), batch.slots)
        return logits

    def _reading(self, batch: PackedBatch | FixedRows) -> TapReading | None:
        """Returns the reading of a pass with taps."""
        if not isinstance(batch, PackedBatch) or not batch.taps:
            return None
        return TapReading(batch.taps, len(batch), self._width, self._dtype, batch.device)

    @contextmanager
    def _kept(self, states: list[torch.Tensor]) -> Iterator[None]:
        """Keeps the output head's inputs, in the running pass, in a list."""
        under_way = current_pass()

        def keep(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            # Drafters that use the target's head are loaded, and so tried, in other threads meanwhile.
            if in_packed_pass() and current_pass() is under_way:
                states.append(inputs[0].to(self._dtype))

        hook = self._model.get_output_embeddings().register_forward_pre_hook(keep)
        try:
            yield
        finally:
            hook.remove()
