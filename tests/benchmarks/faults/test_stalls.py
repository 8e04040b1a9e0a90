"""The fault that a stall is attributed to."""

from typing import NamedTuple

from benchmarks.faults.stalls import AFTERMATH_SECONDS, Blame, gaps_by_kind, percentile


class Gap(NamedTuple):
    start: float
    end: float


def test_a_gap_belongs_to_the_fault_that_was_under_way() -> None:
    faults = [Blame(10.0, 12.0, "stop drafter", False), Blame(30.0, 30.0, "cut drafter", False)]
    gaps = [Gap(9.0, 9.5), Gap(11.0, 11.5), Gap(11.5, 13.5), Gap(29.9, 30.1), Gap(20.0, 20.25)]
    assert gaps_by_kind(gaps, faults) == {
        "": [Gap(9.0, 9.5), Gap(20.0, 20.25)],
        "stop drafter": [Gap(11.0, 11.5), Gap(11.5, 13.5)],
        "cut drafter": [Gap(29.9, 30.1)],
    }


def test_a_gap_just_after_a_fault_is_its_aftermath() -> None:
    faults = [Blame(10.0, 12.0, "swap", False)]
    soon, late = 12.0 + AFTERMATH_SECONDS, 12.5 + AFTERMATH_SECONDS
    gaps = [Gap(soon, soon + 1), Gap(late, late + 1)]
    assert gaps_by_kind(gaps, faults) == {"swap": gaps[:1], "": gaps[1:]}


def test_a_verifier_fault_takes_the_blame_from_drafter_faults_and_the_later_one_of_these_from_the_earlier() -> None:
    drafters = [Blame(0.0, 9.0, "stop drafter", False), Blame(2.0, 9.0, "delay drafter", False)]
    assert gaps_by_kind([Gap(3.0, 4.0)], drafters) == {"delay drafter": [Gap(3.0, 4.0)]}
    verifier = Blame(1.0, 9.0, "kill verifier", True)
    assert gaps_by_kind([Gap(3.0, 4.0)], [*drafters, verifier]) == {"kill verifier": [Gap(3.0, 4.0)]}


def test_a_long_gap_is_found_though_shorter_ones_end_before_it() -> None:
    gaps = [Gap(number / 10, (number + 1) / 10) for number in range(200)]
    long_one = Gap(5.0, 15.0)
    by_kind = gaps_by_kind([*gaps, long_one], [Blame(5.5, 5.6, "cut drafter", False)])
    assert long_one in by_kind["cut drafter"]
    assert long_one not in by_kind[""]
    assert sum(map(len, by_kind.values())) == 201


def test_percentiles() -> None:
    assert percentile([], 0.99) == 0.0
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(list(range(1000)), 0.99) == 990
