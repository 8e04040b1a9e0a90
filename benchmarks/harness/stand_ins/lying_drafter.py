"""A drafter that proposes random tokens with high confidence."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from draftwire_core.engine.drafters.drafter import DraftSpec, Growth
from draftwire_core.engine.planning.step_clock import StepClock
from draftwire_core.engine.tree.proposal import Proposal
from draftwire_core.engine.tree.token_tree import TokenTree

_LOG_PROB = -0.01
"""Log-probability that it reports for each of its tokens: 99 %."""
_LENGTH = 8
"""Tokens that it proposes at a time."""
_STEP_SECONDS = 1e-3
"""Step time that it reports."""


@dataclass(slots=True)
class _Lie:
    tree: TokenTree
    most: int
    next_id: int = 1
    opened: bool = False


class LyingDrafter:
    """A Drafter (see `draftwire_core.engine.drafters.drafter`) that answers every verdict at once with a chain of
    random tokens, and reports near certainty for each."""

    def __init__(self, model: Any, *_: object, seed: int = 0):
        """model: only its `vocab_size` is used."""
        self.clock = StepClock()
        self._vocab_size: int = model.vocab_size
        self._rng = random.Random(seed)
        self._lies: dict[Hashable, _Lie] = {}

    @property
    def busy(self) -> bool:
        """Whether there is something to draft; see Drafter.busy."""
        return any(not lie.tree.size for lie in self._lies.values())

    def open(self, key: Hashable, spec: DraftSpec) -> None:
        """Opens a sequence; see Drafter.open."""
        tree = TokenTree(len(spec.tokens), spec.tokens[-1])
        self._lies[key] = _Lie(tree, min(spec.max_tree_nodes, _LENGTH))

    def commit(self, key: Hashable, committed_length: int, tokens: Sequence[int]) -> None:
        """Commits tokens; see Drafter.commit."""
        self._lies[key].tree.commit(tokens)

    def limit(self, key: Hashable, max_tree_nodes: int | None) -> None:
        """Limits a sequence's tree; see LimitedDrafter.limit."""
        lie = self._lies[key]
        lie.most = _LENGTH if max_tree_nodes is None else min(max_tree_nodes, _LENGTH)

    def close(self, key: Hashable) -> None:
        """Closes a sequence; see Drafter.close."""
        self._lies.pop(key, None)

    def grow(self) -> Growth:
        """Grows the trees; see Drafter.grow."""
        growth = Growth([], {}, _STEP_SECONDS)
        for key, lie in self._lies.items():
            if not lie.opened:
                lie.opened = True
                growth.opened.append(key)
            if not lie.tree.size:
                growth.proposals[key] = self._chain(lie)
        return growth

    def _chain(self, lie: _Lie) -> Proposal:
        node, first = lie.tree.root, lie.next_id
        tokens = [self._rng.randrange(self._vocab_size) for _ in range(lie.most)]
        for token in tokens:
            node, _ = lie.tree.add(node, token, _LOG_PROB)
        lie.next_id += len(tokens)
        return Proposal(
            committed_length=lie.tree.committed_length,
            first_node_id=first,
            token_ids=tokens,
            parent_ids=[0, *range(first, first + len(tokens) - 1)],
            log_probs=[_LOG_PROB] * len(tokens),
        )
