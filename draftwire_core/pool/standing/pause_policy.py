"""The pause policy: sets each drafter's node credit, and pauses drafters whose tokens do not pay for their messages."""

from __future__ import annotations

import math

from draftwire_core.engine.planning.drafting_account import DraftingAccount
from draftwire_core.engine.planning.running_mean import RunningMean
from draftwire_core.pool.standing.interference import Interference

_FOR_EACH = 8
"""Nodes requested per node that a step verifies of a sequence: the verified ones, their alternatives and successors."""
_FEWEST = 8
"""Minimum number of nodes requested."""
_LITTLE = 0.04
"""Share of a step's time that merging nodes may always take; it sets another minimum."""
_UNSEEN = 2.0
"""Total cost of messages as a multiple of the part that is timed. Not timed: the transport's own threads, waits of the
engine's thread for the interpreter lock, and planning with the nodes. A rough estimate: one run of
benchmarks/speed/profile_step.py on one processor."""
_START_NODE_SECONDS = 14e-6
"""Initial estimate of the seconds to merge a node. Cautious: an early measurement of all that a live node adds to a
step."""
_LEAST_NODE_SECONDS = 1e-7
"""Lower bound of the seconds to merge a node, against clocks that stand still."""
_START_NODES = 64.0
"""Initial estimate of the nodes that a step verifies of a sequence."""
_START_SHARE = 0.02
"""Initial estimate of what a verdict and its answers cost, as a share of a step, and the value used while a step's time
is unknown. Cautious: a millisecond of a step of 50 ms."""
_AT_ONCE = 0.5
"""Time of features, in steps, that is settled without waiting for a step of the drafter's sequences."""
_MOST_OWED = 4.0
"""Most time of features, in steps, that a drafter owes, and of messages before it has caught up. All later steps profit
from those of a prompt, so they pay for them, but a drafter that never saves anything costs so much once."""
_MOST_CATCHING_UP = 16.0
"""Most time, in steps, that a drafter is charged with for slowing steps down while it catches up with sequences."""
_WEIGHT = 1 / 8
"""Weight of a step in the running means."""


