"""A gated delta net of a decoder layer in compiled code, as one call or as separate operations.

Its C code is in `csrc/layers/delta_net.c`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from draftwire_core.engine.kernels.library import loaded
from draftwire_core.engine.kernels.recurrent.recurrence import RecurrenceCall
from draftwire_core.engine.kernels.structs import DeltaNet, Linear, StoredRows
from draftwire_core.engine.model.attention.packed_attention import ForwardPass
from draftwire_core.engine.model.layers.layer_parts import DeltaParts
from draftwire_core.engine.model.linear.linear_structs import LinearStructs, are_compiled, pointer


class DeltaBlock:
    """A gated delta net; keeps its parts alive. Its recurrence is that of transformers' module."""

    def __init__(self, parts: DeltaParts):
        self._parts = parts
        present = [parts.project, parts.output]
        compiled = are_compiled(present)
        self._linears = LinearStructs(present) if compiled else None
        project, output = (Linear(), Linear()) if self._linears is None else self._linears.array
        norms = parts.input_norm, parts.output_norm
        self.call = DeltaNet(
            project, output,
            *(None if norm is None else norm[0].data_ptr() for norm in norms),
            parts.rates.data_ptr(), parts.bias.data_ptr(), parts.norm[0].data_ptr(),
            (ctypes.c_int64 * 6)(*parts.places), (ctypes.c_int64 * 6)(*parts.strides),
            parts.project.out_features, 0.0 if parts.input_norm is None else parts.input_norm[1], parts.norm[1],
            parts.strength,
        )  # fmt: skip
        self._address = ctypes.addressof(self.call)

    def forward(self, layer: int, about: int, under_way: ForwardPass, dtype: torch.dtype) -> None:
        """Adds the net's output to the residual stream of a pass. Its products must be compiled.

        layer, about: addresses of the Layer that it is in, and of the Pass. dtype: the model's
        """
        work, stored = self._work(under_way, dtype)
        loaded().draftwire_delta_block(layer, about, self._address, work.address, ctypes.addressof(stored))

    def results(self, projected: torch.Tensor, under_way: ForwardPass, dtype: torch.dtype) -> torch.Tensor:
        """The inputs of the last projection, float32 [rows, values], by separate calls. projected: float32 [rows,
        outputs], contiguous"""
        work, stored = self._work(under_way, dtype)
        self.write_inputs(work, projected)
        loaded().draftwire_recurrence(work.address, torch.get_num_threads())
        loaded().draftwire_delta_store(work.address, ctypes.addressof(stored))
        self.finish(work, projected)
        return work.out.view(len(projected), -1)

    def write_inputs(self, work: RecurrenceCall, projected: torch.Tensor) -> None:
        """Writes the inputs and gates of a recurrence. projected: as for `results`"""
        loaded().draftwire_delta_inputs(
            self._address, work.address, projected.data_ptr(), len(projected), torch.get_num_threads()
        )

    def finish(self, work: RecurrenceCall, projected: torch.Tensor) -> None:
        """Norms and gates the results of a recurrence, in place."""
        loaded().draftwire_delta_outputs(
            self._address, work.address, projected.data_ptr(), len(projected), torch.get_num_threads()
        )

    def _work(self, under_way: ForwardPass, dtype: torch.dtype) -> tuple[RecurrenceCall, StoredRows]:
        """The recurrence of a pass with this layer's weights and memory, and the rows to keep."""
        packed: Any = self._parts.module._packed_mixer
        mixer, number = packed
        shape, weights = mixer.recurrences[0]
        plan = under_way.plan
        assert plan is not None, "a model with recurrent layers plans its passes"
        shared = under_way.recurrence
        if shared is None or shared[0].shape != shape:
            rows = len(under_way.packed_batch)
            inputs, gates = torch.empty(rows, shape.channels, dtype=dtype), torch.empty(rows, shape.gates)
            call = RecurrenceCall(shape, plan.work(shape.taps), inputs, gates, torch.get_num_threads())
            stored = StoredRows(pointer(plan.stored_rows), pointer(plan.stored_at), len(plan.stored_rows))
            shared = under_way.recurrence = call, stored
        shared[0].use(weights, plan.states.layer(number))
        return shared
