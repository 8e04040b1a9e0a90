"""Recurrences in torch, item by item, where compiled code cannot run them."""

from __future__ import annotations

import numpy as np
import torch

from draftwire_core.engine.kernels.recurrent.recurrence_shape import (
    OUT,
    SOURCE,
    LayerMemory,
    PassItems,
    RecurrenceShape,
    RecurrenceWeights,
)


def run_in_torch(
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
        values = len(inputs), shape.value_heads, shape.value_dim
        out = torch.zeros(values, dtype=torch.float32, device=inputs.device)
        _advance_torch(
            shape, weights, work, [source(int(each))[1] for each in work.items[:, SOURCE]], mixed, memory, out
        )
    else:
        out = by_row(torch.stack(mixed), work, len(inputs))
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


def by_row(mixed: torch.Tensor, work: PassItems, rows: int) -> torch.Tensor:
    """The results of items that are rows of the batch, in the order of the rows."""
    asked = np.flatnonzero(work.items[:, OUT] >= 0)
    if len(asked) == rows and np.array_equal(work.items[asked, OUT], np.arange(rows)):
        return mixed if len(mixed) == rows else mixed[torch.from_numpy(asked)]
    out = mixed.new_zeros(rows, mixed.shape[1])
    out[torch.from_numpy(work.items[asked, OUT])] = mixed[torch.from_numpy(asked)]
    return out
