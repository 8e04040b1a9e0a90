"""What drafters are told and asked for: nodes by how many are verified, nothing while they bring less than it costs."""

from __future__ import annotations

import math

from speculative_engine.planning.drafting_account import DraftingAccount

_FOR_EACH = 8
"""Nodes for each that a step verifies of a sequence: beside those that are verified, the alternatives to them and what
follows."""
_FEWEST = 8
"""Nodes that are always asked for."""
_LITTLE = 0.04
"""Of a step's time: as many nodes as are read and kept in it are asked for in any case."""
_NODE_SECONDS = 14e-6
"""What a step takes longer for each live node (measured by benchmarks/speed/profile_step.py)."""
_UNKNOWN_NODES = 64.0
"""Nodes that a step is taken to verify where nothing is known of the drafter."""
_MEMORY = 8.0
"""Steps after which older ones have lost most of their weight."""
_STEP_SECONDS = 1.5e-3
_SEQUENCE_SECONDS = 0.3e-3
"""What a step takes longer, and for each sequence, when a drafter is told of it and answers: messages to and fro, and
the tree. Measured with one core for everything (benchmarks/speed/profile_step.py)."""
_MOST = 0.1
"""Of a step's time, that this is taken to be: where steps take a millisecond or two, caches are warm."""
_UNKNOWN = 0.02
"""The same where nothing is known of a step's time."""


class PausePolicy:
    """Reading a node costs the verifier some microseconds wherever it goes, and a message many more. From a drafter of
    no use, or one that is late, or under a load at which nothing drafted pays, dozens of nodes for each of many
    sequences in every step are a noticeable part of it.

    Whether the drafter is told of steps is a matter of its account (`DraftingAccount`): it pays for messages, and for
    the verification of its nodes, with the tokens that are accepted. Messages to and fro have a price; where reading
    what the drafter says takes longer than that, what it really takes counts, also while the drafter rests. While it
    rests it hears nothing of the sequences it drafts for; when it is tried again it hears of all that was committed
    meanwhile, and then of each step, as before. A drafter that is far away shows only so what it brings: what it drafts
    after one verdict comes some steps later.
    """

    def __init__(self) -> None:
        self._account = DraftingAccount()
        self._step_seconds = 0.0
        self._node_tokens = 0.0
        self._sequences = 1
        self._nodes = 0
        self._accepted = 0
        self._drafted = 0
        """Sequences of which the step has verified nodes of the drafter."""
        self._nodes_verified = _UNKNOWN_NODES
        """In a step and of a sequence, if any are: a running average."""
        self._read_seconds = 0.0
        """Seconds of reading since the last step that was priced."""
        self._unpaid = 0.0
        """Of reading, as a part of a step: what it took beyond what was taken for telling; negative where it was less,
        by one step's telling at most."""

    def price(self, step_seconds: float, node_tokens: float) -> None:
        """What the step that is over would have taken without nodes (0 if unknown), and how many tokens would have been
        generated without any in the time that each node took."""
        self._step_seconds, self._node_tokens = step_seconds, node_tokens

    def verified(self, nodes: int, accepted: int) -> None:
        """The step has verified so many of the drafter's nodes in a sequence, and accepted so many of them."""
        self._nodes += nodes
        self._accepted += accepted
        self._drafted += nodes > 0

    def read(self, seconds: float) -> None:
        """Reading what the drafter said took so long, whatever came of it and whether or not it was told anything."""
        self._read_seconds += seconds

    def fill(self) -> None:
        """Let the drafter be told as one of which nothing is known."""
        self._account.fill()

    def try_now(self) -> None:
        """Try a drafter that rests without waiting until that is paid for."""
        self._account.try_now()

    def stepped(self, sequences: int) -> None:
        """A step is over that went on with so many sequences, at least one, that the drafter drafts for."""
        self._sequences = sequences
        if self._drafted:
            self._nodes_verified += (self._nodes / self._drafted - self._nodes_verified) / _MEMORY
        verification = self._nodes * self._node_tokens / sequences
        telling = self._telling(sequences)
        self._account.stepped(
            1.0 + verification,
            saved=self._accepted / sequences - verification - self._reading(0.0 if self.rests else telling),
            cost=telling,
            drafted=not self.rests,
        )
        self._nodes = self._accepted = self._drafted = 0

    @property
    def rests(self) -> bool:
        """Whether the drafter is told nothing for now."""
        return not self._account.open

    @property
    def max_tree_nodes(self) -> int:
        """Most live nodes of a tree, if its opening allows as many."""
        cheap = _LITTLE * self._step_seconds / (_NODE_SECONDS * self._sequences)
        return max(_FEWEST, math.ceil(_FOR_EACH * self._nodes_verified), int(cheap))

    def _reading(self, paid: float) -> float:
        """What reading took beyond what is paid for it anyway, as a part of a step."""
        if not self._step_seconds:
            return 0.0  # to be counted when it is known
        self._unpaid = max(self._unpaid + self._read_seconds / self._step_seconds - paid, -paid)
        self._read_seconds = 0.0
        beyond = max(0.0, self._unpaid)
        self._unpaid -= beyond
        return beyond

    def _telling(self, sequences: int) -> float:
        """What telling the drafter of a step, and reading its answer, costs, as a part of a step."""
        if not self._step_seconds:
            return _UNKNOWN
        return min(_MOST, (_STEP_SECONDS + _SEQUENCE_SECONDS * sequences) / self._step_seconds)
