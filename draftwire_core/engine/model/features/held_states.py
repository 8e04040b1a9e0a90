"""Hidden states that were read but not mapped yet, for a drafter that is paused."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
import torch

from draftwire_core.engine.device.device_copy import to_device

MOST_ROWS = 256
"""Rows that are held for a tap: few enough that mapping them all at once takes about as long as a step."""


class _Pass(NamedTuple):
    """One pass's rows: their slots, int64 [rows], and states [rows, width]; None if they were not read."""

    slots: np.ndarray
    states: torch.Tensor | None


class HeldStates:
    """The states of the last passes, by KV slot. Holding them takes no time: nothing is copied."""

    def __init__(self) -> None:
        self._passes: deque[_Pass] = deque()
        """The oldest one has states."""
        self._rows = 0

    def hold(self, slots: np.ndarray, states: torch.Tensor) -> None:
        """Holds the states [rows, width] of slots, int64 [rows]; drops the oldest ones beyond MOST_ROWS."""
        if len(slots) > MOST_ROWS:
            slots, states = slots[-MOST_ROWS:], states[-MOST_ROWS:].clone()
        self._add(_Pass(slots, states))

    def forget(self, slots: np.ndarray) -> None:
        """Drops the states of slots, int64 [rows], which now belong to tokens whose states were not read."""
        if self._passes:
            gone = slots[np.isin(slots, np.concatenate([each.slots for each in self._passes]))]
            if len(gone):
                self._add(_Pass(gone, None))

    def take(self, wanted: np.ndarray | None = None) -> tuple[np.ndarray, torch.Tensor | None]:
        """Returns the slots with a held state, int64 [n], and their latest states [n, width], None if there are none,
        and holds these no more. wanted: the only slots to return, int64; None for all."""
        if not self._passes:
            return np.empty(0, dtype=np.int64), None
        slots = np.concatenate([each.slots for each in self._passes])
        if wanted is not None and not np.isin(slots, wanted).any():
            return np.empty(0, dtype=np.int64), None
        read = np.concatenate([np.full(len(each.slots), each.states is not None) for each in self._passes])
        states = torch.cat([each.states for each in self._passes if each.states is not None])
        self._passes.clear()
        self._rows = 0
        found, from_end = np.unique(slots[::-1], return_index=True)
        latest = len(slots) - 1 - from_end
        there = read[latest]
        found, rows = found[there], (read.cumsum() - 1)[latest[there]]
        if wanted is not None:
            others = ~np.isin(found, wanted)
            if others.any():
                self._add(_Pass(found[others], _taken(states, rows[others])))
            found, rows = found[~others], rows[~others]
        return found, _taken(states, rows) if len(found) else None

    def _add(self, passed: _Pass) -> None:
        self._passes.append(passed)
        self._rows += len(passed.slots)
        while self._passes and (self._rows > MOST_ROWS or self._passes[0].states is None):
            self._rows -= len(self._passes.popleft().slots)


def _taken(states: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    """Rows of states, on any device."""
    return states.index_select(0, to_device(torch.from_numpy(rows), states.device))
