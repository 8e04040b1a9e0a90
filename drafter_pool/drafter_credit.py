"""What a drafter is told and asked for: nodes by how many are verified, little while it brings less than that costs."""

from __future__ import annotations

import math

_LEAST = 4
"""Nodes: enough to go on measuring how often it is right, and to start anew when it is of use again."""
_FEWEST = 8
"""The same of a drafter whose nodes are verified: enough to find out that more of them are worth it."""
_FOR_EACH = 8
"""Nodes for each that a step verifies: beside those that are verified, the alternatives to them and what follows. More
bring nothing (docs/benchmarks.md, "profile_step.py")."""
_UNKNOWN_NODES = 64.0
"""Nodes that a step is taken to verify where nothing is known of the drafter."""
_REST = 8
"""Steps of which it is then told at once."""
_MEMORY = 8.0
"""Tellings after which older ones have lost most of their weight."""
_STEP_SECONDS = 1.5e-3
_SEQUENCE_SECONDS = 0.3e-3
"""What a step takes longer, and for each sequence, when a drafter is told of it and answers: messages to and fro, and
the tree. Measured with one core for everything (benchmarks/profile_step.py)."""
_MOST = 0.1
"""Of a step's time, that this is taken to be: where steps take a millisecond or two, caches are warm."""
_UNKNOWN = 0.02
"""The same where nothing is known of a step's time."""


class DrafterCredit:
    """Reading a node costs the verifier some microseconds wherever it goes, and a message many more. From a drafter of
    no use, or one that is late, or under a load at which nothing drafted pays, dozens of nodes for each of many
    sequences in every step are a noticeable part of it."""

    def __init__(self) -> None:
        self._gain = 1.0
        """Tokens that a telling brought of a sequence in its best step, less what verifying took: a running average.
        The step after it is the best, as a rule, and what each would be if the drafter were told of all."""
        self._cost = _UNKNOWN
        """What telling and reading cost, in the same: a step without nodes brings one token."""
        self._step_seconds = 0.0
        self._node_tokens = 0.0
        self._saved = 0.0
        self._best = -math.inf
        self._steps = 0
        self._nodes = 0
        self._nodes_verified = _UNKNOWN_NODES
        """In a step and for a sequence: a running average."""

    def price(self, step_seconds: float, node_tokens: float) -> None:
        """What the step that is over would have taken without nodes (0 if unknown), and how many tokens would have been
        generated without any in the time that each node took."""
        self._step_seconds, self._node_tokens = step_seconds, node_tokens

    def verified(self, nodes: int, accepted: int) -> None:
        """The step has verified so many of the drafter's nodes, and accepted so many of them."""
        self._saved += accepted - nodes * self._node_tokens
        self._nodes += nodes

    def stepped(self, sequences: int) -> None:
        """A step is over that went on with so many sequences, at least one, that the drafter drafts for."""
        self._best = max(self._best, self._saved / sequences)
        self._saved = 0.0
        if not self.rests:
            self._nodes_verified += (self._nodes / sequences - self._nodes_verified) / _MEMORY
        self._nodes = 0
        if self._step_seconds:
            self._cost = min(_MOST, (_STEP_SECONDS + _SEQUENCE_SECONDS * sequences) / self._step_seconds)
        self._steps += 1
        if self._steps >= self.steps_at_once:
            self._gain += (self._best - self._gain) / _MEMORY
            self._best = -math.inf
            self._steps = 0

    @property
    def max_tree_nodes(self) -> int:
        """Most live nodes of a tree, if its opening allows as many."""
        return _LEAST if self.rests else max(_FEWEST, math.ceil(_FOR_EACH * self._nodes_verified))

    @property
    def steps_at_once(self) -> int:
        """Of how many steps the drafter is told together."""
        return _REST if self.rests else 1

    @property
    def rests(self) -> bool:
        """Whether it brings less than it costs."""
        return self._gain < self._cost
