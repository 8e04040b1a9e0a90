"""Statistics over the runs of several arrangements."""

import pytest

from benchmarks.harness.arrangements import Measured
from draftwire import SpeculationStats
from draftwire_tools.turns import Arrival, Batch, Request


def batch(seconds: float, token_ids: tuple[int, ...] = (1, 2, 3, 4), hits: int = 0) -> Batch:
    """Returns one request with a token at once and the others after `seconds`, in as many steps as tokens."""
    arrivals = (Arrival(0.0, 1), Arrival(seconds, len(token_ids) - 1))
    return Batch((Request(arrivals, token_ids, SpeculationStats(2, len(token_ids), 6, 3, 0, [], hits)),))


@pytest.fixture
def measured() -> Measured:
    return Measured(
        {"plain": [[batch(1.0)], [batch(2.0)]], "fast": [[batch(0.5, hits=1)], [batch(0.5)]]},
        {"plain": "plain", "fast": "plain"},
    )


def test_ratios_are_taken_within_a_run(measured: Measured) -> None:
    assert measured.rate("plain").median == pytest.approx(2.25)
    ratio = measured.ratio("fast", "plain")
    assert (ratio.low, ratio.high, ratio.runs) == (pytest.approx(2.0), pytest.approx(4.0), 2)
    ratio = measured.ratio("fast", "plain", "fast")
    assert (ratio.low, ratio.high) == (pytest.approx(6 / 4.5), pytest.approx(6 / 3.75))
    assert measured.step_ms("plain").low == pytest.approx(1e3 / 3)


def test_how_an_arrangement_speculates(measured: Measured) -> None:
    assert measured.acceptance_length("fast") == 2.0
    assert measured.nodes_per_step("fast") == 3.0
    assert measured.acceptance_rate("fast") == 0.5
    assert measured.hit_share("fast") == 0.25


def test_an_output_that_differs_is_found(measured: Measured) -> None:
    assert measured.differing() == []
    measured.batches["fast"][1] = [batch(0.5, (1, 2, 3, 5))]
    assert measured.differing() == ["fast: 1 of 2"]
    assert measured.figures()["outputs_identical"] is False


def test_an_output_that_differs_from_the_references_own_first_one_is_found(measured: Measured) -> None:
    measured.batches["plain"][1] = [batch(0.5, (1, 2, 3))]
    assert measured.differing() == ["plain: 1 of 2"]
