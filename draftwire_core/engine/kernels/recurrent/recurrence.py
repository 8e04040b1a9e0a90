"""Recurrent layers over the token trees of a batch, in compiled code (`csrc/layers/recurrence.c`) or in torch.

Each token starts from the convolution's inputs and from the state of the token before it on its path, and tokens are
processed in turn. A token's result therefore has the same bits however its path was divided into passes. The torch code
computes the same in the same order, but with other last bits, and runs where the compiled code cannot.
"""

from __future__ import annotations

import ctypes

import torch

from draftwire_core.engine.kernels.library import BF16, LANES, library, loaded
from draftwire_core.engine.kernels.recurrent.recurrence_shape import (
    LayerMemory,
    PassItems,
    RecurrenceShape,
    RecurrenceWeights,
)
from draftwire_core.engine.kernels.recurrent.torch_recurrence import by_row, run_in_torch
from draftwire_core.engine.kernels.structs import DECAYS, Recurrence


def run(
    shape: RecurrenceShape,
    weights: RecurrenceWeights,
    work: PassItems,
    inputs: torch.Tensor,
    gates: torch.Tensor,
    memory: LayerMemory,
) -> torch.Tensor:
    """Processes the items of a pass: updates states and windows of `memory`, and returns the rows' results, float32.

    inputs [rows, channels], gates [rows, gates]: of the batch's rows. Results are [rows, value_heads, value_dim], or
    [rows, channels] without value heads.
    """
    if _fits(shape, inputs):
        return _run_compiled(shape, weights, work, inputs.contiguous(), gates.contiguous(), memory)
    return run_in_torch(shape, weights, work, inputs, gates, memory)


def _fits(shape: RecurrenceShape, inputs: torch.Tensor) -> bool:
    widths = [shape.channels, shape.value_dim]
    if shape.normalises:
        widths += [shape.key_dim, shape.query_at, shape.key_at]
    return (
        inputs.device.type == "cpu"
        and inputs.dtype in BF16
        and not any(width % LANES for width in widths)
        and library() is not None
    )


def _run_compiled(
    shape: RecurrenceShape,
    weights: RecurrenceWeights,
    work: PassItems,
    inputs: torch.Tensor,
    gates: torch.Tensor,
    memory: LayerMemory,
) -> torch.Tensor:
    threads = torch.get_num_threads()
    call = RecurrenceCall(shape, work, inputs, gates, threads)
    call.use(weights, memory)
    loaded().draftwire_recurrence(call.address, threads)
    return call.out if shape.value_heads else by_row(call.mixed, work, len(inputs))


class RecurrenceCall:
    """A call of the compiled code for the items of a pass, which layers with one shape can use in turn."""

    def __init__(
        self, shape: RecurrenceShape, work: PassItems, inputs: torch.Tensor, gates: torch.Tensor, threads: int
    ):
        """inputs, gates: as for `run`, contiguous"""
        rows, count = len(inputs), len(work.items)
        self.shape, self.inputs, self.gates = shape, inputs, gates
        self.mixed = torch.empty(count, shape.channels, dtype=torch.float32)
        """The convolution's results, float32 [items, channels]."""
        self.out = torch.empty(rows, shape.value_heads, shape.value_dim, dtype=torch.float32)
        """float32"""
        floats = work.levels * shape.key_dim * shape.value_dim + shape.key_dim
        scratch = torch.empty(threads, floats, dtype=torch.float32)
        gathered = torch.empty(len(work.saves), shape.taps - 1, shape.channels, dtype=inputs.dtype)
        self._held = work, scratch, gathered
        self._struct = Recurrence(
            inputs.data_ptr(), gates.data_ptr(), None, None, None, None, None, None, None, None,
            self.mixed.data_ptr(), self.out.data_ptr(), scratch.data_ptr(), gathered.data_ptr(),
            work.items.ctypes.data, work.taps.ctypes.data, work.groups.ctypes.data, work.saves.ctypes.data,
            count, len(work.groups) - 1, len(work.saves), shape.channels, shape.taps,
            shape.value_heads, shape.key_heads, shape.key_dim, shape.value_dim,
            shape.query_at, shape.key_at, shape.value_at, work.levels,
            shape.eps, shape.scale, BF16[inputs.dtype],
            shape.activates, shape.normalises, shape.corrects, shape.decay_each_key, DECAYS.index(shape.decays),
        )  # fmt: skip
        self.address = ctypes.addressof(self._struct)

    def use(self, weights: RecurrenceWeights, memory: LayerMemory) -> None:
        """Takes the weights and the memory of a layer."""
        struct = self._struct
        struct.weight = weights.convolution.data_ptr()
        struct.bias, struct.direct, struct.rates = (
            None if each is None else each.data_ptr() for each in (weights.bias, weights.direct, weights.rates)
        )
        struct.stored_inputs, struct.stored_gates = memory.inputs.data_ptr(), memory.gates.data_ptr()
        struct.windows, struct.states = memory.windows.data_ptr(), memory.states.data_ptr()
