"""Random recurrences of every kind, over a tree beside a new sequence."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch

from draftwire_core.engine.kernels.recurrent.recurrence_shape import (
    LayerMemory,
    PassItems,
    RecurrenceShape,
    RecurrenceWeights,
)
from draftwire_core.engine.kernels.structs import DECAYS
from tests.harness.kernels.driver import RECURRENCE, encoded

_HEADS = {"value_heads": 4, "key_heads": 2, "key_dim": 32, "value_dim": 80}
SHAPES: dict[str, RecurrenceShape] = {
    "convolution": RecurrenceShape(channels=48, taps=3, activates=False),
    "delta rule": RecurrenceShape(
        channels=448, taps=4, **_HEADS, key_at=64, value_at=128, normalises=True, eps=1e-6, scale=0.25, corrects=True
    ),
    "decays of keys": RecurrenceShape(
        channels=448, taps=4, **_HEADS, key_at=64, value_at=128, normalises=True, corrects=True, decay_each_key=True
    ),
    "outer products": RecurrenceShape(channels=448, taps=4, **_HEADS, key_at=320, query_at=384),
    "rates": RecurrenceShape(
        channels=352, taps=1, activates=False, value_heads=4, key_heads=1, key_dim=16, value_dim=80, key_at=320,
        query_at=336, decays="rate",
    ),
    "decays of values": RecurrenceShape(
        channels=336, taps=1, activates=False, value_heads=4, key_heads=1, key_dim=1, value_dim=80, key_at=320,
        query_at=320, decays="value",
    ),
    "means": RecurrenceShape(
        channels=640, taps=1, activates=False, value_heads=4, key_heads=4, key_dim=3, value_dim=80, value_at=320,
        decays="mean",
    ),
}  # fmt: skip
"""A shape of each kind."""

_ROWS, _STORED, _STATES = 5, 1, 3
_ITEMS = np.array(
    [
        [~0, 0, 0, -1, 2],  # an accepted token moves state 0 on, of which state 2 gets a copy
        [0, 0, -2, 0, -1],  # nodes after it: a chain of two, and a sibling of the second
        [1, -2, -3, 1, -1],
        [2, -2, -2, 2, -1],
        [3, -1, 1, 3, -1],  # a new sequence
        [4, 1, 1, 4, -1],
    ]
)
_PARENTS = [None, 0, 1, 1, None, 4]
_SAVES = np.array([[0, 0], [0, 2], [5, 1]])
_GROUPS = np.array([0, 4, 6])
_LEVELS = 2


def items_of(taps: int) -> PassItems:
    """The tokens of the pass."""
    before = taps - 1
    found: list[list[int]] = []
    for index, parent in enumerate(_PARENTS):
        if parent is not None:
            own = int(_ITEMS[parent, 0])
            found.append([*found[parent], own if own >= 0 else -2 - 2 * ~own][1:] if before else [])
        else:
            found.append([-3 - 2 * tap if index == 0 else -1 for tap in range(before)])
    return PassItems(_ITEMS, np.array(found, dtype=np.int64).reshape(len(found), before), _GROUPS, _SAVES, _LEVELS)


@dataclass
class RandomRecurrence:
    """A recurrence with random inputs, weights and states."""

    shape: RecurrenceShape
    weights: RecurrenceWeights
    inputs: torch.Tensor
    gates: torch.Tensor
    memory: LayerMemory

    @classmethod
    def of(cls, shape: RecurrenceShape, dtype: torch.dtype) -> RandomRecurrence:
        """A recurrence of a shape; dtype: of inputs."""
        generator = torch.Generator().manual_seed(0)

        def random(*sizes: int) -> torch.Tensor:
            return torch.randn(*sizes, generator=generator)

        def gates(rows: int) -> torch.Tensor:
            return torch.rand(rows, shape.gates, generator=generator)

        size = shape.value_heads, shape.key_dim, shape.value_dim
        each_value = shape.decays != "head"
        directs = shape.value_heads * (shape.value_dim if each_value else 1)
        weights = RecurrenceWeights(
            random(shape.taps, shape.channels),
            random(shape.channels) if shape.taps > 1 else None,
            random(directs) if shape.value_heads and not shape.corrects and shape.decays != "mean" else None,
            -4 * torch.rand(*size, generator=generator) if shape.decays in ("rate", "mean") else None,
        )
        memory = LayerMemory(
            random(_STORED, shape.channels).to(dtype),
            gates(_STORED),
            random(_STATES, shape.taps - 1, shape.channels).to(dtype),
            random(_STATES, *size),
        )
        return cls(shape, weights, random(_ROWS, shape.channels).to(dtype), gates(_ROWS), memory)

    def copied_memory(self) -> LayerMemory:
        """The memory before the pass, to be overwritten."""
        return copy.deepcopy(self.memory)

    def encoded(self) -> bytes:
        """The call, for `driver.c`."""
        shape, weights, memory = self.shape, self.weights, self.memory
        work = items_of(shape.taps)
        bf16 = self.inputs.dtype == torch.bfloat16
        count, before = len(work.items), shape.taps - 1
        return encoded(
            RECURRENCE,
            (
                count, len(work.groups) - 1, len(work.saves), shape.channels, shape.taps,
                shape.value_heads, shape.key_heads, shape.key_dim, shape.value_dim, shape.query_at, shape.key_at,
                shape.value_at, work.levels, shape.eps, shape.scale, bf16, shape.activates, shape.normalises,
                shape.corrects, shape.decay_each_key, DECAYS.index(shape.decays),
            ),
            self.inputs, self.gates, memory.inputs, memory.gates, memory.windows, memory.states,
            *weights,
            bytes(4 * count * shape.channels),
            bytes(4 * _ROWS * shape.value_heads * shape.value_dim),
            bytes(4 * (work.levels * shape.key_dim * shape.value_dim + shape.key_dim)),
            bytes(len(work.saves) * before * shape.channels * self.inputs.element_size()),
            *map(torch.from_numpy, (work.items, work.taps, work.groups, work.saves)),
        )  # fmt: skip
