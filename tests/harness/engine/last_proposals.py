"""The check that a drafter says which proposal is its last before a verdict."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping
from typing import Protocol

from draftwire_core.engine.tree.proposal import Proposal


class Working(Protocol):
    """A drafter that may have something to do."""

    @property
    def busy(self) -> bool:
        """Whether another step drafts anything."""


class Pair(Protocol):
    """A drafter, and the verifier's side of its sequences."""

    drafter: Working

    def open(self, number: int) -> None:
        """Opens a sequence."""

    def grow(self) -> Mapping[Hashable, Proposal]:
        """Runs one step, and returns its proposals."""

    def commit(self, number: int, rng: random.Random) -> None:
        """Commits tokens of a sequence."""


def count_last_proposals(pair: Pair, verdicts: int) -> int:
    """Drafts one sequence and checks each proposal. Returns how many were the last before a verdict."""
    rng = random.Random(5)
    pair.open(0)
    said = 0
    for _ in range(verdicts):
        while pair.drafter.busy:
            for proposal in pair.grow().values():
                assert proposal.last == (not pair.drafter.busy)
                said += proposal.last
        pair.commit(0, rng)
    return said
