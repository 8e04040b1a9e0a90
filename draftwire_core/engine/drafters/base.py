"""The base classes of drafters: an open sequence with its token tree, and the bookkeeping common to all methods.

A new method derives from `TreeDrafter` and implements `extend`, which adds nodes to trees. A method that keeps state
per sequence also derives from `TreeDraft`. docs/write-a-drafter.md has a complete example.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

import torch

from draftwire_core.engine.drafters.drafter import DraftSpec, Growth, OutOfSyncError
from draftwire_core.engine.drafters.tree_growth import GrowingTree
from draftwire_core.engine.planning.step_clock import StepClock
from draftwire_core.engine.tree.proposal import Proposal
from draftwire_core.engine.tree.token_tree import Node, TokenTree


class TreeDraft:
    """One open sequence: its token tree, which mirrors the verifier's, and the nodes not yet proposed."""

    def __init__(self, spec: DraftSpec):
        self.spec = spec
        self.tree = TokenTree(len(spec.tokens), spec.tokens[-1])
        self.max_tree_nodes = spec.max_tree_nodes
        """The current credit, at most the one the sequence was opened with."""
        self.caught_up = False
        """Whether `Growth.opened` has listed the sequence."""
        self._next_id = 1
        self._fresh: list[Node] = []

    @property
    def max_position(self) -> int:
        """The position from which nodes need no children, since the request's last token needs no node."""
        return self.spec.max_length - 2

    @property
    def growing(self) -> GrowingTree:
        """The tree with its limits."""
        return GrowingTree(self.tree, self.max_tree_nodes, self.max_position)

    def add(self, parent: Node, token: int, log_prob: float = 0.0, source: str = "") -> Node | None:
        """Returns the node that drafts `token` after `parent`; a new node joins the next proposal.

        Returns None for a new node that does not fit because the credit is used up or the request ends.

        log_prob: the token's natural-log probability given its parent, at most 0. source: a label by which `observe`
        can distinguish nodes.
        """
        known = parent.children.get(token)
        if known is not None:
            return known
        if self.tree.size >= self.max_tree_nodes or parent.position >= self.max_position:
            return None
        node, _ = self.tree.add(parent, token, log_prob, source)
        self.number([node])
        return node

    def number(self, nodes: Iterable[Node]) -> None:
        """Assigns ids to nodes that were added to the tree, and appends them to the next proposal in this order."""
        for node in nodes:
            node.id = self._next_id
            self._next_id += 1
            self._fresh.append(node)

    def take_proposal(self, *, last: bool = False) -> Proposal | None:
        """Returns the nodes added since the last call, or None if there are none. last: see `Proposal`."""
        fresh, self._fresh = self._fresh, []
        return Proposal.of(self.tree, fresh, last=last) if fresh else None

    def report(self, key: Hashable, growth: Growth, *, last: bool) -> None:
        """Adds the new nodes to a step's growth, and lists the sequence as opened if it has just caught up.

        last: whether this is the last proposal before the next verdict.
        """
        if not self.caught_up:
            self.caught_up = True
            growth.opened.append(key)
        proposal = self.take_proposal(last=last)
        if proposal is not None:
            growth.proposals[key] = proposal

    def commit(self, tokens: Sequence[int]) -> list[int]:
        """Applies a verdict of these tokens; returns the KV slots of the nodes it pruned."""
        _, pruned = self.tree.commit(tokens)
        return [node.slot for node in pruned if node.slot >= 0]


DraftT = TypeVar("DraftT", bound=TreeDraft)


