"""One sequence of a translating drafter: the target's tree, and the draft tokens that spell its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.model.context_window import ContextWindow
from draftwire_core.engine.drafters.model.slot_drafter import SlotDraft
from draftwire_core.engine.drafters.translation.realignment import append_text, begin_text, replace_end
from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.drafters.translation.turn_translation import TurnReader
from draftwire_core.engine.drafters.tree_growth import GrowingTree
from draftwire_core.engine.tree.token_tree import Node

_TEXT = 4
"""Target tokens that are read for each of a window's draft tokens, in which one draft token may spell several."""
PASSED = 0
"""The `slot` of a node that needs no row of its own, since the draft token it is part of extends beyond it."""


@dataclass(slots=True, eq=False)
class Spelling:
    """The draft tokens that spell a node."""

    base: Spelling | None
    """The spelling before this one; None if the committed tokens are before it."""
    start: int
    """Number of draft tokens before this spelling, including committed ones."""
    pieces: Sequence[int]
    slots: list[int] = field(default_factory=list)
    """KV slots of the pieces; empty until they have been through the model."""

    @property
    def end(self) -> int:
        """Number of draft tokens up to the end of this spelling."""
        return self.start + len(self.pieces)

    def path(self) -> list[Spelling]:
        """Returns the spellings from the committed tokens to this one, inclusive."""
        path = [self]
        while (base := path[-1].base) is not None:
            path.append(base)
        return path[::-1]


def end_of(tokens: Sequence[int], window: ContextWindow) -> Sequence[int]:
    """Returns the target tokens whose text surely fills a window: all, or the first one and enough of the last ones.
    Spelling a much longer text would delay all other sequences."""
    most = _TEXT * max(1, window.size)
    return tokens if len(tokens) <= most else [*tokens[:1], *tokens[len(tokens) - most + 1 :]]


