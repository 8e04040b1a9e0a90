"""Taps: the hidden states that enter some of a model's layers, mapped to one vector a token and kept by KV slot.

Drafters such as EAGLE-3 draft from them. A slot belongs to a token, so its vector is as long valid as its keys and
values: it is kept when the token is committed, found again when the prefix cache hands the slot to another sequence,
and never read again when the token is rolled back.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from draftwire_core.engine.device.device_copy import to_device
from draftwire_core.engine.device.device_timer import DeviceTimer
from draftwire_core.engine.kv.kv_slots import PADDING_SLOT
from draftwire_core.engine.model.features.held_states import HeldStates
from draftwire_core.engine.model.shallow_model import decoder_layers, stream_of

_KEPT = 0.9
"""Part of the earlier passes' time that counts with a pass in the share of reading."""
_LEAST_ROWS = 16
"""Rows that are mapped whatever that takes: it is then known what a row takes."""


class SlotStates:
    """One vector for each KV slot, and which of them are known."""

    def __init__(self, capacity: int, width: int, dtype: torch.dtype, device: torch.device | str = "cpu"):
        """capacity: number of slots, from 1 on. width: elements of a vector. device: where it is kept."""
        self._states = torch.empty(capacity + 1, width, dtype=dtype, device=device)
        self._states[PADDING_SLOT] = 0  # finite numbers, for what pads passes
        self._known = np.zeros(capacity + 1, dtype=np.bool_)

    @property
    def width(self) -> int:
        """Elements of a vector."""
        return int(self._states.shape[1])

    @property
    def device(self) -> torch.device:
        """The place where they are kept."""
        return self._states.device

    @property
    def vectors(self) -> torch.Tensor:
        """All of them, [capacity + 1, width], at an address that stays."""
        return self._states

    def write(self, slots: torch.Tensor, states: torch.Tensor, placed: torch.Tensor | None = None) -> None:
        """Keeps states [rows, width], on the same device, as those of slots, int64 [rows], on the host. placed: the
        slots on the device; None to copy them there."""
        placed = to_device(slots, self.device) if placed is None else placed
        self._states.index_copy_(0, placed, states.to(self._states.dtype))
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
        return self._states.index_select(0, to_device(torch.from_numpy(slots), self.device))


