"""A drafter with nothing worth verifying gets fewer verdicts and less credit, until that changes."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from drafter_pool.standing import pause_policy as drafter_credit
from drafter_pool.standing.pause_policy import PausePolicy
from draftwire.v1.drafter_service_pb2 import DraftResponse
from tests.harness.stand_ins.scripted_drafter import Opening, ScriptedDrafter, batch
from tests.harness.verifier.in_process_verifier import PROMPT, InProcessVerifier, in_process_verifier, order


@pytest.fixture(autouse=True)
def tireless() -> None:
    """Overrides the fixture that disables pausing."""


def steps_until_rest(credit: PausePolicy, sequences: int = 1) -> int:
    """Returns the number of steps without an accepted token until the drafter is paused."""
    steps = 0
    while not credit.rests:
        credit.stepped(sequences)
        steps += 1
    return steps


def steps_until_trial(credit: PausePolicy, sequences: int = 1) -> int:
    """Returns the number of steps until its next trial."""
    steps = 0
    while credit.rests:
        credit.stepped(sequences)
        steps += 1
    return steps


def told_of(
    credit: PausePolicy, *, nodes: int, accepted: int, sequences: int, steps: int = 4000, every: int = 1
) -> float:
    """Returns the share of steps whose verdicts the drafter gets. It is right in one of `every` steps."""
    told = 0
    for step in range(steps):
        told += not credit.rests
        if not credit.rests:
            credit.verified(nodes, accepted if step % every == 0 else 0)
        credit.stepped(sequences)
    return told / steps


def test_what_brings_nothing_is_told_of_some_steps_and_then_of_one_in_a_hundred_at_most() -> None:
    credit = PausePolicy()
    credit.price(0.03, 0.0)  # sending verdicts costs 6 %
    assert 50 < steps_until_rest(credit) < 70
    for _ in range(20):
        rested = steps_until_trial(credit)
        told = steps_until_rest(credit)
        assert told >= 8
        assert 0.06 * told <= 0.011 * (rested + told)


def test_a_trial_that_brings_something_goes_on() -> None:
    credit = PausePolicy()
    credit.price(0.03, 0.0)
    steps_until_rest(credit)
    steps_until_trial(credit)
    assert told_of(credit, nodes=4, accepted=2, sequences=1, every=8) == 1


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_one_that_is_seldom_right_but_worth_it_never_rests(share: float) -> None:
    credit, chance = PausePolicy(), random.Random(1)
    credit.price(0.03, 0.0)
    rested = 0
    for _ in range(4000):
        credit.verified(4, int(chance.random() < share))
        credit.stepped(1)
        rested += credit.rests
    assert rested < 40


def test_what_comes_after_the_last_telling_counts() -> None:
    """With a distant drafter, all that a trial yields may arrive after its last verdict."""
    credit = PausePolicy()
    credit.price(0.03, 0.0)
    steps_until_rest(credit)
    steps_until_trial(credit)
    steps_until_rest(credit)
    credit.verified(6, 4)
    credit.stepped(1)
    assert not credit.rests


def test_a_token_now_and_then_for_one_of_many_is_next_to_nothing() -> None:
    credit = PausePolicy()
    credit.price(0.1, 0.0)
    assert told_of(credit, nodes=1, accepted=1, sequences=16, every=20) < 0.35


def test_tokens_that_cost_as_much_as_they_bring_are_nothing() -> None:
    credit = PausePolicy()
    credit.price(0.1, 1.0)  # extra rows are expensive, as in large batches
    assert told_of(credit, nodes=16, accepted=16, sequences=16) < 0.5
    credit = PausePolicy()
    credit.price(0.1, 0.5)
    assert told_of(credit, nodes=16, accepted=16, sequences=16) == 1


def test_what_telling_costs_is_set_against_the_time_of_a_step() -> None:
    # One token for every sixteenth sequence, which costs only messages: 6.3 ms.
    long, short = PausePolicy(), PausePolicy()
    long.price(0.2, 0.0)
    short.price(0.07, 0.0)
    assert told_of(long, nodes=1, accepted=1, sequences=16) == 1
    assert told_of(short, nodes=1, accepted=1, sequences=16) < 1


def test_reading_counts_where_it_takes_longer_than_telling_is_taken_to() -> None:
    steps = {}
    for milliseconds in (0.0, 1.5, 1.8, 18.0):  # sending and reading are assumed to take 1.8 ms
        credit = PausePolicy()
        credit.price(0.03, 0.0)
        steps[milliseconds] = 0
        while not credit.rests:
            credit.read(1e-3 * milliseconds)
            credit.stepped(1)
            steps[milliseconds] += 1
    assert steps[0.0] == steps[1.5] == steps[1.8] > 50
    assert steps[18.0] < steps[0.0] / 9


def test_what_comes_in_one_step_and_not_in_the_next_is_paid_for_once() -> None:
    even, uneven = PausePolicy(), PausePolicy()
    for credit in (even, uneven):
        credit.price(0.03, 0.0)
    for step in range(40):
        even.read(1.5e-3)
        uneven.read(3e-3 if step % 2 else 0.0)
        even.stepped(1)
        uneven.stepped(1)
    assert uneven._account.balance == pytest.approx(even._account.balance)


def test_one_that_rests_pays_for_what_it_says() -> None:
    quiet, loud = PausePolicy(), PausePolicy()
    for credit in (quiet, loud):
        credit.price(0.03, 0.0)
        steps_until_rest(credit)
    for _ in range(20):
        loud.read(0.3e-3)  # 1 % of a step: as much as it earns while paused
        loud.stepped(1)
        quiet.stepped(1)
    assert steps_until_trial(loud) == pytest.approx(steps_until_trial(quiet) + 20, abs=2)


def test_reading_before_the_time_of_a_step_is_known_is_paid_for_then() -> None:
    credit = PausePolicy()
    credit.read(0.3)
    credit.stepped(1)
    assert not credit.rests
    credit.price(0.03, 0.0)
    credit.stepped(1)
    assert credit.rests


def test_a_tree_is_eight_times_what_a_step_verifies_of_it() -> None:
    credit = PausePolicy()
    assert credit.max_tree_nodes > 256, "who is not known drafts as much as its opening allows"
    for nodes, wanted in ((2.5, 20), (6, 48), (1, 8)):
        for _ in range(80):
            for _ in range(8):  # of sixteen sequences; the others' trees were empty
                credit.verified(nodes, nodes)
            credit.stepped(16)
        assert credit.max_tree_nodes == pytest.approx(wanted, abs=1)


def test_nodes_that_cost_little_are_asked_for_in_any_case() -> None:
    credit = PausePolicy()
    for _ in range(80):
        credit.verified(1, 1)
        credit.stepped(1)
    assert credit.max_tree_nodes == pytest.approx(8, abs=1)
    credit.price(0.03, 0.0)
    assert 64 < credit.max_tree_nodes < 100
    credit.stepped(4)
    assert 16 < credit.max_tree_nodes < 25
    credit.stepped(16)
    assert credit.max_tree_nodes == pytest.approx(8, abs=1)


async def test_the_drafter_is_told(verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafter_credit, "_STEP_SECONDS", 99.0)  # counted as a tenth of a step at most
    silent = ScriptedDrafter()
    verifier.network.listen("silent:1", silent.converse)
    await verifier.pool.membership.attach("silent:1", "")
    await verifier.generate(order(max_tokens=160))
    steps = [after - before for before, after in zip([len(PROMPT), *silent.lengths], silent.lengths, strict=False)]
    at_once = steps.index(next(step for step in steps if step > 1))
    assert 15 <= at_once < 60, "the first steps may be over before it has caught up"
    assert steps[:at_once] == [1] * at_once
    assert steps[at_once] > 8, "it has rested"
    assert steps[at_once + 1 : at_once + 4] == [1] * 3, "and is tried"


async def test_that_it_rests_is_told(verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafter_credit, "_STEP_SECONDS", 99.0)
    silent = ScriptedDrafter()
    verifier.network.listen("silent:1", silent.converse)
    await verifier.pool.membership.attach("silent:1", "")
    assert [each.resting for each in verifier.pool.describe()] == [False]
    await verifier.generate(order(max_tokens=60))
    assert [each.resting for each in verifier.pool.describe()] == [True]


def oracle(plain: Sequence[int]) -> ScriptedDrafter:
    """Returns a drafter that drafts the next token and is right."""

    def knows(opening: Opening) -> Sequence[DraftResponse]:
        done = len(opening.tokens) - len(PROMPT)
        return [batch(opening.proposal(plain[done : done + 1]))]

    return ScriptedDrafter(answer=knows)


async def test_one_that_is_right_keeps_its_credit(verifier: InProcessVerifier) -> None:
    right = oracle((await verifier.plain(order(max_tokens=80))).token_ids)
    verifier.network.listen("oracle:1", right.converse)
    await verifier.pool.membership.attach("oracle:1", "")
    output = await verifier.generate(order(max_tokens=80))
    assert output.finished.speculation.accepted_tokens > 0
    assert set(right.credits) == {0}


async def test_one_of_which_a_node_is_verified_is_asked_for_eight(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafter_credit, "_NODE_SECONDS", 99.0)
    async with in_process_verifier(checkpoint, max_tree_nodes=64) as verifier:
        right = oracle((await verifier.plain(order(max_tokens=80))).token_ids)
        verifier.network.listen("oracle:1", right.converse)
        await verifier.pool.membership.attach("oracle:1", "")
        await verifier.generate(order(max_tokens=80))
    assert right.opened[0].max_tree_nodes == 64
    assert right.credits[0] == 0
    assert max(right.credits) < 64, "a verdict asks for less than the opening, or says nothing"
    assert 8 <= right.credits[-1] < 12
