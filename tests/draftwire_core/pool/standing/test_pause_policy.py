"""A drafter with nothing worth verifying gets fewer verdicts and less credit, until that changes."""

import random
from collections.abc import AsyncIterator, Sequence
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire.v1.drafter_service_pb2 import DraftResponse
from draftwire.v1.speculation_pb2 import DraftPlanning, SpeculationOptions
from draftwire_core.engine.planning.drafting_account import MOST_BALANCE
from draftwire_core.pool.standing.pause_policy import PausePolicy
from draftwire_core.pool.standing.standings import DrafterClocks
from tests.harness.services.in_process_verifier import PROMPT, InProcessVerifier, order
from tests.harness.services.services import Services
from tests.harness.stand_ins.scripted_drafter import Opening, ScriptedDrafter, batch
from tests.harness.verifier.running import Running


@pytest.fixture(autouse=True)
def tireless() -> None:
    """Overrides the fixture that disables pausing."""


TIMED = 0.9e-3
"""Seconds timed of a step's messages; they count twice."""


def step(policy: PausePolicy, sequences: int = 1, timed: float = TIMED) -> None:
    """A step is over; if the drafter is not paused, messages took their time."""
    if not policy.paused:
        policy.charge(timed)
    policy.stepped(sequences)


def steps_until_pause(policy: PausePolicy, sequences: int = 1, timed: float = TIMED) -> int:
    """How many steps without an accepted token it takes."""
    steps = 0
    while not policy.paused:
        step(policy, sequences, timed)
        steps += 1
    return steps


def steps_until_trial(policy: PausePolicy) -> int:
    """How many steps it then pauses."""
    steps = 0
    while policy.paused:
        step(policy)
        steps += 1
    return steps


def test_what_a_paused_drafter_does_on_demand_is_no_trial() -> None:
    policy, other = PausePolicy(), PausePolicy()
    for each in (policy, other):
        each.price(0.01, 0.9)
        steps_until_pause(each)
    for _ in range(20):
        policy.verified(8, 0)
        policy.charge(TIMED)
        policy.stepped(1, on_demand=True)
        other.stepped(1)
    assert steps_until_trial(policy) == steps_until_trial(other)


def told_of(
    policy: PausePolicy,
    *,
    nodes: int,
    accepted: int,
    sequences: int,
    steps: int = 4000,
    every: int = 1,
    timed: float = TIMED,
) -> float:
    """The part of such steps whose verdicts the drafter gets. every: it is right in one of so many steps."""
    told = 0
    for number in range(steps):
        told += not policy.paused
        if not policy.paused:
            policy.verified(nodes, accepted if number % every == 0 else 0)
        step(policy, sequences, timed)
    return told / steps


def priced(step_seconds: float = 0.03, node_tokens: float = 0.0) -> PausePolicy:
    """The policy of a drafter of which nothing is known, where a step's time is."""
    policy = PausePolicy()
    policy.price(step_seconds, node_tokens)
    return policy


def test_what_brings_nothing_is_told_of_some_steps_and_then_of_one_in_a_hundred_at_most() -> None:
    policy = priced()  # messages cost 6 %
    assert 50 < steps_until_pause(policy) < 70
    for _ in range(20):
        paused = steps_until_trial(policy)
        told = steps_until_pause(policy)
        assert told >= 8
        assert 0.06 * told <= 0.011 * (paused + told)


@given(share=st.floats(0.002, 0.5), start=st.integers(0, 50))
def test_whatever_messages_cost_the_allowance_pays_for_them(share: float, start: int) -> None:
    """After what a new drafter may cost, 1 % of the time and the trial under way."""
    policy, cost, steps = priced(), 0.0, 4000
    for _ in range(start):
        policy.stepped(1)
    for _ in range(steps):
        cost += 0.0 if policy.paused else share
        step(policy, timed=0.03 * share / 2)
    assert cost <= MOST_BALANCE + 0.01 * (steps + start) + share + 1e-6


def test_a_trial_that_brings_something_goes_on() -> None:
    policy = priced()
    steps_until_pause(policy)
    steps_until_trial(policy)
    assert told_of(policy, nodes=4, accepted=2, sequences=1, every=8) == 1


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_one_that_is_seldom_right_but_worth_it_is_never_paused(share: float) -> None:
    policy, chance = priced(), random.Random(1)
    paused = 0
    for _ in range(4000):
        policy.verified(4, int(chance.random() < share))
        step(policy)
        paused += policy.paused
    assert paused < 40


