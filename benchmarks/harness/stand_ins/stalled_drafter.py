"""A drafter that follows every conversation and proposes nothing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from draftwire_core.engine.drafters.drafter import DraftSpec, Growth
from draftwire_core.engine.planning.step_clock import StepClock


class StalledDrafter:
    """A Drafter (see `draftwire_core.engine.drafters.drafter`) that opens sequences and never proposes a token."""

    def __init__(self, *_: object):
        """Accepts and ignores the arguments of a drafter with a model."""
        self.clock = StepClock()
        self._fresh: dict[Hashable, None] = {}

    @property
    def busy(self) -> bool:
        """Whether there is something to draft; see Drafter.busy."""
        return bool(self._fresh)

    def open(self, key: Hashable, spec: DraftSpec) -> None:
        """Opens a sequence; see Drafter.open."""
        self._fresh[key] = None

    def commit(self, key: Hashable, committed_length: int, tokens: Sequence[int]) -> None:
        """Commits tokens; see Drafter.commit."""

    def limit(self, key: Hashable, max_tree_nodes: int | None) -> None:
        """Limits a sequence's tree; see LimitedDrafter.limit."""

    def close(self, key: Hashable) -> None:
        """Closes a sequence; see Drafter.close."""
        self._fresh.pop(key, None)

    def grow(self) -> Growth:
        """Grows the trees; see Drafter.grow."""
        opened = list(self._fresh)
        self._fresh.clear()
        return Growth(opened, {}, 0.0)
