"""What probes may cost, and that what brings more than it costs is not stopped."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from speculative_engine.probe_budget import _ALLOWANCE, _TRIAL, ProbeBudget


def run(budget: ProbeBudget, steps: int, brought: float, cost: float) -> int:
    """Steps of so many that had probes."""
    probed = 0
    for _ in range(steps):
        probed += budget.probing
        budget.stepped(brought, cost, probed=budget.probing)
    return probed


def test_what_brings_nothing_is_tried_and_then_rarely() -> None:
    for cost in (0.05, 0.3, 1.0):
        budget = ProbeBudget()
        first = run(budget, 100, 0.0, cost)
        assert first >= _TRIAL
        assert cost * (first + run(budget, 20_000, 0.0, cost)) < _TRIAL + 0.011 * 20_100
        assert run(budget, 20_000, 0.0, cost) >= _TRIAL, "it is tried again"


def test_what_is_worth_it_goes_on() -> None:
    budget, rng = ProbeBudget(), random.Random(0)
    for _ in range(5000):
        assert budget.probing
        budget.stepped(float(rng.random() < 0.3), 0.2, probed=True)


def test_rows_that_cost_nothing() -> None:
    assert run(ProbeBudget(), 20_000, 0.0, 0.0) == 20_000


def test_what_has_become_worth_it_is_found_out() -> None:
    budget = ProbeBudget()
    run(budget, 1000, 0.0, 0.2)
    assert not budget.probing
    run(budget, 1000, 0.5, 0.2)
    assert run(budget, 1000, 0.5, 0.2) == 1000


def test_what_was_worth_it_for_long_is_stopped_soon() -> None:
    budget = ProbeBudget()
    run(budget, 10_000, 0.5, 0.2)
    assert run(budget, 1000, 0.0, 0.2) <= 4 * _TRIAL


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 1), st.booleans()), max_size=400))
@settings(max_examples=100, deadline=None)
def test_it_never_spends_more_than_it_had(steps: list[tuple[float, float, bool]]) -> None:
    budget, balance = ProbeBudget(), float(_TRIAL)
    for brought, cost, room in steps:
        probed = budget.probing and room
        assert balance >= -1e-9 or not probed
        balance += _ALLOWANCE + (brought - cost if probed else 0.0)
        budget.stepped(brought, cost, probed=probed)
