"""The base of drafters: one open sequence with its token tree, and the bookkeeping that every method needs.

A new method derives from `TreeDrafter` and implements `extend`, which adds nodes to trees. Where it keeps something of
its own about a sequence, it derives from `TreeDraft` too. docs/add-a-drafter-method.md has a complete example.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from speculative_engine.drafters.drafter import DraftSpec, Growth, OutOfSyncError
from speculative_engine.drafters.tree_growth import GrowingTree
from speculative_engine.planning.step_clock import StepClock
from speculative_engine.tree.proposal import Proposal
from speculative_engine.tree.token_tree import Node, TokenTree


class TreeDraft:
    """One open sequence: its token tree, which mirrors the verifier's, and the nodes that are yet to be proposed."""

    def __init__(self, spec: DraftSpec):
        self.spec = spec
        self.tree = TokenTree(len(spec.tokens), spec.tokens[-1])
        self.max_tree_nodes = spec.max_tree_nodes
        """The present credit, at most that of the opening."""
        self.caught_up = False
        """Whether `Growth.opened` has named the sequence."""
        self._next_id = 1
        self._fresh: list[Node] = []

    @property
    def max_position(self) -> int:
        """The position from which on a node needs no children, as the request's last token needs no node."""
        return self.spec.max_length - 2

    @property
    def growing(self) -> GrowingTree:
        """The tree and its bounds."""
        return GrowingTree(self.tree, self.max_tree_nodes, self.max_position)

    def add(self, parent: Node, token: int, log_prob: float = 0.0, source: str = "") -> Node | None:
        """Returns the node that drafts `token` after `parent`, added to the next proposal if it is new.

        Returns None if it is new and does not fit: where the credit is used up, or the request ends.

        log_prob: the token's natural-log probability given its parent, at most 0. source: a name for `observe` to tell
        nodes apart by.
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
        """Gives nodes that were added to the tree their ids, and puts them into the next proposal, in this order."""
        for node in nodes:
            node.id = self._next_id
            self._next_id += 1
            self._fresh.append(node)

    def take_proposal(self) -> Proposal | None:
        """Returns the nodes added since the last call, None if there are none."""
        fresh, self._fresh = self._fresh, []
        return Proposal.of(self.tree, fresh) if fresh else None

    def report(self, key: Hashable, growth: Growth) -> None:
        """Adds to a step's growth the new nodes, and that the sequence has caught up."""
        if not self.caught_up:
            self.caught_up = True
            growth.opened.append(key)
        proposal = self.take_proposal()
        if proposal is not None:
            growth.proposals[key] = proposal

    def commit(self, tokens: Sequence[int]) -> list[int]:
        """Follows a verdict of these tokens; returns the KV slots of nodes that it has pruned."""
        _, pruned = self.tree.commit(tokens)
        return [node.slot for node in pruned if node.slot >= 0]


DraftT = TypeVar("DraftT", bound=TreeDraft)


class BaseDrafter(ABC, Generic[DraftT]):
    """The part of a Drafter (see `drafter.Drafter`) that every method shares: its sequences, verdicts and credit."""

    def __init__(self) -> None:
        self.clock = StepClock()
        self._drafts: dict[Hashable, DraftT] = {}

    @abstractmethod
    def begin(self, spec: DraftSpec) -> DraftT:
        """Returns the draft of a sequence that is opened. Raises DrafterFullError."""

    def observe(self, draft: DraftT, tokens: Sequence[int]) -> None:
        """Learns from a verdict before the draft follows it. Does nothing by default."""

    def open(self, key: Hashable, spec: DraftSpec) -> None:
        """See Drafter.open."""
        self.close(key)
        self._drafts[key] = self.begin(spec)

    def close(self, key: Hashable) -> None:
        """See Drafter.close."""
        self._drafts.pop(key, None)

    def limit(self, key: Hashable, max_tree_nodes: int | None) -> None:
        """See LimitedDrafter.limit."""
        draft = self._drafts[key]
        most = draft.spec.max_tree_nodes
        draft.max_tree_nodes = most if max_tree_nodes is None else min(max_tree_nodes, most)

    def _follow(self, key: Hashable, committed_length: int, tokens: Sequence[int]) -> list[int]:
        """Follows a verdict; returns the KV slots of nodes that it has pruned. Raises OutOfSyncError, KeyError."""
        draft = self._drafts[key]
        known = draft.tree.committed_length
        if committed_length - len(tokens) != known or not tokens:
            raise OutOfSyncError(
                f"verdict of {len(tokens)} tokens to a length of {committed_length}, the drafter knows {known} tokens"
            )
        self.observe(draft, tokens)
        return draft.commit(tokens)


class TreeDrafter(BaseDrafter[DraftT]):
    """A Drafter that drafts for a sequence once it is open, and once after each verdict."""

    def __init__(self) -> None:
        super().__init__()
        self._to_do: dict[Hashable, None] = {}
        """The sequences to draft for, in the order of their verdicts."""

    @abstractmethod
    def extend(self, drafts: Sequence[DraftT]) -> None:
        """Adds to the drafts' trees the tokens that may come next, by `TreeDraft.add`."""

    def open(self, key: Hashable, spec: DraftSpec) -> None:
        """See Drafter.open."""
        super().open(key, spec)
        self._to_do[key] = None

    def commit(self, key: Hashable, committed_length: int, tokens: Sequence[int]) -> None:
        """See Drafter.commit."""
        self._follow(key, committed_length, tokens)
        self._to_do[key] = None

    def close(self, key: Hashable) -> None:
        """See Drafter.close."""
        super().close(key)
        self._to_do.pop(key, None)

    @property
    def busy(self) -> bool:
        """See Drafter.busy."""
        return bool(self._to_do)

    def grow(self) -> Growth:
        """See Drafter.grow."""
        started = time.perf_counter()
        self.clock.enter("draft")
        growth = Growth([], {}, 0.0)
        due = self._due()
        for key in due:
            del self._to_do[key]
        drafts = [self._drafts[key] for key in due]
        self.extend(drafts)
        for key, draft in zip(due, drafts, strict=True):
            draft.report(key, growth)
        self.clock.enter(None)
        growth.seconds = time.perf_counter() - started
        return growth

    def _due(self) -> list[Hashable]:
        """The sequences to draft for in this step; those that are left out stay to be done."""
        return list(self._to_do)
