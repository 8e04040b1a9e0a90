"""Drafting several steps at once: a step, and those that the growth will probably choose after it.

A model on a GPU runs them by one call (`draft_steps.py`), in which the best tokens after a row become the rows of later
steps. Which these are is planned beforehand, by the tokens' expected chances; a chain has no other choice. The growth
then chooses from what was found exactly as it does step by step, as long as it chooses rows that were computed. So
proposals are those of single steps, and a plan that was wrong costs time, not nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np

from draftwire_core.engine.drafters.base import TreeDraft
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.kv.kv_slots import SlotPool
from draftwire_core.engine.model.cuda.slots.draft_batch import DraftPlan
from draftwire_core.engine.model.cuda.slots.draft_layout import DraftCandidate, DraftRow
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.tree.token_tree import Node

_LEAST_KEPT = 0.7
"""Share of the steps below which single ones are quicker: by estimate a call costs a third of a step."""
_TRIED_EVERY = 16
_LATEST = 0.1
"""Weight of the latest draft in the average."""


class Begun(NamedTuple):
    """A sequence, at the step that begins a draft."""

    draft: TreeDraft
    context: np.ndarray
    """Slots of its tokens before the root, and of the root if it has been through the model, int64."""
    root_slot: int
    """Slot of the root, if it is in this step; else -1."""


@dataclass(eq=False, slots=True)
class PlannedRow:
    """A node, or one that is expected, with its row in the plan."""

    sequence: int
    position: int
    worth: float
    """The node's chance of being on the target's path, as far as it is known."""
    path: tuple[int, ...]
    """Slots of its ancestors behind the context."""
    token: int = -1
    parent: PlannedRow | None = None
    """The node whose child of this rank it is; None for a node that is there."""
    rank: int = 0
    node: Node | None = None
    slot: int = -1
    step: int = 0
    index: int = 0
    """The node's row in the step."""
    children: dict[int, PlannedRow] = field(default_factory=dict)
    """The planned rows of its children, by rank."""

    @property
    def row(self) -> DraftRow:
        """The row for the model."""
        parent = self.parent
        token = self.token if parent is None else DraftCandidate(parent.step, parent.index, self.rank)
        return DraftRow(self.sequence, self.path, self.slot, token)


class DraftAhead:
    """The rows of a draft of several steps."""

    def __init__(self, begun: Sequence[Begun], steps: list[list[PlannedRow]]):
        self._begun = begun
        self._steps = steps
        self.known: dict[int, PlannedRow] = {}
        """The rows of nodes that are there, by the node's id()."""
        for row in self.rows():
            if row.node is not None:
                self.known[id(row.node)] = row
            if row.parent is not None:
                row.parent.children[row.rank] = row

    @classmethod
    def of(
        cls,
        growth: TreeGrowth,
        begun: Sequence[Begun],
        first: Sequence[tuple[int, Node]],
        pool: SlotPool,
        steps: int,
        most_rows: int,
    ) -> DraftAhead:
        """Plans up to `steps` steps of up to `most_rows` rows, and takes slots for all but those of the first.

        first: the nodes of the first step, which have slots, each with its sequence's index.
        """
        outlook = _Expected(growth, begun)
        planned = [[outlook.row_of(sequence, node) for sequence, node in first]]
        for row in planned[0]:
            outlook.expand(row)
        for leaf in outlook.leaves():
            outlook.add(leaf)
        for _ in range(1, steps):
            rows = outlook.best(min(most_rows, pool.free - len(begun)))
            if not rows:
                break
            for row in rows:
                path = row.path
                row.slot = int(pool.take(1, path[-1] if path else int(begun[row.sequence].context[-1]))[0])
            planned.append(rows)
            for row in rows:
                outlook.expand(row)
        for step, rows in enumerate(planned):
            rows.sort(key=lambda row: row.sequence)
            for index, row in enumerate(rows):
                row.step, row.index = step, index
        return cls(begun, planned)

    def rows(self) -> Iterator[PlannedRow]:
        """All rows."""
        for rows in self._steps:
            yield from rows

    def __len__(self) -> int:
        return len(self._steps)

    def cut(self, steps: int, pool: SlotPool) -> DraftAhead:
        """The first steps alone; the slots of others return to the pool."""
        pool.give_back([row.slot for rows in self._steps[steps:] for row in rows])
        for row in self.rows():
            row.children.clear()
        return DraftAhead(self._begun, self._steps[:steps])

    @property
    def plan(self) -> DraftPlan:
        """The plan for the model."""
        return DraftPlan(
            [each.context for each in self._begun],
            [[row.row for row in rows] for rows in self._steps],
            [
                SamplingBatch.build(
                    [self._begun[row.sequence].draft.spec.sampling for row in rows],
                    [row.position + 1 for row in rows],
                )
                for rows in self._steps
            ],
        )

    def found(self, row: PlannedRow, children: Sequence[Node]) -> None:
        """Records which nodes a row's children have become, by rank."""
        for rank, child in enumerate(children):
            planned = row.children.get(rank)
            if planned is not None:
                planned.node = child
                self.known[id(child)] = planned

    def give_back(self, pool: SlotPool) -> None:
        """Returns the slots that were taken for rows, and that no node holds, to the pool."""
        pool.give_back(
            [row.slot for rows in self._steps[1:] for row in rows if row.node is None or row.node.slot != row.slot]
        )


