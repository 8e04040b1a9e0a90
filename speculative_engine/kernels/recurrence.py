"""Recurrent layers over the token trees of a batch, in compiled code (`csrc/recurrence.c`) or in torch.

Each token starts from the convolution's inputs and from the state of the token before it on its path, and tokens are
processed in turn. A token's result therefore has the same bits however its path was divided into passes. The torch code
computes the same in the same order, but with other last bits, and runs where the compiled code cannot.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch

from speculative_engine.kernels.library import BF16, LANES, library, loaded
from speculative_engine.kernels.structs import DECAYS, Recurrence

Decays = Literal["head", "value", "rate", "mean"]
SOURCE, FROM, TO, OUT, COPY = range(5)
"""Fields of an item, see `Recurrence` in `csrc/ops.h`."""


@dataclass(frozen=True, slots=True)
class RecurrenceShape:
    """Sizes and kind of a layer's recurrence: a causal convolution, and a state for each value head (or none)."""

    channels: int
    taps: int
    """Inputs that a result of the convolution depends on, the token's own included."""
    activates: bool = True
    """Whether SiLU follows the convolution."""
    value_heads: int = 0
    """0 for a layer whose only memory is the convolution's."""
    key_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    query_at: int = 0
    """First channel of the queries; those of keys and values likewise."""
    key_at: int = 0
    value_at: int = 0
    normalises: bool = False
    """Whether keys and queries are scaled to length 1, and queries multiplied by `scale`."""
    eps: float = 0.0
    scale: float = 1.0
    corrects: bool = False
    """Delta rule: whether what the key finds in the state is subtracted from the value."""
    decay_each_key: bool = False
    """Whether there is a decay for each element of the key, instead of one for each head."""
    decays: Decays = "head"
    """What an element of the state decays by: a factor of its head, or of its head's key; a factor of its value; or
    e^(step of its value * its own rate), where values are multiplied by their steps, too. With "mean", the result is
    the mean of a channel's values, weighted by e^key, which decays at the channel's rate (`csrc/ops.h`)."""

    @property
    def head_decays(self) -> int:
        """Decays, or steps, of a head."""
        if self.decays == "mean":
            return 0
        if self.decays != "head":
            return self.value_dim
        return self.key_dim if self.decay_each_key else 1

    @property
    def gates(self) -> int:
        """Gates of a token: the decays of all heads, then a beta for each head unless each value has a decay."""
        betas = 1 if self.decays == "head" else 0
        return self.value_heads * (self.head_decays + betas) if self.value_heads else 0

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Memory of a sequence's state. dtype: of the convolution's inputs."""
        window = (self.taps - 1) * self.channels * dtype.itemsize
        return int(window + 4 * self.value_heads * self.key_dim * self.value_dim)

    def input_bytes(self, dtype: torch.dtype) -> int:
        """Memory of the inputs of a token whose update of the state can be undone."""
        return int(self.channels * dtype.itemsize + 4 * self.gates)


class RecurrenceWeights(NamedTuple):
    """The weights of a layer's recurrence, float32."""

    convolution: torch.Tensor
    """[taps, channels], the token's own tap last"""
    bias: torch.Tensor | None = None
    """Of the convolution, [channels]."""
    direct: torch.Tensor | None = None
    """The share of a value that is added to its own result, [value_heads]; with a decay for each value,
    [value_heads * value_dim]."""
    rates: torch.Tensor | None = None
    """Of elements of the state that have rates, at most 0, [value_heads, key_dim, value_dim]; with "mean", rates and
    bonuses of channels, [value_heads, 3, value_dim], of which the last third is not used."""


@dataclass(slots=True)
class LayerMemory:
    """A layer's memory beside the batch: what is kept of tokens and of sequences between passes."""

    inputs: torch.Tensor
    """Inputs of the convolution, of tokens that may be rolled back: [tokens, channels], in the model's dtype."""
    gates: torch.Tensor
    """Gates of these tokens, float32 [tokens, gates]."""
    windows: torch.Tensor
    """The inputs before each state, oldest first: [states, taps - 1, channels], in the model's dtype."""
    states: torch.Tensor
    """float32 [states, value_heads, key_dim, value_dim]"""