def test_what_comes_after_the_last_telling_counts() -> None:
    """Of a drafter that is far away, all that a trial brings."""
    policy = priced()
    steps_until_pause(policy)
    steps_until_trial(policy)
    steps_until_pause(policy)
    policy.verified(6, 4)
    policy.stepped(1)
    assert not policy.paused


def test_a_token_now_and_then_for_one_of_many_is_next_to_nothing() -> None:
    assert told_of(priced(0.1), nodes=1, accepted=1, sequences=16, every=20, timed=3e-3) < 0.35


def test_tokens_that_cost_as_much_as_they_bring_are_nothing() -> None:
    # Rows cost by themselves, as in large batches.
    assert told_of(priced(0.1, 1.0), nodes=16, accepted=16, sequences=16, timed=3e-3) < 0.5
    assert told_of(priced(0.1, 0.5), nodes=16, accepted=16, sequences=16, timed=3e-3) == 1


def test_what_messages_cost_is_set_against_the_time_of_a_step() -> None:
    """A token for every sixteenth sequence, which costs nothing but messages: 6.3 ms."""
    assert told_of(priced(0.2), nodes=1, accepted=1, sequences=16, timed=3.15e-3) == 1
    assert told_of(priced(0.07), nodes=1, accepted=1, sequences=16, timed=3.15e-3) < 1


def test_a_costly_wire_pauses_what_a_cheap_one_does_not() -> None:
    """The same drafter, right once in twenty steps."""
    brings = {"nodes": 2, "accepted": 1, "sequences": 1, "every": 20}
    assert told_of(priced(), **brings, timed=0.3e-3) == 1
    assert told_of(priced(), **brings, timed=3e-3) < 0.35


def test_the_measured_cost_takes_over_from_the_start_value() -> None:
    """2 % of a step are expected of messages at first; a trial is as long as what was measured allows."""
    for timed, share in ((0.225e-3, 0.015), (3e-3, 0.2)):
        policy = priced()
        steps_until_pause(policy, timed=timed)
        assert steps_until_trial(policy) == pytest.approx(8 * share / 0.01, rel=0.3)


def test_where_the_time_of_a_step_is_unknown_the_start_value_holds() -> None:
    assert 140 < steps_until_pause(PausePolicy()) < 320  # 2 %, less the allowance


def test_merging_and_messages_cost_the_same() -> None:
    steps = []
    for merging in (0.0, 0.5, 1.0):
        policy = priced()
        steps.append(0)
        while not policy.paused:
            policy.merged(merging * TIMED, 4)
            step(policy, timed=(1 - merging) * TIMED)
            steps[-1] += 1
    assert steps[0] == steps[1] == steps[2]


def test_features_are_charged_as_measured_and_messages_with_what_is_not_timed() -> None:
    steps = []
    for features in (0.0, 2 * TIMED):
        policy = priced()
        steps.append(0)
        while not policy.paused:
            policy.charge_features(features)
            step(policy, timed=0.0 if features else TIMED)
            steps[-1] += 1
    assert steps[0] == steps[1]


def test_features_of_prompts_are_paid_for_though_no_step_settles_them() -> None:
    policy, passes = priced(), 0
    while not policy.paused:
        policy.charge_features(0.01)  # a third of a step
        passes += 1
    assert 19 <= passes <= 25  # four steps are owed, beside the first balance
    policy.charge_features(30.0)
    assert steps_until_trial(policy) > 90_000


@pytest.mark.parametrize("chunks", [1, 8, 24])
def test_a_prompt_whose_features_take_four_steps_does_not_pause_a_drafter_that_is_right(chunks: int) -> None:
    """It has had no chance to draft yet; later it pays for them with what it saves."""
    policy = priced()
    for _ in range(3):
        for _ in range(chunks):
            policy.charge_features(4 * 0.03 / chunks)
            assert not policy.paused
        for _ in range(60):
            policy.verified(4, 1)
            step(policy)
            assert not policy.paused
    assert policy._account.due < 1e-6


def test_features_of_prompts_pause_a_drafter_that_is_wrong() -> None:
    """They cost the verifier no more than the first balance, what is owed at most, and the allowance."""
    policy, spent = priced(), 0.0
    for _ in range(10):
        while not policy.paused:
            policy.charge_features(0.03)
            spent += 1
            step(policy)
        step(policy)
    assert spent <= 3 + 4 + 1


