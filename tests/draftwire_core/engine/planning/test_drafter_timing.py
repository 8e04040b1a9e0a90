"""The expected time of the next proposal."""

import pytest

from draftwire_core.engine.planning.drafter_timing import DrafterTiming, ProposalClock
from draftwire_core.engine.tree.proposal import Proposal
from tests.harness.engine.counted_work import instructions


def proposal(committed_length: int) -> Proposal:
    """Returns a proposal of one node."""
    return Proposal(committed_length, 1, [0], [0])


def clock_of(timing: DrafterTiming, at: float = 0.0) -> ProposalClock:
    """Returns a clock whose drafter has read the prompt: it proposed for a length of 1."""
    clock = ProposalClock(timing)
    clock.arrived(proposal(1), at)
    return clock


def test_nothing_is_expected_of_a_drafter_that_has_not_caught_up() -> None:
    timing = DrafterTiming(response=0.01)
    clock = ProposalClock(timing)
    clock.asked(5, 0.0)
    assert clock.expected_wait(1.0) is None
    clock.arrived(proposal(5), 2.0)
    assert timing.response == 0.01


def test_learns_the_response() -> None:
    timing = DrafterTiming(response=0.01)
    clock = clock_of(timing)
    for length in range(2, 62):
        now = length * 0.1
        clock.asked(length, now)
        clock.arrived(proposal(length), now + 0.04)
    assert timing.response == pytest.approx(0.04, rel=0.01)
    clock.asked(70, 9.0)
    assert clock.expected_wait(9.01) == pytest.approx(0.03, rel=0.02)


def test_learns_the_response_while_nobody_waits_for_it() -> None:
    """The verifier steps on, so every answer is outdated when it is read."""
    timing = DrafterTiming(response=0.5)
    clock = clock_of(timing)
    for length in range(2, 62):
        now = length * 0.1
        clock.asked(length, now)
        if length > 2:
            clock.arrived(proposal(length - 1), now - 0.1 + 0.03)
    assert timing.response == pytest.approx(0.03, rel=0.02)


def test_proposals_for_what_was_committed_before_are_no_answer() -> None:
    timing = DrafterTiming(response=0.01)
    clock = clock_of(timing)
    clock.asked(4, 0.004)
    clock.arrived(proposal(1), 0.005)
    assert timing.response == 0.01
    assert clock.expected_wait(0.005) == pytest.approx(0.009)


def test_learns_the_pace_between_proposals() -> None:
    timing = DrafterTiming(response=0.05, interval=0.02)
    clock = clock_of(timing)
    now = 0.0
    for _ in range(60):
        now += 0.004
        clock.arrived(proposal(1), now)
    assert timing.interval == pytest.approx(0.004, rel=0.02)
    assert clock.expected_wait(now + 0.001) == pytest.approx(0.003, rel=0.05)


def test_what_was_held_back_shows_no_pace() -> None:
    timing = DrafterTiming(response=0.05, interval=0.004)
    clock = clock_of(timing)
    clock.asked(2, 0.1)
    clock.arrived(proposal(2)._replace(token_ids=[0] * 9, parent_ids=[0] * 9, gathered=True), 0.4)
    assert (timing.response, timing.interval, clock.expansion) == (0.05, 0.004, (1, 1))
    clock.arrived(proposal(2), 0.401)  # the step that it ended in the middle of
    assert timing.interval == 0.004
    clock.asked(3, 0.5)
    clock.arrived(proposal(3), 0.53)
    clock.arrived(proposal(3), 0.536)
    assert 0.03 <= timing.response < 0.05
    assert 0.004 < timing.interval <= 0.006


def test_sequences_that_share_a_drafting_step_do_not_quicken_its_pace() -> None:
    timing = DrafterTiming(interval=0.004)
    clocks = [clock_of(timing) for _ in range(16)]
    for step in range(1, 30):
        for clock in clocks:
            clock.arrived(proposal(1), step * 0.004)
    assert timing.interval == pytest.approx(0.004)


def test_a_long_pause_is_no_pace() -> None:
    timing = DrafterTiming(interval=0.004)
    clock_of(timing).arrived(proposal(1), 100.0)
    assert timing.interval < 0.02


def test_after_a_restart_the_next_proposal_is_as_the_first() -> None:
    timing = DrafterTiming(response=0.01, interval=0.004)
    clock = clock_of(timing)
    clock.asked(2, 1.0)
    clock.restart()
    assert clock.expected_wait(1.0) is None
    clock.asked(3, 2.0)
    clock.arrived(proposal(3), 100.0)
    assert (timing.response, timing.interval) == (0.01, 0.004)
    assert clock.expected_wait(100.0) == pytest.approx(0.004)


