"""KV slots: the storage of each token's keys and values in every layer.

A slot belongs to a token, not to a place in a sequence. Committing tokens keeps their slots; rolling back returns
slots to the pool. No tensor is copied, and the cost does not depend on the context.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch

from draftwire_core.engine.device.choices import KvDtype
from draftwire_core.engine.kernels.kv_rows import BLOCK, STORED, as_float16, stored_width, write_rows
from draftwire_core.engine.kv.recurrent_states import RecurrentStates

PADDING_SLOT = 0
"""A slot that belongs to no sequence; padded keys point at it and are masked."""
SLOT_BLOCK = 64
"""Number of slots in a block, which one sequence has to itself while there is room."""

_STAGGER = 112
"""Elements between the starts of scratch tensors within a page; a multiple of a vector register."""


class OutOfSlotsError(Exception):
    """More slots were requested than are free."""


class KvDtypeError(Exception):
    """Raised for keys or values that cannot be stored in the cache's type; the message names the layer."""


class SlotReserve(Protocol):
    """A holder of slots that the pool may reclaim at any time."""

    @property
    def idle(self) -> int:
        """Number of slots that can be reclaimed."""

    def evict(self, count: int) -> np.ndarray:
        """Gives up `count` slots, int64, starting with the least valuable ones."""