def test_paused_drafters_share_what_trials_may_take() -> None:
    alone, shared = priced(), priced()
    shared.sharing = 8
    for policy in (alone, shared):
        steps_until_pause(policy)
    assert steps_until_trial(shared) == pytest.approx(8 * steps_until_trial(alone), rel=0.05)


def test_what_takes_long_to_read_is_paid_for() -> None:
    assert steps_until_pause(priced(), timed=9e-3) < steps_until_pause(priced(), timed=TIMED) / 9


def test_what_comes_in_one_step_and_not_in_the_next_is_paid_for_once() -> None:
    even, uneven = priced(), priced()
    for number in range(40):
        even.charge(0.75e-3)
        uneven.charge(1.5e-3 if number % 2 else 0.0)
        even.stepped(1)
        uneven.stepped(1)
    assert uneven._account.balance == pytest.approx(even._account.balance)


def test_a_paused_one_pays_for_what_it_says() -> None:
    quiet, loud = priced(), priced()
    for policy in (quiet, loud):
        steps_until_pause(policy)
    for _ in range(20):
        loud.charge(0.15e-3)  # counted twice 1 % of a step: all that is paid in
        loud.stepped(1)
        quiet.stepped(1)
    assert steps_until_trial(loud) == pytest.approx(steps_until_trial(quiet) + 20, abs=2)


def test_reading_before_the_time_of_a_step_is_known_is_paid_for_then() -> None:
    policy = PausePolicy()
    policy.charge(0.3)
    policy.stepped(1)
    assert not policy.paused
    policy.price(0.03, 0.0)
    policy.stepped(1)
    assert policy.paused


def slowing(share: float) -> PausePolicy:
    """The policy of a drafter that makes steps longer by this share while it computes."""
    policy = priced()
    for busy, slowness in ((True, 1.0 + share), (False, 1.0)):
        for _ in range(64):
            policy.interference.observe(slowness, busy=busy)
    return policy


@pytest.mark.parametrize(("share", "paused"), [(0.0, False), (0.2, True)])
def test_one_that_slows_steps_down_by_more_than_it_saves_is_paused(share: float, paused: bool) -> None:
    policy = slowing(share)
    for number in range(200):
        policy.verified(1, number % 10 == 0)  # a tenth of a step saved, and 1 % for messages
        step(policy, timed=0.03 * 0.005)
        if policy.paused:
            break
    assert policy.paused is paused


def test_catching_up_is_paid_for_after_the_trial() -> None:
    policy, other = slowing(0.1), slowing(0.1)
    for each in (policy, other):
        steps_until_pause(each)
        steps_until_trial(each)
    for _ in range(50):
        policy.catching_up()
    assert steps_until_pause(policy) == steps_until_pause(other), "the trial is as long"
    assert steps_until_trial(policy) == pytest.approx(steps_until_trial(other) + 500, abs=50)


def test_messages_while_it_catches_up_do_not_end_the_trial() -> None:
    """A far drafter that is right in each second step, and reads for sixteen steps; messages cost 6 % of one."""
    policy = priced()
    steps_until_pause(policy)
    steps_until_trial(policy)
    for _ in range(16):
        policy.charge(TIMED)
        policy.catching_up()
    for number in range(200):
        policy.verified(2, int(number > 2 and number % 2 == 0))
        step(policy)
        assert not policy.paused


def test_messages_while_it_catches_up_are_paid_for() -> None:
    policy, other = priced(), priced()
    for each in (policy, other):
        steps_until_pause(each)
        steps_until_trial(each)
    for _ in range(16):
        policy.charge(TIMED)
        policy.catching_up()
    for each in (policy, other):
        steps_until_pause(each)
    assert steps_until_trial(policy) > steps_until_trial(other) + 60, "most of a step, at 1 % of the time"


def test_one_that_never_catches_up_pays_for_slowing_steps_down() -> None:
    policy, steps, lost = slowing(0.3), 20_000, 0.0
    for _ in range(steps):
        if policy.paused:
            policy.stepped(1)
        else:
            policy.charge(0.5 * TIMED)  # messages cost 3 % of a step
            policy.catching_up()
            lost += 0.3
    assert lost < 0.03 * steps


