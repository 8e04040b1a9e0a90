"""`python -m tests.harness.steady_verifier`: a verifier whose planner uses given step costs.

If extra rows are expensive on a processor, or the machine was busy at the start, a planner with measured costs may
rightly verify nothing. Tests of drafting must not depend on that.
"""

from __future__ import annotations

import sys

from speculative_engine.model.packed_model import PackedModel
from speculative_engine.planning.step_cost import StepCost
from verifier_service import target
from verifier_service.process import main


class GivenCost(StepCost):
    """Step costs with which drafting pays: an extra row adds 2 % of a step."""

    def __init__(self) -> None:
        super().__init__([1, 51], [0.02, 0.04])

    def observe(self, rows: int, seconds: float, seen: int = 0, sequences: int = 1) -> None:
        """Learns nothing: the machine's load must not decide what a test covers."""


def _given(model: PackedModel) -> StepCost:
    return GivenCost()


if __name__ == "__main__":
    target.measure_step_cost = _given  # type: ignore[attr-defined]
    sys.exit(main())
