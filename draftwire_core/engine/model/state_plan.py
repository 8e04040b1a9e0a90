"""The work of recurrent layers in a pass: the tokens to process, each after the one before it on its path.

Lanes are paths from a sequence's first token to a leaf of its tree. The plan joins the lanes of a sequence to a tree,
from the token after the sequence's state. Tokens of earlier passes are processed again from their stored inputs. Those
that can no longer be rolled back move the sequence's state on; states of the others exist only during the pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch

from draftwire_core.engine.kernels.recurrent.recurrence_shape import PassItems
from draftwire_core.engine.kv.recurrent_states import RecurrentStates, SequenceState, State
from draftwire_core.engine.model.packed_batch import Lane, PackedBatch

_NONE = -1


class StatePlan:
    """The work of a pass in all recurrent layers. States in use by others are not overwritten."""

    def __init__(self, batch: PackedBatch, states: RecurrentStates):
        """Raises ValueError if a lane's tokens lack a state before them, or stored inputs."""
        self.states = states
        self._batch = batch
        self._slots = batch.numbers[2]
        self._items: list[list[int]] = []
        self._before: list[int] = []
        """The item before each item; ~ its group's index for a group's first items."""
        self._groups: list[int] = [0]
        self._starts: list[int] = []
        """Index of the state that each group starts from, -1 if it starts at position 0."""
        self._saves: list[tuple[int, int]] = []
        self._levels = 0
        self._guesses: list[int] = []
        """Rows whose inputs are stored."""
        self._moves: list[tuple[SequenceState, State, int, np.ndarray]] = []
        self._kept: list[tuple[int, State]] = []
        self._taps: dict[int, PassItems] = {}
        for lanes in _by_sequence(batch.lanes):
            self._add(lanes)
        rows = np.array(self._guesses, dtype=np.int64)
        self.stored_rows = torch.from_numpy(rows)
        """Rows of the batch whose inputs are to be stored, int64."""
        self.stored_at = torch.from_numpy(states.store(self._slots[rows]))
        """Places to store the inputs at, int64."""

    def work(self, taps: int) -> PassItems:
        """The work for layers whose convolution has this many taps."""
        found = self._taps.get(taps)
        if found is None:
            found = self._taps[taps] = PassItems(
                self._array, self._sources(taps - 1), self._group_array, self._save_array, self._levels
            )
        return found

    def finish(self, kv_bytes: int) -> None:
        """Records the new states, once all layers have run. kv_bytes: memory of the KV cache."""
        self.states.kv_bytes = kv_bytes
        for sequence, state, position, replayed in self._moves:
            if sequence.state is not state:
                sequence.become(self.states, state, position)
            sequence.position = position
            self.states.drop_inputs(replayed)
        for slot, state in self._kept:
            self.states.keep(slot, state)
            self.states.release(state)

    def abandon(self) -> None:
        """Undoes the plan of a pass that failed. Sequences whose states it was changing must be computed again."""
        self.states.drop_inputs(self._slots[self._guesses])
        for sequence, state, _, _ in self._moves:
            if sequence.state is state:
                sequence.release()
            else:
                self.states.release(state)
        for _, state in self._kept:
            self.states.release(state)

    @cached_property
    def _array(self) -> np.ndarray:
        return np.array(self._items, dtype=np.int64).reshape(-1, 5)

    @cached_property
    def _group_array(self) -> np.ndarray:
        return np.array(self._groups, dtype=np.int64)

    @cached_property
    def _save_array(self) -> np.ndarray:
        return np.array(self._saves, dtype=np.int64).reshape(-1, 2)

    def _sources(self, before: int) -> np.ndarray:
        """The inputs before each item's own, int64 [items, before]."""
        found: list[list[int]] = []
        for parent in self._before:
            if parent >= 0:
                own = self._items[parent][0]
                found.append([*found[parent], own if own >= 0 else -2 - 2 * ~own][-before:] if before else [])
            else:
                state = self._starts[~parent]
                found.append([-3 - 2 * (state * before + tap) if state >= 0 else _NONE for tap in range(before)])
        return np.array(found, dtype=np.int64).reshape(len(found), before)

    def _add(self, lanes: list[Lane]) -> None:
        """Adds the tokens of a sequence."""
        about = lanes[0].state
        if about is None:  # of a trial: it starts at its first row, and no state of it is needed after the pass
            start, fixed, state = len(lanes[0].context), 0, None
        else:
            start, state = about.sequence.position, about.sequence.state
            fixed = max(
                len(lane.context) + len(lane.rows) - lane.state.guessed for lane in lanes if lane.state is not None
            )
        tree = _Tree(self._slots, self.states)
        for lane in lanes:
            tree.add(lane, start)
        target = state
        if about is not None and fixed > start and (state is None or state.users > 1):
            target = self.states.new_state()
        first = len(self._items)
        self._starts.append(_NONE if state is None else state.index)
        target_index = _NONE if target is None else target.index
        kept: dict[int, State] = {}
        for lane in lanes:
            for position in lane.state.kept if lane.state is not None else ():
                if start < position <= fixed and position not in kept:
                    kept[position] = self.states.new_state()
        at: dict[int, int] = {}
        for node, begin, end in tree.in_turn(self._starts[-1], target_index, fixed - start):
            depth = tree.depths[node]
            parent = tree.parents[node]
            index = len(self._items)
            at[node] = index
            copy = kept.get(start + depth)
            is_fixed = depth <= fixed - start
            row = tree.rows[node]
            self._items.append(
                [
                    row if row >= 0 else ~tree.stored[node],
                    begin,
                    end,
                    row,
                    copy.index if copy is not None and is_fixed else _NONE,
                ]
            )
            self._before.append(at[parent] if parent >= 0 else ~(len(self._groups) - 1))
            if copy is not None and is_fixed:
                self._saves.append((index, copy.index))
                self._kept.append((tree.slots[node], copy))
            if depth == fixed - start:
                self._saves.append((index, target_index))
            elif not is_fixed and row >= 0 and about is not None:
                self._guesses.append(row)
        self._levels = max(self._levels, tree.levels)
        self._groups.append(len(self._items))
        assert len(self._items) > first
        if about is not None and target is not None and fixed > start:
            context = lanes[0].context
            self._moves.append((about.sequence, target, fixed, context[start : min(fixed, len(context))].copy()))