def test_features_of_a_prompt_that_pause_it_settle_what_catching_up_has_cost() -> None:
    policy, other = slowing(0.3), slowing(0.3)
    for _ in range(20):
        policy.catching_up()
    for each in (policy, other):
        while not each.paused:
            each.charge_features(0.02)
    assert steps_until_trial(policy) > steps_until_trial(other) + 500


def test_a_long_prompt_does_not_pause_it_for_good() -> None:
    policy = slowing(0.5)
    for _ in range(100_000):
        policy.catching_up()
    steps_until_pause(policy)
    assert steps_until_trial(policy) < 2500


def test_a_new_model_is_tried_at_once_whatever_catching_up_has_cost_the_one_before() -> None:
    policy = slowing(0.5)
    for _ in range(100):
        policy.catching_up()
    steps_until_pause(policy)
    policy.try_now()
    assert not policy.paused
    steps_until_pause(policy)
    assert steps_until_trial(policy) < 500, "it owes nothing either"


def test_one_that_earns_its_catching_up_owes_nothing() -> None:
    policy = slowing(0.1)
    for _ in range(100):
        policy.catching_up()
    for _ in range(100):
        policy.verified(1, 1)
        step(policy)
    steps_until_pause(policy)
    assert steps_until_trial(policy) < 500


def test_a_tree_is_eight_times_what_a_step_verifies_of_it() -> None:
    policy = PausePolicy()
    assert policy.max_tree_nodes > 256, "who is not known drafts as much as its opening allows"
    for nodes, wanted in ((2.5, 20), (6, 48), (1, 8)):
        for _ in range(80):
            for _ in range(8):  # of the sixteen; the others' trees were empty
                policy.verified(nodes, nodes)
            policy.stepped(16)
        assert policy.max_tree_nodes == pytest.approx(wanted, abs=1)


def test_nodes_that_cost_little_are_asked_for_in_any_case() -> None:
    policy = PausePolicy()
    for _ in range(80):
        policy.verified(1, 1)
        policy.stepped(1)
    assert policy.max_tree_nodes == pytest.approx(8, abs=1)
    policy.price(0.03, 0.0)
    assert 64 < policy.max_tree_nodes < 100
    policy.stepped(4)
    assert 16 < policy.max_tree_nodes < 25
    policy.stepped(16)
    assert policy.max_tree_nodes == pytest.approx(8, abs=1)


def test_what_a_node_costs_is_what_merging_takes() -> None:
    policy = priced()
    for _ in range(80):
        policy.verified(1, 1)
        policy.merged(10 * 28e-6, 10)
        policy.stepped(1)
    assert policy.node_seconds == pytest.approx(28e-6, rel=0.01)
    assert 35 < policy.max_tree_nodes < 50
    policy.merged(0.0, 0)
    assert policy.node_seconds == pytest.approx(28e-6, rel=0.01), "a message without nodes says nothing"


@pytest.fixture
async def dear(services: Services, checkpoint: Path) -> AsyncIterator[InProcessVerifier]:
    """A verifier of whose steps, 50 ms long, messages take a tenth: each look at the clock 2.5 ms."""
    looks = count()
    clocks = DrafterClocks(spent=lambda: 2.5e-3 * next(looks))
    async with services.in_process_verifier(checkpoint, clocks=clocks) as made:
        yield made


async def test_the_drafter_is_told(dear: InProcessVerifier) -> None:
    verifier = dear
    silent = ScriptedDrafter()
    verifier.network.listen("silent:1", silent.converse)
    await verifier.pool.membership.attach("silent:1", "")
    await verifier.generate(order(max_tokens=160))
    steps = [after - before for before, after in zip([len(PROMPT), *silent.lengths], silent.lengths, strict=False)]
    at_once = steps.index(next(step for step in steps if step > 1))
    assert 15 <= at_once < 60, "the first steps may be over before it has caught up"
    assert steps[:at_once] == [1] * at_once
    assert steps[at_once] > 8, "it was paused"
    assert steps[at_once + 1 : at_once + 4] == [1] * 3, "and is tried"


@pytest.mark.parametrize("answers", [0, 3])
async def test_one_that_never_says_that_it_has_caught_up_is_paused(dear: InProcessVerifier, answers: int) -> None:
    verifier = dear
    never = ScriptedDrafter(answer=lambda _: [DraftResponse()] * answers, says_opened=False)
    verifier.network.listen("never:1", never.converse)
    await verifier.pool.membership.attach("never:1", "")
    await verifier.generate(order(max_tokens=120))
    assert [each.resting for each in verifier.pool.describe()] == [True]
    assert never.lengths[-1] < len(PROMPT) + 80


