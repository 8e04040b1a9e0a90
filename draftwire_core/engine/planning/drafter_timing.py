"""The timing of a drafter: when its next proposal is to be expected. All times in seconds."""

from __future__ import annotations

from collections import deque

from draftwire_core.engine.planning.running_mean import RunningMean
from draftwire_core.engine.tree.proposal import Proposal

_WEIGHT = 0.2
"""Weight of a new measurement in the running means: a drafter's pace changes with its other verifiers' load, within a
few proposals."""


_LONGEST_ANSWER = 0.1
"""Seconds for which a step of a sequence that always drafts waits for the answer to the last verdict."""
_MOST_UNANSWERED = 4
"""Unanswered verdicts from which a drafter counts as silent and is not waited for."""


class DrafterTiming:
    """Running means of one drafter's times, as the verifier sees them.

    A drafter that was briefly held up, or had nothing to draft, says little about its pace.
    """

    def __init__(self, response: float = 0.01, interval: float = 0.005):
        """response, interval: in seconds, until they are measured."""
        self._response = RunningMean(response, weight=_WEIGHT)
        self._interval = RunningMean(interval, weight=_WEIGHT)
        self._parents = RunningMean(1.0, weight=_WEIGHT)
        self._children = RunningMean(1.0, weight=_WEIGHT)
        self.paused = False
        """Whether the drafter gets no verdicts for now, so that it owes no answers."""

    @property
    def response(self) -> float:
        """Mean seconds from a verdict that left an empty tree to the first proposal that builds on it."""
        return self._response.value

    @property
    def interval(self) -> float:
        """Mean seconds from one proposal for a sequence to the next."""
        return self._interval.value

    @property
    def parents(self) -> float:
        """Mean number of nodes that a proposal adds children to."""
        return self._parents.value

    @property
    def children(self) -> float:
        """Mean number of children that a proposal adds to each of these."""
        return self._children.value

    def count_nodes(self, parents: int, nodes: int) -> None:
        """Adds the sizes of a proposal. parents: number of nodes that get children. nodes: number of these children."""
        self._parents.add(parents)
        self._children.add(nodes / parents)

    def count_response(self, seconds: float) -> None:
        """Adds a measured response."""
        self._response.add(seconds)

    def count_interval(self, seconds: float) -> None:
        """Adds a measured interval."""
        self._interval.add(seconds)


class ProposalClock:
    """Times one drafter's proposals for one sequence, to update the drafter's averages and to predict from them.

    Measurements use the arrival time of a proposal, whatever the verifier was doing, and the verdict it answers,
    whatever has been committed since. A drafter is thus measured even while the verifier does not wait for it, and one
    that has become faster is noticed.
    """

    def __init__(self, timing: DrafterTiming, *, always: bool = False):
        """timing: the drafter's averages over all sequences. always: whether the drafter gets this sequence's verdicts
        even while it is paused."""
        self._timing = timing
        self._always = always
        # Committed length and time of each unanswered verdict that left an empty tree, oldest first.
        self._asked: deque[tuple[int, float]] = deque()
        self._last_arrival: float | None = None
        self._gathered = False
        """Whether the nodes of the last proposal were gathered, see `Proposal`."""
        self._measured_from = 0
        """Committed length above which verdicts were left to it alone: until its first proposal it reads the prompt, or
        what was committed while it was paused, and that time is no response."""
        self._untold = False
        """Whether there were verdicts while the drafter was paused."""
        self._finished = 0
        """Committed length of the last proposal before a verdict, if that is the newest one; else 0."""

    @property
    def _paused(self) -> bool:
        """Whether the drafter gets no verdicts of this sequence for now."""
        return self._timing.paused and not self._always

    def restart(self) -> None:
        """Clears all requests and arrivals: the next proposal counts as the first."""
        self._asked.clear()
        self._last_arrival = None
        self._untold = False

    def asked(self, committed_length: int, now: float) -> None:
        """A verdict left an empty tree."""
        if self._paused:
            self._untold = True
            return
        if self._untold:
            self.restart()
        self._asked.append((committed_length, now))

    def arrived(self, proposal: Proposal, at: float) -> None:
        """Records the arrival of a proposal, which has at least one node."""
        committed_length = proposal.committed_length
        self._finished = committed_length if proposal.last else 0
        latest = self._asked[-1][0] if self._asked else 0
        answered: float | None = None
        while self._asked and self._asked[0][0] <= committed_length:
            length, asked = self._asked.popleft()
            answered = asked if length == committed_length else None
        if not proposal.gathered:
            self._timing.count_nodes(len({*proposal.parent_ids}), len(proposal.parent_ids))
        if self._last_arrival is None:
            self._measured_from = latest
        elif answered is None:
            if not proposal.gathered and not self._gathered:
                self._timing.count_interval(at - self._last_arrival)
        elif committed_length > self._measured_from and not proposal.gathered:
            self._timing.count_response(at - answered)
        self._last_arrival, self._gathered = at, proposal.gathered

    @property
    def expansion(self) -> tuple[int, int]:
        """The expected size of the next proposal: number of nodes that get children, and number of children of each;
        both at least 1."""
        return max(1, round(self._timing.parents)), max(1, round(self._timing.children))

    def finished(self, committed_length: int) -> bool:
        """Whether the drafter has sent its last proposal for this committed length."""
        return self._finished == committed_length

    def expected_wait(self, now: float) -> float | None:
        """Returns the seconds until the next useful proposal, or None if none is known to be under way.

        An overdue proposal is expected to take as long again as it is already late. A drafter that leaves verdicts
        unanswered counts as late since the first of them.
        """
        if self._last_arrival is None or self._paused:
            return None
        if not self._asked:
            due = late_since = self._last_arrival + self._timing.interval
        else:
            due, late_since = (asked + self._timing.response for _, asked in (self._asked[-1], self._asked[0]))
        if now < late_since:
            return due - now
        return max(due - now, (now - late_since) + 0.25 * self._timing.interval)

    def answer_wait(self, now: float) -> float:
        """Returns the seconds for which the answer to the last verdict is worth waiting for in any case; 0 if none is
        due, it is late, or the drafter has left several verdicts unanswered."""
        if not self._asked or len(self._asked) > _MOST_UNANSWERED:
            return 0.0
        return max(0.0, self._asked[-1][1] + _LONGEST_ANSWER - now)
