"""Whether another round of drafting, which delays the step, pays."""

import pytest

from draftwire_core.engine.planning.round_worth import RoundWorth
from draftwire_core.engine.planning.step_cost import StepCost


def worth(drafting: float, slope: float = 0.0) -> RoundWorth:
    """Steps take 1 s plus `slope` for each row after the first; rounds take `drafting`."""
    return RoundWorth(StepCost([1, 65], [1.0, 1.0 + 64 * slope]), StepCost([1], [drafting]))


@pytest.mark.parametrize(("chance", "drafting", "pays"), [(0.5, 0.4, True), (0.5, 0.6, False), (0.1, 0.05, True)])
def test_a_round_pays_that_brings_more_than_a_step_in_its_time(chance: float, drafting: float, pays: bool) -> None:
    assert worth(drafting).pays(1, [], [chance], 1) == pays


def test_what_it_takes_to_verify_counts() -> None:
    assert worth(0.3).pays(1, [], [0.5], 1)
    assert not worth(0.3, slope=0.3).pays(1, [], [0.5], 1)


def test_nodes_that_are_not_worth_verifying_do_not() -> None:
    assert worth(0.3, slope=0.1).pays(1, [0.01] * 20, [0.5], 1)


def test_all_sequences_are_held_up_for_one() -> None:
    assert worth(0.3).pays(1, [], [0.5], 1)
    assert not worth(0.3).pays(4, [], [0.5], 1)
    assert worth(0.3).pays(4, [], [0.5] * 4, 4)


def test_it_stops_where_the_rate_is_highest() -> None:
    """A chain of nodes, each right with probability 0.8."""
    rounds, chance, seconds = worth(0.2), 0.8, 0.2
    depth = 0
    while rounds.pays(1, [chance**k for k in range(1, depth + 1)], [chance ** (depth + 1)], 1, depth * seconds):
        depth += 1
    rates = [sum(chance**k for k in range(nodes + 1)) / (1 + nodes * seconds) for nodes in range(20)]
    assert depth == rates.index(max(rates)) > 1
