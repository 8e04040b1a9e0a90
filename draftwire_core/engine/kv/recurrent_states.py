"""The states of recurrent layers: which sequence has which, which prefixes keep one, and which tokens can be undone.

A sequence has one state, which stands after its first `position` tokens. Of tokens after these that may be rolled back,
and of accepted ones until the next pass, only the layers' inputs are stored, next to their KV slots. The next pass
computes the state of the accepted path from them. Rolling back therefore only frees them, together with the slots.
The prefix cache keeps states at some of its tokens, each next to the token's slot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from draftwire_core.engine.kernels.recurrent.recurrence_shape import LayerMemory, RecurrenceShape

KEPT_EVERY = 256
"""Prompts keep a state for the prefix cache at multiples of this position."""
_LEAST_KEPT = 8
"""The prefix cache may always keep so many states, however small the KV cache is."""
_FIRST_ROOM = 8


class State:
    """A state of all layers; sequences and the prefix cache share it until one of them moves on."""

    __slots__ = ("index", "users")

    def __init__(self, index: int):
        self.index = index
        self.users = 1


class SequenceState:
    """The state of one sequence; without one it is at position 0."""

    __slots__ = ("_states", "position", "state")

    def __init__(self) -> None:
        self.state: State | None = None
        self.position = 0
        """Number of leading tokens that the state comprises."""
        self._states: RecurrentStates | None = None

    def become(self, states: RecurrentStates, state: State | None, position: int) -> None:
        """Takes over a use of `state`, releasing the former one."""
        before, holder = self.state, self._states
        self.state, self.position, self._states = state, position, states
        if before is not None and holder is not None:
            holder.release(before)

    def release(self) -> None:
        """Returns to position 0; the sequence's tokens must be computed again."""
        if self._states is not None:
            self.become(self._states, None, 0)


class LaneState(NamedTuple):
    """A lane as recurrent layers need it, in addition to its tokens."""

    sequence: SequenceState
    guessed: int = 0
    """Number of the lane's last tokens that may be rolled back; the same tokens precede them in all lanes of a
    sequence."""
    kept: tuple[int, ...] = ()
    """Positions after which the prefix cache is to keep a state; of tokens computed in this pass."""


