"""Jump-ahead: drafts what the form of a request's output leaves no choice about. No model, microseconds a proposal."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence

from speculative_engine.drafters.drafter import DraftSpec, Growth
from speculative_engine.logits.output_form import OutputForm
from speculative_engine.planning.step_clock import StepClock
from speculative_engine.tree.proposal import Proposal
from speculative_engine.tree.token_tree import Node, TokenTree

_SOURCE = "grammar"


class GrammarDrafter:
    """A Drafter (see `drafter.Drafter`) for the sequence that a form belongs to, in the thread that the form is in.

    The form follows the sequence by itself; this only asks it.
    """

    def __init__(self, form: OutputForm):
        self.clock = StepClock()
        self._form = form
        self._drafts: dict[Hashable, tuple[DraftSpec, TokenTree]] = {}
        self._to_do: set[Hashable] = set()
        self._next_id = 1

    def open(self, key: Hashable, spec: DraftSpec) -> None:
        """See Drafter.open."""
        self._drafts = {key: (spec, TokenTree(len(spec.tokens), spec.tokens[-1]))}
        self._to_do = {key}
        self._next_id = 1

    def commit(self, key: Hashable, committed_length: int, tokens: Sequence[int]) -> None:
        """See Drafter.commit."""
        self._drafts[key][1].commit(tokens)
        self._to_do.add(key)

    def close(self, key: Hashable) -> None:
        """See Drafter.close."""
        self._drafts.pop(key, None)
        self._to_do.discard(key)

    @property
    def busy(self) -> bool:
        """See Drafter.busy."""
        return bool(self._to_do)

    def grow(self) -> Growth:
        """See Drafter.grow."""
        started = time.perf_counter()
        self.clock.enter("draft")
        growth = Growth([], {}, 0.0)
        for key in self._to_do:
            spec, tree = self._drafts[key]
            fresh = self._draft(spec, tree)
            if fresh:
                growth.proposals[key] = Proposal.of(tree, fresh)
        self._to_do.clear()
        self.clock.enter(None)
        growth.seconds = time.perf_counter() - started
        return growth

    def _draft(self, spec: DraftSpec, tree: TokenTree) -> list[Node]:
        fresh: list[Node] = []
        node = tree.root
        for token in self._form.forced():
            # The request's last token needs no node after its parent.
            if tree.size >= spec.max_tree_nodes or node.position >= spec.max_length - 2:
                break
            node, new = tree.add(node, token, 0.0, _SOURCE)
            if new:
                node.id = self._next_id
                self._next_id += 1
                fresh.append(node)
        return fresh