async def test_a_paused_one_gets_a_sequence_when_it_is_tried(dear: InProcessVerifier) -> None:
    verifier = dear
    silent = ScriptedDrafter()
    verifier.network.listen("silent:1", silent.converse)
    await verifier.pool.membership.attach("silent:1", "")
    plain = await verifier.generate(order(max_tokens=60))
    assert len(silent.opened) == 1
    short = await verifier.generate(order(max_tokens=4))
    assert short.token_ids == plain.token_ids[:4]
    assert len(silent.opened) == 1, "nothing is sent to one that does not draft"
    long = await verifier.generate(order(max_tokens=200))
    assert long.token_ids[:60] == plain.token_ids
    opened = silent.opened[1]
    assert opened.epoch == 2
    assert opened.committed_length > len(PROMPT)
    assert [*PROMPT, *long.token_ids][: opened.committed_length] == list(opened.token_ids)
    assert silent.lengths[-1] > opened.committed_length, "verdicts continue the opening"
    await verifier.until(lambda: not silent.open)


async def test_a_swap_to_a_paused_one_ends(dear: InProcessVerifier) -> None:
    verifier = dear
    paused, first = ScriptedDrafter(), ScriptedDrafter()
    for address, drafter in (("paused:1", paused), ("first:1", first)):
        verifier.network.listen(address, drafter.converse)
    await verifier.pool.membership.attach("paused:1", "")
    await verifier.generate(order(max_tokens=60))
    await verifier.pool.membership.attach("first:1", "")
    async with Running(verifier, max_tokens=60, speculation=SpeculationOptions(drafter="first:1")):
        await verifier.until(lambda: first.open)
        await verifier.pool.changes.swap("first:1", "paused:1")
        assert [(each.name, each.sequences) for each in verifier.pool.describe()] == [("paused:1", 1)]
    assert len(paused.opened) == 1


async def test_one_that_is_paused_drafts_for_a_request_that_demands_it(dear: InProcessVerifier) -> None:
    verifier = dear
    silent = ScriptedDrafter()
    verifier.network.listen("silent:1", silent.converse)
    await verifier.pool.membership.attach("silent:1", "")
    await verifier.generate(order(max_tokens=60))
    assert [each.resting for each in verifier.pool.describe()] == [True]
    silent.lengths.clear()
    always = SpeculationOptions(planning=DraftPlanning.DRAFT_PLANNING_ALWAYS)
    await verifier.generate(order(max_tokens=30, speculation=always))
    assert silent.lengths[0] < len(PROMPT) + 30
    assert silent.lengths == list(range(silent.lengths[0], len(PROMPT) + 30))
    assert [each.resting for each in verifier.pool.describe()] == [True]


async def test_that_it_is_paused_is_told(dear: InProcessVerifier) -> None:
    verifier = dear
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


async def test_one_that_is_right_is_never_paused(verifier: InProcessVerifier) -> None:
    right = oracle((await verifier.plain(order(max_tokens=80))).token_ids)
    verifier.network.listen("oracle:1", right.converse)
    await verifier.pool.membership.attach("oracle:1", "")
    output = await verifier.generate(order(max_tokens=80))
    assert output.finished.speculation.accepted_tokens > 0
    assert set(right.credits) == {0}


async def test_one_of_which_a_node_is_verified_is_asked_for_eight(services: Services, checkpoint: Path) -> None:
    looks = count()
    async with services.in_process_verifier(checkpoint, max_tree_nodes=64) as verifier:
        verifier.engine._merging_clock = lambda: 5e-3 * next(looks)  # hardly a node in 4 % of a step
        right = oracle((await verifier.plain(order(max_tokens=80))).token_ids)
        verifier.network.listen("oracle:1", right.converse)
        await verifier.pool.membership.attach("oracle:1", "")
        await verifier.generate(order(max_tokens=80))
    assert right.opened[0].max_tree_nodes == 64
    assert right.credits[0] == 0
    assert max(right.credits) < 64, "a verdict asks for less than the opening, or says nothing"
    assert 8 <= right.credits[-1] < 12