class RecurrentStates:
    """The states and stored inputs of one model, by index, and the memory for them.

    Memory grows with use. There are at most as many stored inputs as KV slots, and as many states as running sequences
    and the prefix cache's, whose number `keep` bounds.
    """

    def __init__(self, shapes: Sequence[RecurrenceShape], dtype: torch.dtype, slots: int):
        """shapes: of all recurrent layers. dtype: of their inputs. slots: number of KV slots."""
        self.shapes = tuple(shapes)
        self.dtype = dtype
        self.kv_bytes = 0
        """Memory of the KV cache, as the last pass found it."""
        self._slots = slots
        self._stored = np.full(slots + 1, -1, dtype=np.int64)
        """Index of the stored inputs of the token in each KV slot, -1 if there are none."""
        self._kept: OrderedDict[int, State] = OrderedDict()
        """States of the prefix cache by the KV slot of the last token they comprise, least recently used first."""
        self._free_states: list[int] = []
        self._free_inputs: list[int] = []
        self._state_room = self._input_room = 0
        self._memory: dict[int, LayerMemory] = {}

    @property
    def state_bytes(self) -> int:
        """Memory of a sequence's state, in bytes."""
        return sum(shape.state_bytes(self.dtype) for shape in self.shapes)

    @property
    def input_bytes(self) -> int:
        """Memory of the stored inputs of a token that may be rolled back, in bytes."""
        return sum(shape.input_bytes(self.dtype) for shape in self.shapes)

    @property
    def bytes(self) -> int:
        """Memory held, in bytes."""
        return sum(
            each.nbytes
            for memory in self._memory.values()
            for each in (memory.inputs, memory.gates, memory.windows, memory.states)
        )

    @property
    def used(self) -> tuple[int, int]:
        """Number of states and of stored inputs in use."""
        return self._state_room - len(self._free_states), self._input_room - len(self._free_inputs)

    @property
    def kept(self) -> int:
        """Number of states that the prefix cache keeps."""
        return len(self._kept)

    def empty(self, slots: int) -> RecurrentStates:
        """States of the same layers next to another number of KV slots, none in use."""
        return RecurrentStates(self.shapes, self.dtype, slots)

    def new_state(self) -> State:
        """Takes a state, whose contents are undefined, for one user."""
        if not self._free_states:
            room = max(_FIRST_ROOM, 2 * self._state_room)
            self._free_states = list(range(room - 1, self._state_room - 1, -1))
            self._state_room = room
        return State(self._free_states.pop())

    def release(self, state: State) -> None:
        """Ends one use of a state."""
        state.users -= 1
        if not state.users:
            self._free_states.append(state.index)

    def store(self, slots: np.ndarray) -> np.ndarray:
        """Makes room for the inputs of the tokens in `slots`, int64; returns their indices."""
        lacking = len(slots) - len(self._free_inputs)
        if lacking > 0:
            room = min(max(_FIRST_ROOM, 2 * self._input_room, self._input_room + lacking), self._slots)
            self._free_inputs = [*range(room - 1, self._input_room - 1, -1), *self._free_inputs]
            self._input_room = room
        indices = np.array([self._free_inputs.pop() for _ in slots], dtype=np.int64)
        self._stored[slots] = indices
        return indices

    def stored(self, slots: np.ndarray) -> np.ndarray:
        """Indices of the stored inputs of the tokens in `slots`, -1 if there are none."""
        indices: np.ndarray = self._stored[slots]
        return indices

    def drop_inputs(self, slots: np.ndarray) -> None:
        """Frees the stored inputs of the tokens in `slots`, int64, if there are any."""
        indices = self._stored[slots]
        self._free_inputs += indices[indices >= 0].tolist()
        self._stored[slots] = -1

    def forget(self, slots: np.ndarray) -> None:
        """Frees what goes with KV slots, int64, that return to their pool."""
        self.drop_inputs(slots)
        if self._kept:
            for slot in slots.tolist():
                state = self._kept.pop(slot, None)
                if state is not None:
                    self.release(state)

    def keep(self, slot: int, state: State) -> None:
        """Lets the prefix cache use a state of the tokens up to the one in `slot`, and drops its least recently used
        ones if they take more memory than the KV cache."""
        before = self._kept.pop(slot, None)
        state.users += 1
        self._kept[slot] = state
        if before is not None:
            self.release(before)
        while len(self._kept) > max(_LEAST_KEPT, self.kv_bytes // self.state_bytes):
            self.release(self._kept.popitem(last=False)[1])

    def kept_length(self, slots: np.ndarray) -> int:
        """Number of leading tokens, of those in `slots`, after which the last state is kept; 0 if there is none."""
        if not self._kept:
            return 0
        found = np.flatnonzero(np.isin(slots, np.fromiter(self._kept, dtype=np.int64, count=len(self._kept))))
        return int(found[-1]) + 1 if len(found) else 0

    def resume(self, sequence: SequenceState, slots: np.ndarray) -> None:
        """Moves a sequence to the state that is kept after the last token of `slots`."""
        slot = int(slots[-1])
        state = self._kept[slot]
        self._kept.move_to_end(slot)
        state.users += 1
        sequence.become(self, state, len(slots))

    def layer(self, index: int) -> LayerMemory:
        """Memory of recurrent layer number `index`, for all states and stored inputs taken so far."""
        memory = self._memory.get(index)
        if memory is None:
            memory = self._memory[index] = _memory(self.shapes[index], self.dtype)
        memory.inputs = _grown(memory.inputs, self._input_room)
        memory.gates = _grown(memory.gates, self._input_room)
        memory.windows = _grown(memory.windows, self._state_room)
        memory.states = _grown(memory.states, self._state_room)
        return memory


def _memory(shape: RecurrenceShape, dtype: torch.dtype) -> LayerMemory:
    return LayerMemory(
        torch.empty(0, shape.channels, dtype=dtype),
        torch.empty(0, shape.gates, dtype=torch.float32),
        torch.empty(0, shape.taps - 1, shape.channels, dtype=dtype),
        torch.empty(0, shape.value_heads, shape.key_dim, shape.value_dim, dtype=torch.float32),
    )


def _grown(tensor: torch.Tensor, room: int) -> torch.Tensor:
    if len(tensor) >= room:
        return tensor
    larger = tensor.new_empty(room, *tensor.shape[1:])
    larger[: len(tensor)] = tensor
    return larger
