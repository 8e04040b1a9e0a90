"""The plan of faults, drawn from a seed."""

from benchmarks.faults.chaos_plan import DRAFTER_FAULTS, PHASE_SECONDS, VERIFIER_FAULTS, plan


def test_a_seed_gives_one_plan_and_another_seed_another() -> None:
    assert plan(1, 50, 60.0, 3, 2) == plan(1, 50, 60.0, 3, 2)
    assert plan(1, 50, 60.0, 3, 2) != plan(2, 50, 60.0, 3, 2)


def test_all_kinds_come_up_at_all_targets_within_the_time() -> None:
    faults = plan(1, 500, 600.0, 3, 2)
    assert [fault.number for fault in faults] == list(range(500))
    assert {fault.kind for fault in faults} == DRAFTER_FAULTS.keys() | VERIFIER_FAULTS.keys()
    assert {fault.target for fault in faults if fault.kind == "kill drafter"} == {0, 1, 2}
    assert {fault.target for fault in faults if fault.kind in ("swap", "kill verifier")} == {0, 1}
    assert all(0 <= fault.at <= 600 for fault in faults)
    assert all(0.02 <= fault.amount <= 0.2 for fault in faults if fault.kind.startswith("delay"))


def test_drafters_alone_have_faults_in_every_other_phase() -> None:
    faults = plan(3, 400, 300.0, 3, 2)
    assert all(int(fault.at / PHASE_SECONDS) % 2 == 1 for fault in faults if fault.of_verifier)
    assert sum(fault.of_verifier for fault in faults) > 20