class TranslatedDraft(SlotDraft):
    """One sequence. The target's tokens are only counted; `tokens` holds the text as draft tokens."""

    def __init__(self, spec: DraftSpec, token_map: TokenMap, window: ContextWindow):
        """window: what the model reads of the draft tokens."""
        super().__init__(spec, [])
        self._map = token_map
        self._window = window
        self._spellings: dict[Node, Spelling] = {}
        self._turns = None if token_map.turns is None else TurnReader(token_map.turns)
        """The turn markers of the committed text; None if they are read as they are."""
        self._append((), end_of(spec.tokens, window))
        self._turn_window()

    @property
    def outgrown(self) -> bool:
        """Whether nothing is drafted for the text, because it is empty or the model has no room for any and a tree."""
        return not self.tokens or self._window.most < 1

    @property
    def length(self) -> int:
        """Number of committed draft tokens that are read; 0 if outgrown."""
        return 0 if self.outgrown else len(self.tokens)

    @property
    def pending(self) -> int:
        """Number of committed draft tokens that have not been through the model; 0 if outgrown."""
        return 0 if self.outgrown else len(self.tokens) - len(self.slots)

    @property
    def bounds(self) -> GrowingTree:
        """The tree with its limits, even if no more rows may be computed."""
        return super().growing

    @property
    def growing(self) -> GrowingTree:
        """The tree with its limits, and with no room if no more rows may be computed.

        That is so once the nodes hold two KV slots per node of the credit, and if the text is outgrown.
        """
        bounds = self.bounds
        held = sum(len(spelling.slots) for spelling in self._spellings.values())
        full = self.outgrown or held >= 2 * self.spec.max_tree_nodes
        return GrowingTree(bounds.tree, 0, bounds.max_position) if full else bounds

    def spell(self, node: Node, base: Node, pieces: Sequence[int]) -> None:
        """Records the draft tokens of a new node, which follow those of `base`, and numbers the node."""
        before = self._spellings.get(base)
        self._spellings[node] = Spelling(before, len(self.tokens) if before is None else before.end, pieces)
        self.number([node])

    def spelling(self, node: Node) -> Spelling | None:
        """Returns the spelling of a node; None for the root, which ends with the committed draft tokens."""
        return self._spellings.get(node)

    def chain(self, node: Node) -> list[Node]:
        """Returns the nodes that a node's draft tokens spell, in order; the node itself is the last."""
        spelling = self._spellings.get(node)
        base = None if spelling is None else spelling.base
        chain = [node]
        while (parent := chain[-1].parent) is not None and self._spellings.get(parent) is not base:
            chain.append(parent)
        return chain[::-1]

    def context(self, spelling: Spelling | None) -> np.ndarray:
        """Returns the KV slots of all draft tokens up to the end of a spelling, int64; None is the root's."""
        if spelling is None:
            return self.slots.array().copy()
        path = spelling.path()
        nodes = [slot for each in path for slot in each.slots]
        return np.concatenate([self.slots.array()[: path[0].start], np.array(nodes, dtype=np.int64)])

    def commit(self, tokens: Sequence[int]) -> list[int]:
        """Applies a verdict; returns the KV slots that are no longer needed."""
        walked, _ = self.tree.commit(tokens)
        freed: list[int] = []
        path = self._spellings[walked[-1]].path() if walked else []
        if path:
            freed += self._cut(path[0].start)
            for each in path:
                computed = len(self.slots) == len(self.tokens)
                self.tokens += each.pieces
                if computed:  # otherwise the sequence has given up its slots
                    self.slots.extend(each.slots)
        length = len(self.tokens)
        kept = self._append(tokens[: len(walked)], tokens[len(walked) :])
        freed += self._cut(kept, keep_tokens=True)
        living = {node: self._spellings[node] for node in self.tree.nodes()}
        for node, spelling in self._spellings.items():
            if node not in living and spelling not in path:
                freed += spelling.slots
        for spelling in living.values():
            if spelling.base in path:
                spelling.base = None
        self._spellings = living
        if kept < length:
            freed += self._respell()
        return freed + self._turn_window()

    def _append(self, accepted: Sequence[int], new: Sequence[int]) -> int:
        """Reads target tokens, of which the `accepted` ones have been spelled already: appends the `new` ones, and
        replaces the end if it has become a turn marker. Returns how many leading draft tokens are unchanged."""
        if self._turns is None:
            return append_text(self.tokens, new, self._map)
        if not self.tokens:
            new = begin_text(self.tokens, new, self._map)
        before, after = self._turns.follow(self._map.target.symbols([*accepted, *new]))
        spelled = before + self._map.symbols(accepted)
        same = 0
        while same < min(len(spelled), len(after)) and spelled[same] == after[same]:
            same += 1
        return replace_end(self.tokens, len(spelled) - same, after[same:], self._map)

    def _respell(self) -> list[int]:
        """Spells all nodes again, one by one, since the text before them has changed; returns their KV slots."""
        freed = [slot for spelling in self._spellings.values() for slot in spelling.slots]
        nodes = list(self._spellings)
        self._spellings = {}
        for node in nodes:
            assert node.parent is not None, "the root has no spelling"
            before = self._spellings.get(node.parent)
            start = len(self.tokens) if before is None else before.end
            self._spellings[node] = Spelling(before, start, self._map.spelled(node.token))
            node.slot = -1
        return freed

    def _turn_window(self) -> list[int]:
        """Gives up a full window for its newer half, and returns the slots that are free now."""
        newest = self._window.newest(self.tokens)
        if newest is None:
            return []
        freed: list[int] = self.give_up().tolist()
        for spelling in self._spellings.values():
            spelling.start -= len(self.tokens) - len(newest)
        self.tokens = newest
        return freed

    def _cut(self, length: int, *, keep_tokens: bool = False) -> list[int]:
        """Removes the KV slots from draft token `length` on and returns them; also removes the tokens unless kept."""
        if not keep_tokens:
            del self.tokens[length:]
        if len(self.slots) <= length:
            return []
        slots = self.slots.clear()
        self.slots.extend(slots[:length])
        rest: list[int] = slots[length:].tolist()
        return rest

    def give_up(self) -> np.ndarray:
        """Releases all KV slots, including those of nodes, and returns them, int64; tokens and tree stay."""
        slots = self.slots.clear().tolist()
        for node, spelling in self._spellings.items():
            slots += spelling.slots
            spelling.slots = []
            if node.slot != PASSED:
                node.slot = -1
        return np.array(slots, dtype=np.int64)