class Trust:
    """How often steps that were drafted ahead were of use: others cost as much as any step."""

    def __init__(self) -> None:
        self._kept = 1.0
        self._skipped = 0

    def now(self) -> bool:
        """Whether to draft ahead now: if it was mostly of use, and else at times, to find out."""
        if self._kept >= _LEAST_KEPT or self._skipped >= _TRIED_EVERY:
            self._skipped = 0
            return True
        self._skipped += 1
        return False

    def observe(self, kept: int, steps: int) -> None:
        """Counts a draft. kept: steps that the growth then made, of those it could have made."""
        self._kept += _LATEST * (min(1.0, kept / steps) - self._kept)


class _Expected:
    """The trees as they are expected to grow: what may be expanded next, most valuable first."""

    def __init__(self, growth: TreeGrowth, begun: Sequence[Begun]):
        self._growth = growth
        self._begun = begun
        self._growing = [each.draft.growing for each in begun]
        self._sizes = [each.tree.size for each in self._growing]
        acceptance = growth.acceptance
        self._chances = [acceptance.expected(rank) for rank in range(growth.width)]
        self._waiting: list[tuple[float, int, PlannedRow]] = []
        self._order = count()

    def row_of(self, sequence: int, node: Node) -> PlannedRow:
        """The row of a node that is there."""
        begun, growing = self._begun[sequence], self._growing[sequence]
        ancestors = node.path_from(growing.tree.root)
        path = [each.slot for each in ancestors[:-1]]
        if ancestors and begun.root_slot >= 0:
            path.insert(0, begun.root_slot)
        slot = node.slot if ancestors else begun.root_slot
        worth = self._growth.worth(growing, node)
        return PlannedRow(sequence, node.position, worth, tuple(path), node.token, node=node, slot=slot)

    def leaves(self) -> list[PlannedRow]:
        """The rows of nodes that are there and not in the first step."""
        return [self.row_of(index, node) for _, index, node in self._growth.leaves(self._growing)]

    def add(self, row: PlannedRow) -> None:
        """Adds a row that may be expanded."""
        heapq.heappush(self._waiting, (-row.worth, next(self._order), row))

    def expand(self, row: PlannedRow) -> None:
        """Adds the children that a row is expected to get; none if it has some."""
        if row.node is not None and row.node.children:
            return
        growing, sequence = self._growing[row.sequence], row.sequence
        least = self._growth.least_worth(growing)
        for rank, chance in enumerate(self._chances):
            worth = row.worth * chance
            if self._sizes[sequence] >= growing.max_nodes or (rank and worth < least):
                return
            self._sizes[sequence] += 1
            if worth >= least and row.position + 1 < self._growth.deepest(growing):
                path = (*row.path, row.slot)
                self.add(PlannedRow(sequence, row.position + 1, worth, path, parent=row, rank=rank))

    def best(self, most: int) -> list[PlannedRow]:
        """Takes the best rows, up to `most`, of sequences whose credit is not used up."""
        found: list[PlannedRow] = []
        while self._waiting and len(found) < most:
            row = heapq.heappop(self._waiting)[2]
            if self._sizes[row.sequence] < self._growing[row.sequence].max_nodes:
                found.append(row)
        return found