class PausePolicy:
    """One drafter's credit: whether it receives verdicts, and how many nodes it may propose.

    Reading a node costs the verifier some microseconds, and a message far more. Dozens of nodes for each of many
    sequences take a noticeable part of every step. That is a waste if the drafter is useless or late, or if no draft
    pays under the current load.

    A `DraftingAccount` decides whether the drafter is paused. Accepted tokens pay for the verification of its nodes,
    for the processor time of messages to and from it, and for the time by which the drafter slows steps down that it
    shares a machine with. All of these are measured. A paused drafter receives no verdicts, and no sequences. When it
    is tried again, it first receives all sequences and everything that was committed during the pause, then the
    verdicts of each step as before. A trial lasts several steps, because a distant drafter's proposals arrive some
    steps after the verdict they follow.
    """

    def __init__(self) -> None:
        self._account = DraftingAccount()
        self._step_seconds = 0.0
        self._node_tokens = 0.0
        self._sequences = 1
        self.interference = Interference()
        """By how much the drafter slows steps down."""
        self._catching_up = 0.0
        """Time, in steps, by which the drafter slowed steps down while it caught up with sequences, and which it has
        not earned yet. It is settled when the drafter is paused: a trial must not end before it has begun."""
        self._settled = 0.0
        """Time, in steps, of catching up that was charged at the last pause."""
        self._owed = 0.0
        """Time, in steps, of messages while it caught up with sequences, which no step has been charged with yet."""
        self.sharing = 1
        """Number of paused drafters that share the allowance for trials."""
        self._nodes = 0
        self._accepted = 0
        self._drafted = 0
        """Number of sequences in which the step has verified nodes of the drafter."""
        self._nodes_verified = RunningMean(_START_NODES, weight=_WEIGHT, floor=math.inf)
        """Nodes verified per step and sequence, over sequences with any."""
        self._wire_seconds = 0.0
        """Measured seconds of messages that no step has been charged with yet."""
        self._feature_seconds = 0.0
        """As `_wire_seconds`, for what the target's passes did for the drafter."""
        self._wire_share = RunningMean(_START_SHARE, weight=_WEIGHT, floor=_START_SHARE)
        """Cost of messages as a share of a step, over steps in which the drafter is not paused."""
        self._merge_seconds = RunningMean(_START_NODE_SECONDS, weight=_WEIGHT, floor=_START_NODE_SECONDS)
        """Seconds of merging per step, over steps with any nodes to merge."""
        self._merged_nodes = RunningMean(1.0, weight=_WEIGHT, floor=math.inf)
        """Nodes merged per step, over the same steps."""

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

    def charge(self, seconds: float) -> None:
        """Charges the processor time of messages to or from the drafter, useful or not, also during a pause."""
        self._wire_seconds += seconds

    def charge_features(self, seconds: float) -> None:
        """Charges the time that the engine's thread took for the features that the drafter reads.

        Much of it is of prompts, whose passes may follow each other: it is owed, and the steps that follow pay it. What
        exceeds the most that a drafter may owe is paid at once, since it may never catch up with a sequence.
        """
        self._feature_seconds += seconds
        if self._step_seconds and self._feature_seconds > _AT_ONCE * self._step_seconds:
            cost, was_paused = self._feature_seconds / self._step_seconds, self.paused
            owed = min(cost, max(0.0, _MOST_OWED - self._account.due))
            self._account.stepped(0.0, saved=owed - cost, reading=owed, drafted=False)
            self._feature_seconds = 0.0
            self._settle_catching_up(was_paused=was_paused)

    def merged(self, seconds: float, nodes: int) -> None:
        """Charges the processor time in which the engine's thread merged so many nodes."""
        self.charge(seconds)
        if nodes:
            self._merge_seconds.add(seconds)
            self._merged_nodes.add(nodes)

    def fill(self) -> None:
        """Raises the credit to that of an unknown drafter, and resumes."""
        self._catching_up = 0.0
        self._account.fill()

    def try_now(self) -> None:
        """Tries a paused drafter at once instead of waiting until the trial is paid for. What catching up cost was the
        model's before, and is forgotten."""
        if self._account.balance < 0.0:
            self._account.balance = min(0.0, self._account.balance + self._settled)
        self._catching_up = self._settled = 0.0
        self._account.try_now()

    def stepped(self, sequences: int, *, on_demand: bool = False) -> None:
        """Settles a step.

        sequences: number of the drafter's sequences that continue after it; at least 1. on_demand: whether any of them
        always drafts. What a paused drafter does for that is no trial of it, and counts neither for nor against it.
        """
        self._sequences = sequences
        was_paused = self.paused
        if on_demand and was_paused:
            self._account.stepped(1.0 / self.sharing, drafted=False)
            self._nodes = self._accepted = self._drafted = 0
            self._wire_seconds = self._feature_seconds = 0.0
            return
        if self._drafted:
            self._nodes_verified.add(self._nodes / self._drafted)
        verification = self._nodes * self._node_tokens / sequences
        # The account debits the mean cost of a step; the difference to the measured cost is part of the income.
        expected = 0.0 if was_paused else self._wire_share.value
        slowdown = 0.0 if was_paused else self.interference.share
        self._account.stepped(
            (1.0 + verification) / (self.sharing if was_paused else 1),
            saved=self._accepted / sequences - verification + expected - self._wire_cost(expected, paused=was_paused),
            cost=expected + slowdown,
            reading=self._owed,
            drafted=not was_paused,
        )
        self._nodes = self._accepted = self._drafted = 0
        self._owed = 0.0
        if self._account.paid_off:
            self._catching_up = 0.0
        self._settle_catching_up(was_paused=was_paused)

    def _settle_catching_up(self, *, was_paused: bool) -> None:
        """Charges what catching up has cost, if the drafter has just been paused."""
        if self.paused and not was_paused:
            self._account.balance -= self._catching_up
            self._catching_up, self._settled = 0.0, self._catching_up

    def catching_up(self) -> None:
        """Settles a step during which the drafter computes sequences that it does not draft for yet. Messages are owed,
        as features of prompts are: the steps that it drafts for pay them, or a trial would end before it has begun. If
        they exceed the most that it may owe, they are paid at once, since it may never catch up."""
        self._catching_up = min(self._catching_up + self.interference.share, _MOST_CATCHING_UP)
        if self._step_seconds:
            self._owed += _UNSEEN * self._wire_seconds / self._step_seconds
            self._wire_seconds = 0.0
        if self._owed > max(0.0, _MOST_OWED - self._account.due):
            was_paused = self.paused
            self._account.stepped(0.0, saved=-self._owed, drafted=False)
            self._owed = 0.0
            self._settle_catching_up(was_paused=was_paused)

    @property
    def paused(self) -> bool:
        """Whether the drafter is paused."""
        return not self._account.open

    @property
    def overdraft(self) -> float:
        """Cost of a paused drafter beyond its account, in plain steps; 0 for one that is not paused."""
        return max(0.0, -self._account.balance) if self.paused else 0.0

    @property
    def node_seconds(self) -> float:
        """Seconds of processor time to merge a node."""
        return max(self._merge_seconds.value / self._merged_nodes.value, _LEAST_NODE_SECONDS)

    @property
    def max_tree_nodes(self) -> int:
        """Maximum live nodes of a tree; the opening may set a lower limit."""
        cheap = _LITTLE * self._step_seconds / (self.node_seconds * self._sequences)
        return max(_FEWEST, math.ceil(_FOR_EACH * self._nodes_verified.value), int(cheap))

    def _wire_cost(self, expected: float, *, paused: bool) -> float:
        """Returns the cost of messages since the last step, as a share of a step. While a step's time is unknown it is
        the expected cost, and the measured time is charged later."""
        if not self._step_seconds:
            return expected
        share = (_UNSEEN * self._wire_seconds + self._feature_seconds) / self._step_seconds
        self._wire_seconds = self._feature_seconds = 0.0
        if not paused:
            self._wire_share.add(share)
        return share
