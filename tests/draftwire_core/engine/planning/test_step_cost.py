"""The cost curve: interpolation, monotonicity, and adaptation to measured steps."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_core.engine.planning.step_cost import StepCost


def test_interpolates_between_points_and_goes_on_beyond_them() -> None:
    cost = StepCost([1, 5, 9], [0.010, 0.012, 0.020])
    assert cost.seconds(1) == pytest.approx(0.010)
    assert cost.seconds(3) == pytest.approx(0.011)
    assert cost.seconds(9) == pytest.approx(0.020)
    assert cost.seconds(13) == pytest.approx(0.028)


def test_its_points_follow_what_steps_take() -> None:
    cost = StepCost([1, 8], [0.010, 0.020])
    assert cost.points() == [(1, 0.010), (8, 0.020)]
    cost.observe(1, 0.020)
    assert cost.points() == [(1, cost.seconds(1)), (8, cost.seconds(8))] != [(1, 0.010), (8, 0.020)]


def test_one_point_is_a_constant() -> None:
    assert StepCost([4], [0.5]).seconds(100) == 0.5


@pytest.mark.parametrize(
    ("rows", "seconds"), [([], []), ([1, 2], [0.1]), ([2, 1], [0.1, 0.2]), ([1, 1], [0.1, 0.2]), ([1, 2], [0.1, 0.0])]
)
def test_curves_that_are_none(rows: list[int], seconds: list[float]) -> None:
    with pytest.raises(ValueError, match="ascending row counts"):
        StepCost(rows, seconds)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.floats(1e-4, 1.0)), min_size=1, max_size=8, unique_by=lambda p: p[0]),
    st.lists(st.tuples(st.integers(1, 64), st.floats(1e-5, 10.0)), max_size=20),
)
@settings(max_examples=100, deadline=None)
def test_more_rows_never_cost_less(points: list[tuple[int, float]], steps: list[tuple[int, float]]) -> None:
    points.sort()
    cost = StepCost([rows for rows, _ in points], [seconds for _, seconds in points])
    for rows, seconds in steps:
        cost.observe(rows, seconds)
    times = [cost.seconds(rows) for rows in range(1, 310)]
    assert all(time > 0 for time in times)
    assert all(later >= earlier * (1 - 1e-12) for earlier, later in itertools.pairwise(times))


def test_follows_a_machine_that_became_slower_and_shrugs_off_one_hiccup() -> None:
    cost = StepCost([1, 16], [0.010, 0.020])
    cost.observe(1, 10.0)
    assert cost.seconds(1) < 0.014
    for _ in range(60):
        cost.observe(16, 0.040)
    assert cost.seconds(16) == pytest.approx(0.040, rel=0.02)
    assert cost.seconds(1) == pytest.approx(0.020, rel=0.02)


@given(
    st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6),
    st.floats(0.1, 10.0),
    st.integers(1, 9),
    st.integers(0, 60),
    st.lists(st.floats(0.001, 1.0), min_size=60, max_size=60),
)
def test_beyond_the_worthwhile_rows_no_nodes_raise_the_rate(
    seconds: list[float], noded: float, sequences: int, most: int, chances: list[float]
) -> None:
    cost = StepCost([1, 8, 9, 16, 17, 64][: len(seconds)], seconds)
    for _ in range(10):
        cost.observe(sequences + 1, noded, sequences=sequences)
    room = cost.worthwhile_rows(sequences, most, sequences, float(sequences), 0.0)
    assert 0 <= room <= most
    rates, tokens = [], float(sequences)
    for count, chance in zip(range(most + 1), [0.0, *sorted(chances, reverse=True)], strict=False):
        tokens += chance
        rates.append(tokens / cost.seconds(sequences + count, sequences))
    assert max(rates) <= max(rates[: room + 1]) * (1 + 1e-9)


def test_prompts_hold_up_others_only_so_long() -> None:
    cost = StepCost([1, 101], [1.0, 11.0])
    assert cost.prompt_rows(1, 200) == 20
    assert cost.seconds(1 + 20) == pytest.approx(3 * cost.seconds(1))
    assert cost.prompt_rows(1, 7) == 7
    assert StepCost([1, 64], [1.0, 1.0]).prompt_rows(4, 256) == 256, "rows that cost nothing"


def test_a_prompt_gets_on_however_dear_its_rows_are() -> None:
    dear = StepCost([1, 2], [1.0, 100.0])
    assert dear.prompt_rows(1, 255) == 16
    assert dear.prompt_rows(1, 5) == 5
    assert dear.prompt_rows(1, 0) == 0


def test_prompts_have_all_of_a_step_for_which_nobody_waits() -> None:
    assert StepCost([1, 2], [1.0, 100.0]).prompt_rows(0, 256) == 256


def test_a_busy_moment_does_not_bend_the_curve() -> None:
    cost = StepCost([1, 2, 4, 8], [0.010, 0.030, 0.011, 0.012])
    assert [cost.seconds(rows) for rows in (1, 2, 4, 8)] == pytest.approx([0.010, 0.011, 0.011, 0.012])


def test_rows_cost_more_after_a_longer_context() -> None:
    cost = StepCost([1, 11], [0.010, 0.020], seconds_per_seen=1e-6, context=100)
    assert cost.seconds(11) == pytest.approx(0.020 + 11 * 100e-6)
    for _ in range(200):
        cost.observe(4, 0.013 + 4 * 1000e-6, seen=4 * 1000)
    assert cost.seconds(11) == pytest.approx(0.020 + 11 * 1000e-6), "it is the contexts that grew, not the machine"
    assert cost.points() == [(1, cost.seconds(1)), (11, cost.seconds(11))]


def test_sequences_read_contexts_of_their_own() -> None:
    cost = StepCost([1, 100], [0.010, 0.109], seconds_per_seen=1e-6, context=100, seconds_per_read=5e-6)
    assert cost.seconds(16) == pytest.approx(0.025 + 16 * 100e-6)
    assert cost.seconds(16, 16) == pytest.approx(0.025 + 16 * 100e-6 + 15 * 500e-6)
    assert cost.seconds(32, 16) - cost.seconds(16, 16) == pytest.approx(cost.seconds(32) - cost.seconds(16))


def test_a_step_of_many_sequences_says_nothing_new_if_it_took_what_was_expected() -> None:
    cost = StepCost([1, 100], [0.010, 0.109], seconds_per_seen=1e-6, context=100, seconds_per_read=5e-6)
    cost.observe(16, cost.seconds(16, 16), seen=1600, sequences=16)
    assert cost.seconds(1) == pytest.approx(0.0101)


def test_what_a_node_takes_is_told_in_tokens_that_are_generated_meanwhile_without() -> None:
    cost = StepCost([1, 16], [0.010, 0.025])
    assert cost.node_tokens(rows=5, nodes=4, sequences=1) == pytest.approx(0.1)
    assert cost.node_tokens(rows=6, nodes=4, sequences=2) == pytest.approx(2 * 0.001 / 0.011)
    assert cost.node_tokens(rows=1, nodes=0, sequences=1) == 0


def test_plain_steps_have_a_time_of_their_own() -> None:
    cost = StepCost([1, 64], [1.0, 1.0])
    for _ in range(40):
        cost.observe(2, 1.0, sequences=2)
        cost.observe(8, 1.5, sequences=2)
    assert cost.seconds(2, 2) == pytest.approx(1.0, rel=0.05)
    assert cost.seconds(8, 2) == pytest.approx(1.5, rel=0.05)
    for _ in range(100):
        cost.observe(8, 3.0, sequences=2)
    assert cost.seconds(2, 2) == pytest.approx(2.0, rel=0.1), "the machine is slower, for plain steps, too"
    for _ in range(1000):
        cost.observe(2, 1.0, sequences=2)
    assert cost.seconds(2, 2) == pytest.approx(1.0, rel=0.1)
    assert cost.seconds(8, 2) < 1.3, "and fast again; what comparisons showed is forgotten by and by"


def test_a_comparison_with_a_step_that_was_held_up_says_little() -> None:
    cost = StepCost([1, 64], [1.0, 1.0])
    cost.observe(1, 1.0)
    cost.observe(8, 100.0)
    assert cost.seconds(1) > 0.8
    cost = StepCost([1, 64], [1.0, 1.0])
    cost.observe(8, 1.0)
    cost.observe(1, 100.0)
    assert cost.seconds(1) == cost.seconds(2), "more rows never cost less"


def test_steps_that_take_no_time_are_not_compared() -> None:
    """Where a clock stands still."""
    cost = StepCost([1, 64], [1.0, 1.0])
    for rows in (1, 8, 1):
        cost.observe(rows, 0.0)
    assert cost.seconds(1) > 0


def test_a_plain_step_is_due_after_many_with_nodes() -> None:
    cost = StepCost([1, 64], [1.0, 1.0])
    for _ in range(48):
        assert not cost.plain_is_due
        cost.observe(3, 1.0)
    assert cost.plain_is_due
    cost.observe(1, 1.0)
    assert not cost.plain_is_due
