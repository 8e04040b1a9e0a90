"""Taps: the hidden states that enter some of a model's layers, mapped to one vector a token and kept by KV slot.

Drafters such as EAGLE-3 draft from them. A slot belongs to a token, so its vector is as long valid as its keys and
values: it is kept when the token is committed, found again when the prefix cache hands the slot to another sequence,
and never read again when the token is rolled back.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from speculative_engine.model.features.held_states import HeldStates
from speculative_engine.model.shallow_model import decoder_layers


class SlotStates:
    """One vector for each KV slot, and which of them are known."""

    def __init__(self, capacity: int, width: int, dtype: torch.dtype):
        """capacity: number of slots, from 1 on. width: elements of a vector."""
        self._states = torch.empty(capacity + 1, width, dtype=dtype)
        self._known = np.zeros(capacity + 1, dtype=np.bool_)

    @property
    def width(self) -> int:
        """Elements of a vector."""
        return int(self._states.shape[1])

    def write(self, slots: torch.Tensor, states: torch.Tensor) -> None:
        """Keeps states [rows, width] as those of slots, int64 [rows]."""
        self._states.index_copy_(0, slots, states.to(self._states.dtype))
        self._known[slots.numpy()] = True

    def forget(self, slots: np.ndarray) -> None:
        """Marks slots, int64 [rows], as unknown."""
        self._known[slots] = False

    def known(self, slots: np.ndarray) -> np.ndarray:
        """Returns for each of slots, int64 [n], whether its vector is known: bool [n]."""
        known: np.ndarray = self._known[slots]
        return known

    def read(self, slots: np.ndarray) -> torch.Tensor:
        """Returns the vectors of slots, int64 [n]: [n, width]."""
        return self._states.index_select(0, torch.from_numpy(slots))


class Tap:
    """Where to read in a model, what to make of the states, and where to keep the results."""

    def __init__(self, layers: Sequence[int], mapping: nn.Module, states: SlotStates):
        """layers: indices of the layers whose inputs are read; the number of layers reads the last one's output.
        mapping: maps the layers' states side by side, [rows, layers * hidden], to [rows, states.width]."""
        self.layers = tuple(layers)
        self.mapping = mapping
        self.states = states
        self.resting = False
        """Whether all readers of the results are paused: what is read is then held, and mapped at `catch_up`."""
        self._held = HeldStates()
        self._seconds = 0.0

    def keep(self, slots: torch.Tensor, read: torch.Tensor) -> None:
        """Maps what was read, [rows, layers * hidden], and keeps it for slots, int64 [rows]."""
        if self.resting:
            self.states.forget(slots.numpy())
            self._held.hold(slots.numpy(), read)
            return
        self.catch_up()
        started = time.perf_counter()
        self.states.write(slots, self.mapping(read))
        self._seconds += time.perf_counter() - started

    @torch.inference_mode()
    def catch_up(self) -> None:
        """Maps and keeps what was held while it was resting."""
        if self._held:
            started = time.perf_counter()
            slots, read = self._held.take()
            if len(slots):
                self.states.write(torch.from_numpy(slots), self.mapping(read))
            self._seconds += time.perf_counter() - started

    def forget(self, slots: np.ndarray) -> None:
        """Marks slots, int64 [rows], as unknown, because they now belong to tokens whose states were not read."""
        self.states.forget(slots)
        self._held.forget(slots)

    def take_seconds(self) -> float:
        """Returns the time spent on mapping since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class TapReading:
    """What taps read in one forward pass."""

    def __init__(self, taps: Sequence[Tap], rows: int, width: int, dtype: torch.dtype):
        """rows: of the pass. width, dtype: of the model's hidden states."""
        self._read: list[tuple[Tap, torch.Tensor]] = []
        self._places: dict[int, list[torch.Tensor]] = {}
        for tap in taps:
            whole = torch.empty(rows, len(tap.layers) * width, dtype=dtype)
            self._read.append((tap, whole))
            for layer, part in zip(tap.layers, whole.split(width, dim=1), strict=True):
                self._places.setdefault(layer, []).append(part)

    @property
    def layers(self) -> Collection[int]:
        """The layers whose inputs are read; the number of layers stands for what leaves the last one."""
        return self._places.keys()

    def take(self, layer: int, hidden: torch.Tensor) -> None:
        """Copies the states that enter a layer, [1, rows, width], if a tap reads there. The copy is needed: layers may
        overwrite their input."""
        for place in self._places.get(layer, ()):
            place.copy_(hidden[0])

    @contextmanager
    def hooked(self, model: PreTrainedModel) -> Iterator[None]:
        """Reads from calls of `model` within the context."""
        layers = decoder_layers(model)
        hooks = [
            layers[index].register_forward_pre_hook(self._entering(index), with_kwargs=True)
            for index in self._places
            if index < len(layers)
        ]
        if len(layers) in self._places:
            hooks.append(layers[-1].register_forward_hook(self._left))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def keep(self, slots: torch.Tensor) -> None:
        """Gives each tap what it has read. slots: those of the rows, int64 [rows]."""
        for tap, read in self._read:
            tap.keep(slots, read)

    def _entering(self, layer: int) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.take(layer, args[0] if args else kwargs["hidden_states"])

        return hook

    def _left(self, layer: nn.Module, _: Any, out: Any) -> None:
        hidden = out[0] if isinstance(out, tuple) else out
        self.take(max(self._places), hidden)