class Tap:
    """A tap: where to read in a model, what to make of the states, and where to keep the results."""

    def __init__(self, layers: Sequence[int], mapping: nn.Module, states: SlotStates):
        """layers: indices of the layers whose inputs are read; the number of layers reads the last one's output.
        mapping: maps the layers' states side by side, [rows, layers * hidden], to [rows, states.width]."""
        self.layers = tuple(layers)
        self.mapping = mapping
        self.states = states
        self.rows: np.ndarray | None = None
        """Rows of the next pass that are read, int64, ascending; None for all. The slots of others become unknown."""
        self.resting: np.ndarray | bool = False
        """Whether all readers of the results are paused: what is read is then held, and mapped at `catch_up`. An array,
        bool [rows], says it for each row that is read."""
        self.most_share = math.inf
        """Most time that mapping may take, as a multiple of the time of a pass; for passes on CPUs."""
        self._held = HeldStates()
        self._coming: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Slots, and their results on a device, which are kept on the host once they have been copied there."""
        self._timer = DeviceTimer()
        """Of mapping on devices."""
        self._seconds = 0.0
        self._lately = 0.0, 0.0
        """Processor time of the last passes in this thread, and that of reading in them."""
        self._row_seconds = 0.0
        """Processor time that a row took when several were last mapped at once; 0 before that."""
        self._left = math.inf
        """Seconds that mapping may still take until the next pass."""

    @property
    def reading_share(self) -> float:
        """Share of a pass's time that reading has lately taken; 0 before the first pass."""
        passes, reading = self._lately
        return reading / passes if passes else 0.0

    def keep(
        self, slots: torch.Tensor, read: torch.Tensor, pass_seconds: float = math.inf, reading_seconds: float = 0.0
    ) -> None:
        """Maps what was read, [rows, layers * hidden], and keeps it for slots, int64 [rows].

        pass_seconds: processor time of the pass in this thread. Beyond `most_share` of it no rows are mapped, except
        for the last few; the slots of those that were not are unknown for good. reading_seconds: the part of it that
        reading took.
        """
        if not math.isinf(pass_seconds):
            passes, reading = self._lately
            self._lately = _KEPT * passes + pass_seconds, _KEPT * reading + reading_seconds
            self._seconds += reading_seconds
        self._left = math.inf if math.isinf(self.most_share) else self.most_share * pass_seconds
        if self.resting is True:
            self._hold(slots.numpy(), read)
            return
        if self.resting is not False:
            active = torch.from_numpy(~self.resting)
            self._hold(slots.numpy()[self.resting], read[~active])
            slots, read = slots[active], read[active]
        self._held.forget(slots.numpy())  # of earlier tokens in these slots
        self._map(slots, read)

    def queue(self, slots: torch.Tensor, placed: torch.Tensor, read: torch.Tensor) -> None:
        """Like `keep`, for all rows of a pass on a GPU, without waiting for it.

        There mapping reads the map's weights, however many rows there are, and rows that nobody asked for cost nothing.
        So no row is left out. What the device takes is found out later, for `take_seconds`. slots, placed: int64
        [rows], on the host and on the device. read: memory of its own, on the device.
        """
        if self.resting is True:
            self._hold(slots.numpy(), read)
        else:
            self._held.forget(slots.numpy())
            self._map_queued(slots, read, placed)

    def take_coming(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns slots, int64 [rows], with their results, [rows, width], that are on a device and to be kept on the
        host: the caller copies and writes them, before the next pass. They are unknown until then."""
        coming, self._coming = self._coming, []
        return coming

    @torch.inference_mode()
    def catch_up(self, slots: np.ndarray | None = None) -> None:
        """Maps and keeps what was held while it was resting. slots: the only ones of use, int64; None for all."""
        found, read = self._held.take(slots)
        if read is None:
            return
        if read.device.type == "cpu":
            self._map(torch.from_numpy(found), read)
            return
        self._map_queued(torch.from_numpy(found), read)
        for late, mapped in self.take_coming():
            self.states.write(late, mapped.cpu())

    def forget(self, slots: np.ndarray) -> None:
        """Marks slots, int64 [rows], as unknown, because they now belong to tokens whose states were not read."""
        self.states.forget(slots)
        self._held.forget(slots)

    def take_seconds(self) -> float:
        """Returns the time spent on mapping since the last call, on a GPU as far as it is known."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds + self._timer.take()

    def _hold(self, slots: np.ndarray, read: torch.Tensor) -> None:
        self.states.forget(slots)
        self._held.hold(slots, read)

    def _map_queued(self, slots: torch.Tensor, read: torch.Tensor, placed: torch.Tensor | None = None) -> None:
        with torch.cuda.device_of(read), self._timer.timed(read.device):
            mapped = self.mapping(read)
            if self.states.device == mapped.device:
                self.states.write(slots, mapped, placed)
            else:
                self.states.forget(slots.numpy())
                self._coming.append((slots, mapped))

    def _map(self, slots: torch.Tensor, read: torch.Tensor) -> None:
        """Maps rows as long as time is left. The last ones come first: drafters need these most."""
        started, end = time.perf_counter(), len(slots)
        # Processor time, so that an interruption of this thread costs no features.
        began = now = time.thread_time()
        while end and (end == len(slots) or now - began < self._left):
            count = end
            if not math.isinf(self._left):
                count = int((self._left - now + began) / self._row_seconds) if self._row_seconds else 0
                count = min(end, max(count, _LEAST_ROWS))
            self.states.write(slots[end - count : end], self.mapping(read[end - count : end]))
            end -= count
            before, now = now, time.thread_time()
            if count >= _LEAST_ROWS:
                self._row_seconds = (now - before) / count
        if end:
            self.forget(slots[:end].numpy())
        self._left = max(0.0, self._left - now + began)
        self._seconds += time.perf_counter() - started


class TapReading:
    """The states that taps read in one forward pass, made when it begins. On a GPU they read all rows."""

    def __init__(self, taps: Sequence[Tap], rows: int, width: int, dtype: torch.dtype, device: torch.device):
        """rows: of the pass. width, dtype, device: of the model's hidden states."""
        self._on_cpu = device.type == "cpu"
        self._began = time.thread_time()
        self._seconds = 0.0
        """Spent on reading."""
        self._read: list[tuple[Tap, torch.Tensor | None, torch.Tensor]] = []
        self._places: dict[int, list[tuple[torch.Tensor | None, torch.Tensor]]] = {}
        for tap in taps:
            all_rows = not self._on_cpu or tap.rows is None or len(tap.rows) == rows
            which = None if all_rows else torch.from_numpy(tap.rows)
            whole = torch.empty(
                rows if which is None else len(which), len(tap.layers) * width, dtype=dtype, device=device
            )
            self._read.append((tap, which, whole))
            for layer, part in zip(tap.layers, whole.split(width, dim=1), strict=True):
                self._places.setdefault(layer, []).append((which, part))

    @property
    def layers(self) -> Collection[int]:
        """The layers whose inputs are read; the number of layers stands for what leaves the last one."""
        return self._places.keys()

    def take(self, layer: int, hidden: torch.Tensor) -> None:
        """Copies the states that enter a layer, [rows, width], if a tap reads there. The copy is needed: layers may
        overwrite their input."""
        places = self._places.get(layer)
        if not places:
            return
        began = time.thread_time()
        for which, place in places:
            place.copy_(hidden if which is None else hidden.index_select(0, which))
        self._seconds += time.thread_time() - began

    def between(self, count: int, hidden: torch.Tensor) -> Iterator[tuple[int, int]]:
        """Yields the layers to run one after the other, each part as its first and the one after its last, and reads
        before each part and after the last one.

        count: number of layers. hidden: the states, [rows, width], which the caller's layers overwrite.
        """
        for begin, end in itertools.pairwise(sorted({0, count, *self.layers})):
            self.take(begin, hidden)
            yield begin, end
        self.take(count, hidden)

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

    def keep(self, slots: torch.Tensor, placed: torch.Tensor) -> None:
        """Gives each tap what it has read. slots, placed: those of the rows, int64 [rows], on the host and on the
        model's device."""
        if not self._on_cpu:
            for tap, _, read in self._read:
                tap.queue(slots, placed, read)
            return
        seconds = time.thread_time() - self._began, self._seconds / len(self._read)
        for tap, which, read in self._read:
            if which is None:
                tap.keep(slots, read, *seconds)
            else:
                tap.forget(slots.numpy())
                tap.keep(slots[which], read, *seconds)

    def _entering(self, layer: int) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.take(layer, stream_of(args[0] if args else kwargs["hidden_states"])[0])

        return hook

    def _left(self, layer: nn.Module, _: Any, out: Any) -> None:
        hidden = out[0] if isinstance(out, tuple) else out
        self.take(max(self._places), stream_of(hidden)[0])
