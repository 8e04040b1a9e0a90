"""Costs of a service's steps, and their time by phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from draftwire._types.from_message import From


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds that the thread running a model spent in each phase, while it had sequences to work on.

    Values only grow, so the difference of two readings is the time of the steps between them.
    """

    steps: int
    """Forward passes, prompts included."""
    plan: float
    """Choosing nodes to verify or to draft, and deciding whether to wait."""
    layout: float
    """Laying out the packed batch."""
    forward: float
    """The model's forward pass; only its launch if a device computes asynchronously."""
    sample: float
    """Drawing tokens, or candidates for nodes, from the logits."""
    walk: float
    """Walking the target's path; in a drafter: following verdicts, rolling back and adding nodes."""
    wire: float
    """Reading messages that arrived, and handing over messages to send."""
    wait: float
    """Waiting for proposals in a verifier, for verdicts in a drafter."""
    event_loop: float
    """CPU time of the event loop, which runs next to the thread, since the process began."""
    draft: float = 0.0
    """Drafting by the drafters that run in a verifier."""
    rollback: float = 0.0
    """In a verifier: freeing the KV slots of rejected draft tokens, and re-rooting the token tree."""
    cpu_around_forward: float = 0.0
    """CPU time of the thread outside forward. Unlike the other values, which are wall-clock time, it excludes waiting
    for a core or for the event loop."""

    @property
    def busy(self) -> float:
        """Seconds of the thread in all phases except waiting."""
        model = self.plan + self.layout + self.forward + self.sample
        return model + self.walk + self.rollback + self.draft + self.wire


@dataclass(frozen=True, slots=True)
class StepCost:
    """One point of c(n), the time of a step by its number of rows; linear between two points."""

    rows: int
    """Tokens that pass through the model in the step."""
    seconds: Annotated[float, From("time")]
    """Expected time of the step."""
