"""The cost of a service's steps, and how their time is spent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from draftwire.v1 import step_cost_pb2, step_times_pb2


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of the thread that runs a model, by what it did while it had sequences to work on.

    They only grow, so the difference of two readings tells what the steps between them took.
    """

    steps: int
    """Forward passes, prompts included."""
    plan: float
    """Choosing which nodes to verify or to draft, and whether to wait."""
    layout: float
    """Laying out the packed batch."""
    forward: float
    """The model's forward pass; where a device computes beside the thread, only starting it."""
    sample: float
    """Drawing tokens, or candidates for nodes, from the logits."""
    walk: float
    """Walking the target's path; at a drafter following verdicts, rolling back and adding nodes."""
    wire: float
    """Taking in what came over the wire, and handing on what goes there."""
    wait: float
    """Waiting: at a verifier for proposals, at a drafter for verdicts."""
    event_loop: float
    """CPU time of the event loop, which runs beside the thread, since the process began."""
    draft: float = 0.0
    """At a verifier: drafting by the drafters that run in it."""
    rollback: float = 0.0
    """At a verifier: giving back the KV slots of draft tokens that were not accepted, and re-rooting the token tree."""
    cpu_around_forward: float = 0.0
    """CPU time of the thread in all of these but forward; what it waits for a core or for the event loop is no part of
    it, as it is of those that go by the clock on the wall."""

    @property
    def busy(self) -> float:
        """All of the thread's seconds but those of waiting."""
        model = self.plan + self.layout + self.forward + self.sample
        return model + self.walk + self.rollback + self.draft + self.wire


def read_step_times(message: step_times_pb2.StepTimes) -> StepTimes:
    """Return ``StepTimes`` from their message."""
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
    """One point of c(n), the time of a step by its number of rows; between two points it is a straight line."""

    rows: int
    """Tokens that go through the model in the step."""
    seconds: float
    """Expected time of the step."""


def read_step_costs(messages: Iterable[step_cost_pb2.StepCost]) -> list[StepCost]:
    """Return the points of a curve from their messages."""
    return [StepCost(message.rows, message.time.ToNanoseconds() / 1e9) for message in messages]