class BaseDrafter(ABC, Generic[DraftT]):
    """The part of a Drafter (see `drafter.Drafter`) common to all methods: its sequences, verdicts and credit."""

    def __init__(self) -> None:
        self.clock = StepClock()
        self._drafts: dict[Hashable, DraftT] = {}

    @abstractmethod
    def begin(self, spec: DraftSpec) -> DraftT:
        """Returns the draft of a newly opened sequence. Raises DrafterFullError."""

    def observe(self, draft: DraftT, tokens: Sequence[int]) -> None:
        """Learns from a verdict before it is applied to the draft. Does nothing by default."""

    def open(self, key: Hashable, spec: DraftSpec) -> None:
        """Starts drafting for a sequence; an open one is replaced. Raises DrafterFullError."""
        self.close(key)
        self._drafts[key] = self.begin(spec)

    def close(self, key: Hashable) -> None:
        """Stops drafting for a sequence; does nothing if it is not open."""
        self._drafts.pop(key, None)

    def limit(self, key: Hashable, max_tree_nodes: int | None) -> None:
        """Changes the credit of an open sequence, at most to the original one, which None restores. Raises KeyError."""
        draft = self._drafts[key]
        most = draft.spec.max_tree_nodes
        draft.max_tree_nodes = most if max_tree_nodes is None else min(max_tree_nodes, most)

    def _follow(self, key: Hashable, committed_length: int, tokens: Sequence[int]) -> list[int]:
        """Applies a verdict; returns the KV slots of the nodes it pruned. Raises OutOfSyncError, KeyError."""
        draft = self._drafts[key]
        known = draft.tree.committed_length
        if committed_length - len(tokens) != known or not tokens:
            raise OutOfSyncError(
                f"verdict of {len(tokens)} tokens to a length of {committed_length}, but the drafter has {known} tokens"
            )
        self.observe(draft, tokens)
        return draft.commit(tokens)


class TreeDrafter(BaseDrafter[DraftT]):
    """A Drafter that drafts for a sequence once when it is opened, and once after each verdict."""

    def __init__(self) -> None:
        super().__init__()
        self._to_do: dict[Hashable, None] = {}
        """The sequences to draft for, in the order of their verdicts."""

    @abstractmethod
    def extend(self, drafts: Sequence[DraftT]) -> None:
        """Adds likely next tokens to the drafts' trees, by `TreeDraft.add`."""

    def open(self, key: Hashable, spec: DraftSpec) -> None:
        """Starts drafting for a sequence and schedules its first draft."""
        super().open(key, spec)
        self._to_do[key] = None

    def commit(self, key: Hashable, committed_length: int, tokens: Sequence[int]) -> None:
        """Applies a verdict and schedules the sequence's next draft. Raises OutOfSyncError, KeyError."""
        self._follow(key, committed_length, tokens)
        self._to_do[key] = None

    def close(self, key: Hashable) -> None:
        """Stops drafting for a sequence and cancels its scheduled draft."""
        super().close(key)
        self._to_do.pop(key, None)

    @property
    def busy(self) -> bool:
        """Whether any sequence is scheduled."""
        return bool(self._to_do)

    def grow(self) -> Growth:
        """Drafts once for all scheduled sequences."""
        started = time.perf_counter()
        self.clock.enter("draft")
        growth = Growth([], {}, 0.0)
        due = self._due()
        for key in due:
            del self._to_do[key]
        drafts = [self._drafts[key] for key in due]
        self.extend(drafts)
        for key, draft in zip(due, drafts, strict=True):
            draft.report(key, growth, last=True)
        self.clock.enter(None)
        growth.seconds = time.perf_counter() - started
        return growth

    def _due(self) -> list[Hashable]:
        """Returns the sequences to draft for in this step; the others stay scheduled."""
        return list(self._to_do)


class StateDraft(TreeDraft):
    """One sequence, with the target's last hidden state to draft from next."""

    def __init__(self, spec: DraftSpec):
        super().__init__(spec)
        self.state: torch.Tensor | None = None
        """None after a verdict, until the state behind it arrives."""

    def commit(self, tokens: Sequence[int]) -> list[int]:
        """Applies a verdict and drops the state, which precedes it."""
        self.state = None
        return super().commit(tokens)


class StateTreeDrafter(TreeDrafter[StateDraft]):
    """A StateDrafter (see `drafter.StateDrafter`): it drafts for a sequence once after each hidden state."""

    def begin(self, spec: DraftSpec) -> StateDraft:
        """Returns an empty draft; it has no state to draft from before the next verdict."""
        return StateDraft(spec)

    def commit(self, key: Hashable, committed_length: int, tokens: Sequence[int]) -> None:
        """Applies a verdict. The sequence is scheduled only when its hidden state arrives."""
        self._follow(key, committed_length, tokens)

    def see(self, key: Hashable, state: torch.Tensor) -> None:
        """Stores a sequence's hidden state and schedules its next draft."""
        self._drafts[key].state = state
        self._to_do[key] = None
