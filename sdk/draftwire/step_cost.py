"""What a step costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from draftwire.v1 import step_cost_pb2


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
