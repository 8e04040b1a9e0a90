"""A drafter of which nothing is worth verifying is told less and asked for less, until something is."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from drafter_pool.drafter_credit import DrafterCredit
from draftwire.v1.drafter_service_pb2 import DraftResponse
from tests.verifier_service.in_process_verifier import PROMPT, InProcessVerifier, in_process_verifier, order
from tests.verifier_service.scripted_drafter import Opening, ScriptedDrafter, batch


@pytest.fixture(autouse=True)
def tireless() -> None:
    """Not here."""


def steps_until_little(credit: DrafterCredit, sequences: int = 1) -> int:
    """How many steps without an accepted token it takes."""
    steps = 0
    while not credit.rests:
        assert credit.steps_at_once == 1
        credit.stepped(sequences)
        steps += 1
    assert (credit.max_tree_nodes, credit.steps_at_once) == (4, 8)
    return steps


def all_told(credit: DrafterCredit, *, nodes: int, accepted: int, sequences: int, steps: int = 200) -> bool:
    """Whether a drafter is told of everything after such steps."""
    for _ in range(steps):
        credit.verified(nodes, accepted)
        credit.stepped(sequences)
    return not credit.rests


def test_little_after_some_thirty_steps_that_brought_nothing() -> None:
    assert steps_until_little(DrafterCredit()) == 30


def test_all_again_with_the_first_token() -> None:
    credit = DrafterCredit()
    steps_until_little(credit)
    credit.verified(1, 1)
    for _ in range(8):
        assert credit.max_tree_nodes == 4, "a telling is of eight steps"
        credit.stepped(1)
    assert (credit.rests, credit.steps_at_once) == (False, 1)
    assert 10 < steps_until_little(credit) < 20


def test_a_token_now_and_then_for_one_of_many_is_next_to_nothing() -> None:
    assert not all_told(DrafterCredit(), nodes=1, accepted=0, sequences=16)
    credit = DrafterCredit()
    for step in range(200):
        credit.verified(1, step % 20 == 0)
        credit.stepped(16)
    assert credit.max_tree_nodes == 4


def test_tokens_that_cost_as_much_as_they_bring_are_nothing() -> None:
    credit = DrafterCredit()
    credit.price(0.1, 1.0)  # rows cost by themselves, as in large batches
    assert not all_told(credit, nodes=16, accepted=16, sequences=16)
    credit.price(0.1, 0.5)
    assert all_told(credit, nodes=16, accepted=16, sequences=16)


def test_what_telling_costs_is_set_against_the_time_of_a_step() -> None:
    # A token for every sixteenth sequence, which costs nothing but messages: 6.3 ms.
    long, short = DrafterCredit(), DrafterCredit()
    long.price(0.2, 0.0)
    short.price(0.07, 0.0)
    assert all_told(long, nodes=1, accepted=1, sequences=16)
    assert not all_told(short, nodes=1, accepted=1, sequences=16)


def test_a_drafter_that_rests_is_measured_by_the_telling() -> None:
    credit = DrafterCredit()
    credit.price(0.1, 0.6)
    steps_until_little(credit, 16)
    for step in range(32):  # told of eight steps at once, it is right after each telling
        credit.verified(*((24, 24) if step % 8 == 0 else (0, 0)))
        credit.stepped(16)
    assert not credit.rests


def test_a_tree_is_eight_times_what_a_step_verifies_of_it() -> None:
    credit = DrafterCredit()
    assert credit.max_tree_nodes > 256, "who is not known drafts as much as its opening allows"
    for nodes, wanted in ((40, 20), (96, 48), (1, 8)):
        for _ in range(80):
            credit.verified(nodes, nodes)
            credit.stepped(16)
        assert credit.max_tree_nodes == pytest.approx(wanted, abs=1)


def test_what_was_verified_is_remembered_while_it_rests() -> None:
    credit = DrafterCredit()
    assert all_told(credit, nodes=40, accepted=40, sequences=16)
    most = credit.max_tree_nodes
    credit.price(0.1, 1.0)
    assert not all_told(credit, nodes=40, accepted=40, sequences=16)
    assert credit.max_tree_nodes == 4
    credit.price(0.1, 0.0)
    while credit.rests:
        credit.verified(40, 40)
        credit.stepped(16)
    assert credit.max_tree_nodes == most


async def test_the_drafter_is_told(verifier: InProcessVerifier) -> None:
    silent = ScriptedDrafter()
    verifier.network.listen("silent:1", silent.converse)
    await verifier.pool.attach("silent:1", "")
    await verifier.generate(order(max_tokens=80))
    at_once = silent.credits.count(0)
    assert silent.credits == [0] * at_once + [4] * (len(silent.credits) - at_once)
    # The first steps may be over before it has caught up. So small a model has short steps, of which telling is a part.
    assert 15 <= at_once < 45
    steps = [after - before for before, after in zip([len(PROMPT), *silent.lengths], silent.lengths, strict=False)]
    assert steps[:at_once] == [1] * at_once
    assert steps[at_once:] == [8] * ((79 - at_once) // 8)


def oracle(plain: Sequence[int]) -> ScriptedDrafter:
    """It drafts the next token, and is right."""

    def knows(opening: Opening) -> Sequence[DraftResponse]:
        done = len(opening.tokens) - len(PROMPT)
        return [batch(opening.proposal(plain[done : done + 1]))]

    return ScriptedDrafter(answer=knows)


async def test_one_that_is_right_keeps_its_credit(verifier: InProcessVerifier) -> None:
    right = oracle((await verifier.plain(order(max_tokens=80))).token_ids)
    verifier.network.listen("oracle:1", right.converse)
    await verifier.pool.attach("oracle:1", "")
    output = await verifier.generate(order(max_tokens=80))
    assert output.finished.speculation.accepted_tokens > 0
    assert set(right.credits) == {0}


async def test_one_of_which_a_node_is_verified_is_asked_for_eight(checkpoint: Path) -> None:
    async with in_process_verifier(checkpoint, max_tree_nodes=64) as verifier:
        right = oracle((await verifier.plain(order(max_tokens=80))).token_ids)
        verifier.network.listen("oracle:1", right.converse)
        await verifier.pool.attach("oracle:1", "")
        await verifier.generate(order(max_tokens=80))
    assert right.opened[0].max_tree_nodes == 64
    assert right.credits[0] == 0
    assert max(right.credits) < 64, "a verdict asks for less than the opening, or says nothing"
    assert 8 <= right.credits[-1] < 12