class _Tree:
    """The tokens of one sequence after its state. A token is known by its KV slot."""

    def __init__(self, slots: np.ndarray, states: RecurrentStates):
        self.slots: list[int] = []
        self.rows: list[int] = []
        """Row of the batch of each token, -1 for one of an earlier pass."""
        self.stored: list[int] = []
        """Index of the stored inputs of each token of an earlier pass."""
        self.parents: list[int] = []
        self.depths: list[int] = []
        """Number of tokens from the state to each token, itself included."""
        self.levels = 0
        """States to hold next to those of sequences, at most."""
        self._children: dict[int, list[int]] = {-1: []}
        self._known: dict[int, int] = {}
        self._row_slots = slots
        self._states = states

    def add(self, lane: Lane, start: int) -> None:
        """Adds the tokens of a lane from position `start` on."""
        parent = -1
        context = lane.context[start:]
        if len(lane.context) < start:
            raise ValueError(f"a lane of {len(lane.context)} tokens lies before its state, at position {start}")
        if len(context):
            stored = self._states.stored(context)
            if (stored < 0).any():
                raise ValueError(f"{int((stored < 0).sum())} of a lane's tokens lack inputs after position {start}")
            for slot, index in zip(context.tolist(), stored.tolist(), strict=True):
                parent = self._node(slot, parent, -1, index)
        for row, slot in zip(lane.rows, self._row_slots[lane.rows].tolist(), strict=True):
            parent = self._node(slot, parent, row, -1)

    def _node(self, slot: int, parent: int, row: int, stored: int) -> int:
        node = self._known.get(slot)
        if node is None:
            node = self._known[slot] = len(self.slots)
            self.slots.append(slot)
            self.rows.append(row)
            self.stored.append(stored)
            self.parents.append(parent)
            self.depths.append(1 + (self.depths[parent] if parent >= 0 else 0))
            self._children[parent].append(node)
            self._children[node] = []
        return node

    def in_turn(self, start: int, target: int, fixed: int) -> Iterator[tuple[int, int, int]]:
        """Yields each token after the one before it, with the places of the state before it and of the one after it.

        start: place of the state before all of them. target: that of the state after the first `fixed` tokens.
        A place is the index of a state, -1 for none, or -2 - a level of scratch. Of a token's children the last one
        overwrites its state.
        """
        free: list[int] = []
        waiting = [(child, start, False) for child in reversed(self._children[-1])]
        while waiting:
            node, begin, is_last = waiting.pop()
            if self.depths[node] <= fixed:
                end = target
            elif is_last and begin < -1:
                end = begin
            elif free:
                end = free.pop()
            else:
                end = -2 - self.levels
                self.levels += 1
            yield node, begin, end
            children = self._children[node]
            for index, child in enumerate(reversed(children)):
                waiting.append((child, end, index == 0))
            if not children and end < -1:
                free.append(end)


def _by_sequence(lanes: list[Lane]) -> Iterator[list[Lane]]:
    """Groups the lanes of a sequence; lanes without one are on their own."""
    found: dict[int, list[Lane]] = {}
    for lane in lanes:
        found.setdefault(id(lane) if lane.state is None else id(lane.state.sequence), []).append(lane)
    yield from found.values()
