"""Whether one drafter's probes are worth their rows, by what they have brought."""

from __future__ import annotations

_ALLOWANCE = 0.01
"""Share of the time that may go to probes that bring nothing."""
_TRIAL = 32
"""Steps with probes in a row for which there has to be credit: Jacobi trajectories take some passes to become good, and
n-grams some tokens to come up again."""

_WEIGHT = 0.1
"""Weight of a new measurement in the running average."""


class ProbeBudget:
    """An account in steps: in the time that a step would have taken without the drafter's nodes and probes.

    What those brought is paid in, what they cost is taken out. Probing stops when nothing is left. Then only the
    allowance is paid in, until it is enough for another trial. So a drafter that is worth its rows probes always, and
    any other costs no more than the allowance and its first trial, which has the time of 32 steps.
    """

    def __init__(self) -> None:
        self.probing = True
        """Whether the next step has probes."""
        self._cost = 1.0
        """Of a step's probes, lately."""
        self._credit = _TRIAL * self._cost

    def stepped(self, brought: float, cost: float, probed: bool) -> None:
        """A step is over. brought, cost: in steps. probed: whether it had probes."""
        if probed:
            self._cost += _WEIGHT * (cost - self._cost)
            self._credit += brought - cost
        self._credit = min(self._credit + _ALLOWANCE, 2 * _TRIAL * self._cost)
        if self.probing:
            self.probing = self._credit >= 0
        else:
            self.probing = self._credit >= _TRIAL * self._cost