@dataclass(slots=True)
class PassItems:
    """The tokens that a pass processes, for one number of taps; arrays are int64, see `Recurrence` in `csrc/ops.h`."""

    items: np.ndarray
    taps: np.ndarray
    groups: np.ndarray
    saves: np.ndarray
    levels: int


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
    return _run_torch(shape, weights, work, inputs, gates, memory)


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
    rows, count, threads = len(inputs), len(work.items), torch.get_num_threads()
    mixed = torch.empty(count, shape.channels)
    out = torch.empty(rows, shape.value_heads, shape.value_dim)
    scratch = torch.empty(threads, work.levels * shape.key_dim * shape.value_dim + shape.key_dim)
    gathered = torch.empty(len(work.saves), shape.taps - 1, shape.channels, dtype=inputs.dtype)
    call = Recurrence(
        inputs.data_ptr(), gates.data_ptr(), memory.inputs.data_ptr(), memory.gates.data_ptr(),
        memory.windows.data_ptr(), memory.states.data_ptr(), weights.convolution.data_ptr(),
        *(None if each is None else each.data_ptr() for each in (weights.bias, weights.direct, weights.rates)),
        mixed.data_ptr(), out.data_ptr(), scratch.data_ptr(), gathered.data_ptr(),
        work.items.ctypes.data, work.taps.ctypes.data, work.groups.ctypes.data, work.saves.ctypes.data,
        count, len(work.groups) - 1, len(work.saves), shape.channels, shape.taps,
        shape.value_heads, shape.key_heads, shape.key_dim, shape.value_dim,
        shape.query_at, shape.key_at, shape.value_at, work.levels,
        shape.eps, shape.scale, BF16[inputs.dtype],
        shape.activates, shape.normalises, shape.corrects, shape.decay_each_key, DECAYS.index(shape.decays),
    )  # fmt: skip
    loaded().draftwire_recurrence(ctypes.addressof(call), threads)
    return out if shape.value_heads else _by_row(mixed, work, rows)


def _by_row(mixed: torch.Tensor, work: PassItems, rows: int) -> torch.Tensor:
    """The results of items that are rows of the batch, in the order of the rows."""
    asked = np.flatnonzero(work.items[:, OUT] >= 0)
    if len(asked) == rows and np.array_equal(work.items[asked, OUT], np.arange(rows)):
        return mixed if len(mixed) == rows else mixed[torch.from_numpy(asked)]
    out = mixed.new_zeros(rows, mixed.shape[1])
    out[torch.from_numpy(work.items[asked, OUT])] = mixed[torch.from_numpy(asked)]
    return out


