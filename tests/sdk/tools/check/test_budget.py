"""The division of a check's time among its parts."""

from draftwire_tools.check.case import Budget


def test_what_a_part_leaves_is_divided_among_the_others() -> None:
    now = [0.0]
    budget = Budget(100.0, 4, clock=lambda: now[0])
    assert budget.done == 0.0
    over = budget.begin()
    assert budget.done == 0.25
    now[0] = 24.0
    assert not over()
    now[0] = 25.0
    assert over()
    now[0] = 10.0
    over = budget.begin(2)  # 60 of the remaining 90 seconds
    now[0] = 69.0
    assert not over()
    now[0] = 70.0
    assert over() and budget.remaining == 30.0
    now[0] = 200.0
    assert budget.remaining == 0.0
    assert budget.begin()() and budget.begin()()
    assert budget.done == 1.0
