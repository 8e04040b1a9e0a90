"""A drafter of which nothing is worth verifying is asked for fewer nodes, until something is."""

from collections.abc import Sequence

from draftwire.v1.drafter_service_pb2 import DraftResponse
from tests.verifier_service.in_process_verifier import PROMPT, InProcessVerifier, order
from tests.verifier_service.scripted_drafter import Opening, ScriptedDrafter, batch
from verifier_service.drafter_credit import DrafterCredit


def test_few_nodes_after_64_verdicts_without_a_verified_one() -> None:
    credit = DrafterCredit()
    for _ in range(63):
        credit.count(0)
    assert credit.max_tree_nodes is None
    credit.count(0)
    assert credit.max_tree_nodes == 4
    credit.count(0)
    assert credit.max_tree_nodes == 4


def test_all_again_with_the_first_one() -> None:
    credit = DrafterCredit()
    for _ in range(100):
        credit.count(0)
    credit.count(1)
    assert credit.max_tree_nodes is None
    for _ in range(63):
        credit.count(0)
    assert credit.max_tree_nodes is None


async def test_the_drafter_is_told(verifier: InProcessVerifier) -> None:
    silent = ScriptedDrafter()
    verifier.network.listen("silent:1", silent.converse)
    await verifier.pool.attach("silent:1", "")
    await verifier.generate(order(max_tokens=80))
    assert len(silent.credits) == 79
    assert silent.credits[:63] == [0] * 63
    assert silent.credits[64:] == [4] * 15


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
