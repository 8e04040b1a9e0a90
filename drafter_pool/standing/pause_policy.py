"""The pause policy: sets each drafter's node credit, and pauses drafters whose tokens do not pay for their messages."""

from __future__ import annotations

import math

from speculative_engine.planning.drafting_account import DraftingAccount

_FOR_EACH = 8
"""Nodes requested per node that a step verifies of a sequence: the verified ones, their alternatives and successors."""
_FEWEST = 8
"""Minimum number of nodes requested."""
_LITTLE = 0.04
"""Share of a step's time that reading and keeping nodes may always take; it sets another minimum."""
_NODE_SECONDS = 14e-6
"""Seconds that each live node adds to a step (measured by benchmarks/speed/profile_step.py)."""
_UNKNOWN_NODES = 64.0
"""Initial estimate of the nodes that a step verifies of a sequence."""
_MEMORY = 8.0
"""Time constant, in steps, of the running average of verified nodes."""
_STEP_SECONDS = 1.5e-3
_SEQUENCE_SECONDS = 0.3e-3
"""Seconds that a drafter's verdicts and proposals add to a step, and to it per sequence: messages both ways, and the
tree. Measured with one core for everything (benchmarks/speed/profile_step.py)."""
_MOST = 0.1
"""Upper bound of that cost, as a share of a step: where steps take a millisecond or two, caches are warm."""
_UNKNOWN = 0.02
"""That cost, as a share of a step, while the step's time is unknown."""


class PausePolicy:
    """One drafter's credit: whether it receives verdicts, and how many nodes it may propose.

    Reading a node costs the verifier some microseconds, and a message far more. Dozens of nodes for each of many
    sequences take a noticeable part of every step. That is a waste if the drafter is useless or late, or if no draft
    pays under the current load.

    A `DraftingAccount` decides whether the drafter is paused. The drafter pays for its messages, and for the
    verification of its nodes, with its accepted tokens. Messages have an estimated price; if reading them takes longer,
    the measured time counts instead, also during a pause. A paused drafter receives no verdicts. When it is tried
    again, it first receives everything that was committed during the pause, then the verdicts of each step as before. A
    trial lasts several steps, because a distant drafter's proposals arrive some steps after the verdict they follow.
    """

    def __init__(self) -> None:
        self._account = DraftingAccount()
        self._step_seconds = 0.0
        self._node_tokens = 0.0
        self._sequences = 1
        self._nodes = 0
        self._accepted = 0
        self._drafted = 0
        """Number of sequences in which the step has verified nodes of the drafter."""
        self._nodes_verified = _UNKNOWN_NODES
        """Running average of the nodes verified per step and sequence, over sequences with any."""
        self._read_seconds = 0.0
        """Seconds of reading that are not yet charged."""
        self._unpaid = 0.0
        """Reading time beyond the price of the messages, as a share of a step; negative if reading took less, by at
        most one step's price."""

    def price(self, step_seconds: float, node_tokens: float) -> None:
        """Sets the prices of the last step.

        step_seconds: time that the step would have taken without nodes; 0 if unknown. node_tokens: tokens that plain
        decoding would have generated in the time that each node took.
        """
        self._step_seconds, self._node_tokens = step_seconds, node_tokens

    def verified(self, nodes: int, accepted: int) -> None:
        """Counts the drafter's nodes that the step verified in one sequence, and those it accepted."""
        self._nodes += nodes
        self._accepted += accepted
        self._drafted += nodes > 0

    def read(self, seconds: float) -> None:
        """Charges the time of reading a message of the drafter, useful or not, also during a pause."""
        self._read_seconds += seconds

    def fill(self) -> None:
        """Raises the credit to that of an unknown drafter, and resumes."""
        self._account.fill()

    def try_now(self) -> None:
        """Tries a paused drafter at once instead of waiting until the trial is paid for."""
        self._account.try_now()

    def stepped(self, sequences: int) -> None:
        """Settles a step. sequences: number of the drafter's sequences that continue after it; at least 1."""
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
        """Whether the drafter is paused."""
        return not self._account.open

    @property
    def max_tree_nodes(self) -> int:
        """Maximum live nodes of a tree; the opening may set a lower limit."""
        cheap = _LITTLE * self._step_seconds / (_NODE_SECONDS * self._sequences)
        return max(_FEWEST, math.ceil(_FOR_EACH * self._nodes_verified), int(cheap))

    def _reading(self, paid: float) -> float:
        """Returns the reading time to charge beyond the price already `paid`, as a share of a step."""
        if not self._step_seconds:
            return 0.0  # charged once the step's time is known
        self._unpaid = max(self._unpaid + self._read_seconds / self._step_seconds - paid, -paid)
        self._read_seconds = 0.0
        beyond = max(0.0, self._unpaid)
        self._unpaid -= beyond
        return beyond

    def _telling(self, sequences: int) -> float:
        """Returns the price of sending a step's verdicts and reading the proposals, as a share of a step."""
        if not self._step_seconds:
            return _UNKNOWN
        return min(_MOST, (_STEP_SECONDS + _SEQUENCE_SECONDS * sequences) / self._step_seconds)
