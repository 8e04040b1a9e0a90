"""A measured pair of services as pipeline_sim.py --validate reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draftwire import Calibration, StepCost

_RANKS = 3


def simulation_case(
    name: str,
    target: Sequence[StepCost],
    draft: Sequence[StepCost],
    calibration: Calibration,
    round_trip_ms: float,
    measured: Mapping[str, float],
    **sizes: int,
) -> dict[str, object]:
    """A case of pipeline_sim's file; it says what its fields mean.

    target and draft: what the services say of their steps; calibration: what the verifier has learned of the drafter;
    round_trip_ms: of the line alone; measured: tokens per second by policy; sizes: tokens, requests, max_tree_nodes.
    """
    classes = [[each for each in calibration.classes if each.rank == rank] for rank in range(_RANKS)]
    weights = [sum(each.observations for each in rank) for rank in classes]
    by_rank = [
        sum(each.acceptance * each.observations for each in rank) / weight
        for rank, weight in zip(classes, weights, strict=True)
    ]
    first = by_rank[0]
    others = sum(by_rank[1:])  # the classes' priors may leave them more than there is
    by_rank = [first, *(chance * min(1.0, (1 - first) / others) for chance in by_rank[1:])]
    variance = sum((each.acceptance - first) ** 2 * each.observations for each in classes[0]) / weights[0]
    # A verdict that leaves an empty tree meets the drafter in the middle of a step, on average, and waits for the next.
    beyond_drafting = 1e3 * (calibration.response_seconds - 1.5 * draft[0].seconds)
    return {
        "name": name,
        "target_ms": _curve(target),
        "draft_ms": _curve(draft),
        "by_rank": by_rank,
        "concentration": round(first * (1 - first) / variance - 1, 2),  # of the Beta distribution with this variance
        "round_trip_ms": round(max(round_trip_ms, beyond_drafting), 2),
        "measured": {policy: round(rate, 2) for policy, rate in measured.items()},
        **sizes,
    }


def _curve(costs: Sequence[StepCost]) -> dict[str, float]:
    return {str(cost.rows): round(1e3 * cost.seconds, 3) for cost in costs}
