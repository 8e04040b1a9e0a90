"""A drafter of which nothing is worth verifying is told less and asked for less, until something is."""

from collections.abc import Sequence

from draftwire.v1.drafter_service_pb2 import DraftResponse
from tests.verifier_service.in_process_verifier import PROMPT, InProcessVerifier, order
from tests.verifier_service.scripted_drafter import Opening, ScriptedDrafter, batch
from verifier_service.drafter_credit import DrafterCredit


def test_little_after_32_steps_without_a_verified_node() -> None:
    credit = DrafterCredit()
    for _ in range(31):
        credit.stepped()
    assert (credit.max_tree_nodes, credit.steps_at_once) == (None, 1)
    credit.stepped()
    assert (credit.max_tree_nodes, credit.steps_at_once) == (4, 8)
    credit.stepped()
    assert (credit.max_tree_nodes, credit.steps_at_once) == (4, 8)


def test_all_again_with_the_first_one() -> None:
    credit = DrafterCredit()
    for _ in range(100):
        credit.stepped()
    credit.verified()
    for _ in range(31):
        credit.stepped()
    assert (credit.max_tree_nodes, credit.steps_at_once) == (None, 1)


async def test_the_drafter_is_told(verifier: InProcessVerifier) -> None:
    silent = ScriptedDrafter()
    verifier.network.listen("silent:1", silent.converse)
    await verifier.pool.attach("silent:1", "")
    await verifier.generate(order(max_tokens=80))
    at_once = silent.credits.count(0)
    assert silent.credits == [0] * at_once + [4] * (len(silent.credits) - at_once)
    # The first steps may be over before it has caught up.
    assert 31 <= at_once < 45
    steps = [after - before for before, after in zip([len(PROMPT), *silent.lengths], silent.lengths, strict=False)]
    assert steps[:at_once] == [1] * at_once
    assert steps[at_once:] == [8] * ((79 - at_once) // 8)


async def test_one_that_is_right_keeps_its_credit(verifier: InProcessVerifier) -> None:
    plain = (await verifier.plain(order(max_tokens=80))).token_ids

    def knows(opening: Opening) -> Sequence[DraftResponse]:
        done = len(opening.tokens) - len(PROMPT)
        return [batch(opening.proposal(plain[done : done + 1]))]

    oracle = ScriptedDrafter(answer=knows)
    verifier.network.listen("oracle:1", oracle.converse)
    await verifier.pool.attach("oracle:1", "")
    output = await verifier.generate(order(max_tokens=80))
    assert output.finished.speculation.accepted_tokens > 0
    assert set(oracle.credits) == {0}