def test_an_overdue_proposal_is_worth_less_and_less_waiting() -> None:
    clock = clock_of(DrafterTiming(response=0.01, interval=0.004))
    clock.asked(2, 0.0)
    waits = [clock.expected_wait(now) for now in (0.011, 0.02, 0.1, 1.0)]
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(0.991)


def test_a_silent_drafter_is_late_since_the_first_verdict_it_left_unanswered() -> None:
    timing = DrafterTiming(response=0.01)
    clock = clock_of(timing)
    for length in range(2, 22):
        clock.asked(length, length * 0.05)
    assert clock.expected_wait(21 * 0.05 + 0.001) > 0.9
    clock.arrived(proposal(21), 21 * 0.05 + 0.01)
    clock.asked(22, 2.0)
    assert clock.expected_wait(2.0) == pytest.approx(0.01)


def test_a_drafter_that_rests_owes_no_answers() -> None:
    timing = DrafterTiming(response=0.01, interval=0.005)
    clock = clock_of(timing)
    clock.asked(2, 0.1)
    timing.paused = True
    assert clock.expected_wait(0.1) is None
    clock.arrived(proposal(2), 0.11)  # it was asked before the pause
    assert clock.expected_wait(0.111) is None
    for length in range(3, 100):
        clock.asked(length, 0.1 * length)
    timing.paused = False
    clock.asked(100, 10.0)
    assert clock.expected_wait(10.0) is None, "it has to read what was committed meanwhile"
    before = timing.response, timing.interval
    clock.arrived(proposal(100), 10.3)
    assert (timing.response, timing.interval) == before
    clock.asked(101, 10.4)
    assert clock.expected_wait(10.4) == pytest.approx(timing.response)


def test_what_another_sequence_asked_is_its_own_affair() -> None:
    timing = DrafterTiming(response=0.01, interval=0.004)
    ended, running = clock_of(timing), clock_of(timing, at=100.0)
    ended.asked(2, 0.0)
    running.asked(2, 100.0)
    running.arrived(proposal(2), 100.01)
    assert timing.response == pytest.approx(0.01)


def test_a_drafter_whose_first_proposals_were_overtaken_is_late_since_the_verdicts_before_them() -> None:
    """After its opening it sends one proposal after another, while verdicts are on their way to it."""
    timing = DrafterTiming(response=0.01, interval=0.005)
    clock = ProposalClock(timing)
    for length in range(2, 6):
        clock.asked(length, 0.03 * length)
    for number in range(10):
        clock.arrived(proposal(1), 0.15 + 0.005 * number)
        assert clock.expected_wait(0.15 + 0.005 * number) > 0.08, "none of them is of use"
    assert timing.response == 0.01
    clock.arrived(proposal(5), 0.25)
    assert timing.response == 0.01, "it read its prompt meanwhile"
    clock.asked(6, 0.26)
    clock.arrived(proposal(6), 0.27)
    assert timing.response == pytest.approx(0.01)


def test_verdicts_that_stay_unanswered_make_nothing_slower() -> None:
    clock, work = clock_of(DrafterTiming()), []
    for length in range(2, 400):
        clock.asked(length, 0.1 * length)
        work.append(
            instructions(lambda at=0.1 * length: clock.arrived(proposal(1), at))
            + instructions(lambda at=0.1 * length: clock.expected_wait(at))
        )
    assert work[-1] <= 1.1 * work[20]


def test_an_answer_is_waited_for_until_it_is_late_or_the_drafter_is_silent() -> None:
    clock = ProposalClock(DrafterTiming())
    assert clock.answer_wait(0.0) == 0
    clock.asked(10, 1.0)
    assert 0 < clock.answer_wait(1.05) < clock.answer_wait(1.0)
    assert clock.answer_wait(2.0) == 0
    clock.arrived(proposal(10), 2.0)
    assert clock.answer_wait(2.0) == 0
    for length in range(11, 17):
        clock.asked(length, 3.0)
    assert clock.answer_wait(3.0) == 0


def test_a_pause_does_not_concern_a_sequence_that_always_drafts() -> None:
    timing = DrafterTiming()
    usual, always = ProposalClock(timing), ProposalClock(timing, always=True)
    timing.paused = True
    for clock in (usual, always):
        clock.asked(10, 1.0)
    assert usual.answer_wait(1.0) == 0 < always.answer_wait(1.0)
