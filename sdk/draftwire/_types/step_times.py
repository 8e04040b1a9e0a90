"""Costs of a service's steps, and their time by phase."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from draftwire.v1 import step_cost_pb2, step_times_pb2


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


def read_step_times(message: step_times_pb2.StepTimes) -> StepTimes:
    """Returns ``StepTimes`` from their message."""
    return StepTimes(
        steps=message.steps,
        plan=_seconds(message.plan),
        layout=_seconds(message.layout),
        forward=_seconds(message.forward),
        sample=_seconds(message.sample),
        walk=_seconds(message.walk),
        wire=_seconds(message.wire),
        wait=_seconds(message.wait),
        event_loop=_seconds(message.event_loop),
        draft=_seconds(message.draft),
        rollback=_seconds(message.rollback),
        cpu_around_forward=_seconds(message.cpu_around_forward),
    )


def _seconds(duration: Duration) -> float:
    return duration.ToNanoseconds() / 1e9


@dataclass(frozen=True, slots=True)
class StepCost:
    """One point of c(n), the time of a step by its number of rows; linear between two points."""

    rows: int
    """Tokens that pass through the model in the step."""
    seconds: float
    """Expected time of the step."""


def read_step_costs(messages: Iterable[step_cost_pb2.StepCost]) -> list[StepCost]:
    """Returns the points of a curve from their messages."""
    return [StepCost(message.rows, message.time.ToNanoseconds() / 1e9) for message in messages]