class SlotPool:
    """The slots 1..capacity, and which of them are free. Slots that its reserve can give up count as free.

    Consecutive slots are adjacent in memory, and attention reads a sequence's slots in token order. A sequence that
    takes more slots therefore gets those after its last one, if they are free. Otherwise, and for a new sequence, it
    begins a block of SLOT_BLOCK slots that are all free. Other sequences begin in that block only when no free block is
    left. Reading slots in random order takes up to 1.6 times as long (docs/engine.md, "KV slots and rollback").
    """

    def __init__(self, capacity: int):
        if capacity < 1:
            raise ValueError("a slot pool needs at least one slot")
        self.capacity = capacity
        self._is_free = bytearray(-(-(capacity + 1) // SLOT_BLOCK) * SLOT_BLOCK)
        self._is_free[1 : capacity + 1] = bytes([1]) * capacity
        self._flags = np.frombuffer(self._is_free, dtype=np.bool_)
        """The memory of `_is_free` as an array, for many scattered slots; a step takes a few consecutive ones."""
        self._sizes = self._flags.reshape(-1, SLOT_BLOCK).sum(axis=1)
        self._free_of = self._sizes.copy()
        """Number of free slots in each block."""
        self._count = capacity
        self._reserve: SlotReserve | None = None
        self.states: RecurrentStates | None = None
        """The memory of recurrent layers besides slots; None in models without such layers."""

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self._count if self._reserve is None else self._count + self._reserve.idle

    @property
    def used(self) -> int:
        """Number of slots in use."""
        return self.capacity - self.free

    def lean_on(self, reserve: SlotReserve) -> None:
        """Sets the reserve. A previous one, no longer in use, gives up all its slots."""
        if self._reserve is not None:
            self.give_back(self._reserve.evict(self._reserve.idle))
        self._reserve = reserve

    def take(self, count: int, after: int = PADDING_SLOT) -> np.ndarray:
        """Takes `count` slots, int64 [count]. Raises OutOfSlotsError, and takes none, if fewer are free.

        after: the slot that the new ones should follow; PADDING_SLOT for none.
        """
        return np.array(self.take_list(count, after), dtype=np.int64)

    def take_list(self, count: int, after: int = PADDING_SLOT) -> list[int]:
        """Takes slots as `take` does, as a list."""
        following = after + 1
        if count == 1 and after != PADDING_SLOT and following < len(self._is_free) and self._is_free[following]:
            self._is_free[following] = 0  # what a plain step takes for each sequence
            self._free_of[following // SLOT_BLOCK] -= 1
            self._count -= 1
            return [following]
        if count > self.free:
            raise OutOfSlotsError(f"{count} KV slots requested, {self.free} of {self.capacity} free")
        if count > self._count and self._reserve is not None:
            # Evicts a block at a time, or 1/64 of a small pool: slots evicted one by one would scatter over all
            # sequences.
            stretch = min(SLOT_BLOCK, self.capacity // SLOT_BLOCK, self._reserve.idle)
            self.give_back(self._reserve.evict(max(count - self._count, stretch)))
        taken: list[int] = []
        while len(taken) < count:
            first = self._next_to(after) if after != PADDING_SLOT else self._begin()
            taken += self._take_run(first, count - len(taken))
            after = taken[-1]
        return taken

    def give_back(self, slots: np.ndarray | list[int]) -> None:
        """Returns slots to the pool. Raises ValueError, and returns none, if one is already free."""
        returned = np.asarray(slots, dtype=np.int64)
        if not len(returned):
            return
        if self._flags[returned].any():
            raise ValueError("a returned KV slot is already free")
        if self.states is not None:
            self.states.forget(returned)
        self._flags[returned] = True
        np.add.at(self._free_of, returned // SLOT_BLOCK, 1)
        self._count += len(returned)

    def _next_to(self, slot: int) -> int:
        """Returns the next free slot of the block after the given one, or the start of a new run if there is none."""
        first = slot + 1
        ahead = self._is_free.find(1, first, max(first + 1, (slot // SLOT_BLOCK + 1) * SLOT_BLOCK))
        return ahead if ahead >= 0 else self._begin()

    def _begin(self) -> int:
        """Returns the first slot for a new run; requires a free slot."""
        whole = int(np.argmax(self._free_of == self._sizes))
        block = whole if self._free_of[whole] == self._sizes[whole] else int(np.argmax(self._free_of))
        return self._is_free.find(1, block * SLOT_BLOCK)

    def _take_run(self, first: int, most: int) -> range:
        """Takes the free slot `first` and the free ones after it, at most `most` slots."""
        end = min(first + most, len(self._is_free))
        taken = self._is_free.find(0, first, end)
        run = range(first, end if taken < 0 else taken)
        self._is_free[run.start : run.stop] = bytes(len(run))
        for block in range(run.start // SLOT_BLOCK, run[-1] // SLOT_BLOCK + 1):
            self._free_of[block] -= min(run.stop, (block + 1) * SLOT_BLOCK) - max(run.start, block * SLOT_BLOCK)
        self._count -= len(run)
        return run


class SlotList:
    """The slots of a sequence's leading tokens, by position. Grows like a list and reads as one int64 array."""

    def __init__(self) -> None:
        self._slots = np.empty(64, dtype=np.int64)
        self.length = 0
        """Number of slots, as `len` returns it."""
        self.generation = 0
        """Changes when slots that were there no longer are; otherwise the list only grows."""

    def __len__(self) -> int:
        return self.length

    def extend(self, slots: np.ndarray | list[int]) -> None:
        """Appends slots."""
        end = self.length + len(slots)
        if end > len(self._slots):
            grown = np.empty(max(end, 2 * len(self._slots)), dtype=np.int64)
            grown[: self.length] = self._slots[: self.length]
            self._slots = grown
        self._slots[self.length : end] = slots
        self.length = end

    def array(self) -> np.ndarray:
        """Returns the slots, int64 [length], as a view that the next `extend` may invalidate."""
        return self._slots[: self.length]

    @property
    def last(self) -> int:
        """The last slot; PADDING_SLOT if there is none."""
        return int(self._slots[self.length - 1]) if self.length else PADDING_SLOT

    def clear(self) -> np.ndarray:
        """Removes all slots and returns them."""
        slots = self.array().copy()
        self.length = 0
        self.generation += 1
        return slots


class KvCache:
    """Keys and values of all slots: per layer two tensors [kv_heads, capacity + 1, head_dim].

    Heads come first so that gathering a context yields, for each head, one contiguous block of keys. With dtype "q8_0"
    the tensors are those of `kernels/kv_rows.py`, int8 [kv_heads, capacity + 1, width]. With `slots_first` they are
    views of tensors [capacity + 1, kv_heads, head_dim], for kernels that read keys in place, a slot at a time.
    """

    def __init__(
        self,
        capacity: int,
        dtype: KvDtype = "auto",
        *,
        slots_first: bool = False,
        states: RecurrentStates | None = None,
    ):
        self.capacity = capacity
        self.states = states
        """States of recurrent layers; None in models without such layers."""
        self.dtype = dtype
        self.slots_first = slots_first
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._scratch: dict[str, torch.Tensor] = {}

    def scratch(self, name: str, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """Returns uninitialised working memory for one purpose, with `like`'s dtype and device, reused by all layers
        and steps.

        Fresh allocations of this size come from the operating system page by page and cost more than the attention they
        serve.
        """
        size = math.prod(shape)
        return self._held(name, size, like)[:size].view(shape)

    def scratch_address(self, name: str, size: int, like: torch.Tensor) -> int:
        """Returns the address of such memory of `size` elements, without making a tensor of it."""
        address: int = self._held(name, size, like).data_ptr()
        return address

    def _held(self, name: str, size: int, like: torch.Tensor) -> torch.Tensor:
        held = self._scratch.get(name)
        if held is None or held.numel() < size:
            # Large allocations are page-aligned. Matrix kernels that read several of them at once run a third faster if
            # their offsets within a page differ.
            offset = _STAGGER * (1 + len(self._scratch))
            held = torch.empty(size + offset, dtype=like.dtype, device=like.device)[offset:]
            self._scratch[name] = held
        return held

    def layer(self, index: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a layer's key and value tensors, created on first use for `key` and `value` [kv_heads, tokens, dim].

        Raises KvDtypeError.
        """
        pair = self._layers.get(index)
        if pair is None:
            pair = (self._make(key, f"keys of layer {index}"), self._make(value, f"values of layer {index}"))
            self._layers[index] = pair
        return pair

    def write(
        self, index: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes `key` and `value` [kv_heads, tokens, dim] to slots, int64 [tokens], of a layer; returns its tensors.

        Raises KvDtypeError.
        """
        pair = self.layer(index, key, value)
        for stored, rows in zip(pair, (key, value), strict=True):
            if stored.dtype == STORED:
                write_rows(rows, slots, stored)
            elif self.dtype == "float16":
                stored.index_copy_(1, slots, as_float16(rows))
            else:
                stored.index_copy_(1, slots, rows)
        return pair

    def empty(self, capacity: int) -> KvCache:
        """An empty cache of the same type."""
        states = None if self.states is None else self.states.empty(capacity)
        return KvCache(capacity, self.dtype, slots_first=self.slots_first, states=states)

    def _make(self, like: torch.Tensor, what: str) -> torch.Tensor:
        heads, _, dim = like.shape
        dtype = like.dtype
        if self.dtype == "q8_0":
            if dim % BLOCK:
                raise KvDtypeError(
                    f"the {what} have {dim} elements a head, and q8_0 needs a multiple of {BLOCK} (--kv-dtype)"
                )
            dim, dtype = stored_width(dim), STORED
        elif self.dtype == "float16":
            dtype = torch.float16
        # Zeros, not garbage: a masked key contributes 0 * value, and 0 * NaN would be NaN.
        if self.slots_first:
            return torch.zeros(self.capacity + 1, heads, dim, dtype=dtype, device=like.device).transpose(0, 1)
        return torch.zeros(heads, self.capacity + 1, dim, dtype=dtype, device=like.device)

    @property
    def layers(self) -> int:
        """Number of layers that have written keys and values."""
        return len(self._layers)

    @property
    def bytes(self) -> int:
        """Memory held for keys and values, in bytes."""
        return sum(tensor.nbytes for pair in self._layers.values() for tensor in pair)
