"""The pace of sequences that share steps: none falls far behind plain decoding because of the drafts of others.

A node makes a step longer for every sequence in it, also for those that no drafter drafts for. Each sequence therefore
keeps a share of its plain pace: the tokens that it commits are, but for a few, at least that share of those that plain
steps over the same batch commit in the same time. A long step puts a sequence behind by some tokens, and steps without
nodes follow until it has caught up: a few steps with many nodes cost less than many steps with few.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

PLAIN_SHARE = 0.95
"""Share of its plain pace that a sequence keeps, unless a planner is told another one. The aim is 0.9 of its plain
speed; what the planner does not see of drafting (merging, walking, an inexact cost curve) takes some per cent."""
_MOST_AHEAD = 4.0
"""Most tokens that a sequence can be ahead. What it gained long ago must not make it wait for others much later."""
_MOST_DEBT = 2.0
"""Most tokens by which a step may put a sequence behind."""
_MOST_BEHIND = 3.0
"""Most tokens that a sequence can be behind."""


@dataclass(slots=True)
class Pace:
    """How far a sequence is ahead of its share of plain decoding."""

    ahead: float = 0.0
    """Number of tokens, negative if it is behind."""

    @property
    def allowance(self) -> float:
        """Number of tokens by which the next step may fall short of its share; negative while it has to catch up."""
        return self.ahead + _MOST_DEBT if self.ahead >= 0 else self.ahead

    def settle(self, expected: float, due: float) -> None:
        """Records a step. expected: number of tokens that it was expected to commit: of many sequences with drafts some
        always have bad luck, and those must not keep all others from drafting. due: number of tokens that the
        sequence's share of plain decoding commits in the same time."""
        ahead = self.ahead + expected - due
        # Not by `min` and `max`: each step settles all of its sequences.
        self.ahead = _MOST_AHEAD if ahead > _MOST_AHEAD else ahead if ahead > -_MOST_BEHIND else -_MOST_BEHIND


class PaceLimit:
    """The longest duration of a step, while nodes are added to it one by one."""

    def __init__(self, tokens: Mapping[int, float], plain_seconds: float, share: float):
        """tokens: number of tokens that each sequence to protect can count on, by index: those expected of the step,
        and its allowance. plain_seconds: duration of the step without nodes. share: of its plain pace that each
        sequence keeps, from 0 to 1."""
        self._tokens = dict(tokens)
        self._plain_seconds = plain_seconds
        self._share = share
        self._owner: int | None = None
        """The sequence of the first node."""
        self._shared = False
        """Whether the nodes are of several sequences."""
        self._least = min(self._tokens.values(), default=math.inf)
        """The fewest tokens that a sequence can count on. While all added nodes are of one sequence it does not count:
        they may be worth less to it than they cost it, but only others are protected."""

    def add(self, index: int, probability: float) -> None:
        """Adds a node. index: of its sequence. probability: that the node is on the target's path."""
        before = self._tokens.get(index, math.inf)
        if before < math.inf:
            self._tokens[index] = before + probability
        if self._owner is None:
            self._owner = index
            self._least = min((tokens for other, tokens in self._tokens.items() if other != index), default=math.inf)
        elif self._shared:
            if before <= self._least:
                self._least = min(self._tokens.values(), default=math.inf)
        elif index != self._owner:
            self._shared = True
            self._least = min(self._tokens.values(), default=math.inf)

    def longest(self, indices: Iterable[int]) -> float:
        """Returns the seconds beyond which no nodes of others allow a step. indices: of sequences without nodes."""
        least = min((self._tokens[index] for index in indices), default=math.inf)
        return least * self._plain_seconds / self._share if self._share else math.inf

    def allows(self, seconds: float) -> bool:
        """Returns whether a step of the nodes added so far may take this long."""
        return seconds * self._share <= self._least * self._plain_seconds
