"""`python -m tests.harness.steady_verifier`: a verifier whose planner uses given step costs.

If extra rows are expensive on a processor, or the machine was busy at the start, a planner with measured costs may
rightly verify nothing. Tests of drafting must not depend on that.
"""

from __future__ import annotations

import sys

from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness.stand_ins.fixed_cost import FixedCost
from verifier_service import process, target


def _given(model: PackedModel, most_rows: int = 0) -> FixedCost:
    return FixedCost([1, 51], [0.02, 0.04])  # an extra row adds 2 % of a step, so drafting pays


def main() -> int:
    """Runs the verifier; returns its exit status."""
    target.measure_step_cost = _given  # type: ignore[attr-defined]
    return process.main()


if __name__ == "__main__":
    sys.exit(main())