def _run_torch(
    shape: RecurrenceShape,
    weights: RecurrenceWeights,
    work: PassItems,
    inputs: torch.Tensor,
    gates: torch.Tensor,
    memory: LayerMemory,
) -> torch.Tensor:
    """The plain form, item by item. Each operation is on one item, so that its shape never depends on the batch."""
    nothing = inputs.new_zeros(shape.channels)
    flat = memory.windows.reshape(-1, shape.channels)

    def source(index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (inputs[index], gates[index]) if index >= 0 else (memory.inputs[~index], memory.gates[~index])

    def tap(code: int) -> torch.Tensor:
        if code >= 0:
            return inputs[code]
        if code == -1:
            return nothing
        return flat[(-code - 2) >> 1] if code & 1 else memory.inputs[(-code - 2) >> 1]

    windows: list[torch.Tensor] = []
    mixed: list[torch.Tensor] = []
    for item, taps in zip(work.items.tolist(), work.taps.tolist(), strict=True):
        window = torch.stack([*map(tap, taps), source(item[SOURCE])[0]])
        windows.append(window[1:])
        result = nothing.float()
        for index in range(shape.taps):
            result = result + window[index].float() * weights.convolution[index]
        if weights.bias is not None:
            result = result + weights.bias
        result = result.to(inputs.dtype)
        mixed.append((torch.nn.functional.silu(result) if shape.activates else result).float())
    if shape.value_heads:
        out = torch.zeros(len(inputs), shape.value_heads, shape.value_dim, device=inputs.device)
        _advance_torch(
            shape, weights, work, [source(int(each))[1] for each in work.items[:, SOURCE]], mixed, memory, out
        )
    else:
        out = _by_row(torch.stack(mixed), work, len(inputs))
    for index, state in work.saves.tolist():
        memory.windows[state] = windows[index]
    return out


def _advance_torch(
    shape: RecurrenceShape,
    weights: RecurrenceWeights,
    work: PassItems,
    gates: list[torch.Tensor],
    mixed: list[torch.Tensor],
    memory: LayerMemory,
    out: torch.Tensor,
) -> None:
    heads, shared = shape.value_heads, shape.value_heads // shape.key_heads
    levels: dict[int, torch.Tensor] = {-1: memory.states.new_zeros(memory.states.shape[1:])}

    def of_keys(row: torch.Tensor, at: int, scale: float) -> torch.Tensor:
        each = row[at : at + shape.key_heads * shape.key_dim].view(shape.key_heads, shape.key_dim)
        if shape.normalises:
            each = each * (scale / torch.sqrt(each.square().sum(-1, keepdim=True) + shape.eps))
        return each.repeat_interleave(shared, 0).unsqueeze(2)

    for (_, begin, end, row, copy), gate, one in zip(work.items.tolist(), gates, mixed, strict=True):
        if shape.decays == "mean":
            assert weights.rates is not None
            values = heads, shape.value_dim
            key, value = (one[at : at + heads * shape.value_dim].view(values) for at in (shape.key_at, shape.value_at))
            before = None if begin == -1 else levels[begin] if begin < 0 else memory.states[begin]
            state, result = _mean_torch(key, value, weights.rates, before)
            _keep(state, end, copy, levels, memory)
            if row >= 0:
                out[row] = result
            continue
        query, key = of_keys(one, shape.query_at, shape.scale), of_keys(one, shape.key_at, 1.0)
        value = one[shape.value_at : shape.value_at + heads * shape.value_dim].view(heads, 1, shape.value_dim)
        state = levels[begin] if begin < 0 else memory.states[begin]
        if shape.decays == "head":
            decay = gate[: heads * shape.head_decays].view(heads, shape.head_decays, 1)
            beta = gate[heads * shape.head_decays :].view(heads, 1, 1)
        else:
            steps = gate.view(heads, 1, shape.value_dim)
            decay = steps if weights.rates is None else torch.exp(steps * weights.rates)
            beta = torch.ones_like(steps) if weights.rates is None else steps
        found = (state * (key * decay)).sum(1, keepdim=True) if shape.corrects else 0.0
        state = state * decay + (value - found) * beta * key
        _keep(state, end, copy, levels, memory)
        if row >= 0:
            out[row] = (state * query).sum(1)
            if weights.direct is not None:
                out[row] += value[:, 0] * weights.direct.view(heads, -1)


def _keep(state: torch.Tensor, end: int, copy: int, levels: dict[int, torch.Tensor], memory: LayerMemory) -> None:
    """Stores the state after an item."""
    if end < 0:
        levels[end] = state
    else:
        memory.states[end] = state
    if copy >= 0:
        memory.states[copy] = state


def _mean_torch(
    key: torch.Tensor, value: torch.Tensor, rates: torch.Tensor, before: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The state after a token [heads, 3, values] and its result [heads, values]. before: the state before it"""
    if before is None:
        nothing = torch.zeros_like(key)
        before = torch.stack([nothing, nothing, nothing - 1e38], 1)
    total, weight, exponent = before.unbind(1)
    own = key + rates[:, 1]
    top = torch.maximum(exponent, own)
    past, now = torch.exp(exponent - top), torch.exp(own - top)
    result = (past * total + now * value) / (past * weight + now)
    exponent = exponent + rates[:, 0]
    top = torch.maximum(exponent, key)
    past, now = torch.exp(exponent - top), torch.exp(key - top)
    return torch.stack([past * total + now * value, past * weight + now, top], 1), result
