"""One drafter with two verifiers, one of which floods it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftwire.v1 import drafter_service_pb2 as pb
from draftwire_core.runtime.security.caller import Caller, set_caller
from draftwire_core.runtime.security.roles import Role
from tests.harness.drafter.collected_metric import metric
from tests.harness.drafter.model_loads import eventually
from tests.harness.drafter.verifier_side import VerifierSide
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.services import Services

PROMPT = list(range(5, 45))


async def flood(verifier: VerifierSide, sequences: int, drafted: int) -> None:
    """Opens sequences, and waits until `drafted` of them are drafted for. Trees of one node keep the slots countable: a
    sequence takes 41 slots, and 32 are left for its tree."""
    for number in range(sequences):
        await verifier.open(number, [number + 3, *PROMPT], max_length=100, credit=1)
    await verifier.until(lambda: len(verifier.opened) == drafted)


async def test_whoever_came_first_gives_back_slots(services: Services, checkpoint: Path) -> None:
    """One verifier opens twelve endless sequences where four have room. A second verifier still gets half of the room
    and keeps it."""
    async with services.in_process_drafter(checkpoint, kv_slots=300, max_tree_nodes=16) as drafter:
        async with drafter.connected("greedy") as greedy, drafter.connected("modest") as modest:
            await flood(greedy, 12, drafted=4)
            before = (await drafter.shares())["greedy"]
            assert before.open_sequences == 12 and before.open_sequences - before.waiting_sequences == 4
            for number in (1, 2):
                await modest.open(number, [number, *PROMPT], max_length=100, credit=1)
            await modest.until(lambda: len(modest.opened) == 2 and all(m.tree.size for m in modest.mirrors.values()))
            shares = await drafter.shares()
            assert shares["greedy"].open_sequences - shares["greedy"].waiting_sequences == 2
            assert shares["greedy"].preemptions == 2
            assert (shares["modest"].open_sequences, shares["modest"].waiting_sequences) == (2, 0)
            assert shares["modest"].used_slots == 2 * 41 and shares["modest"].preemptions == 0
            assert metric(drafter, "drafting_verifier_used_slots", verifier="modest") == 82
            assert metric(drafter, "drafting_verifier_waiting_sequences", verifier="greedy") == 10
            assert metric(drafter, "drafting_verifier_preemptions_total", verifier="greedy") == 2
            # Preempted sequences still receive their verdicts, and are drafted for again once there is room.
            newest = 3
            await greedy.commit({newest: [7]})
            await modest.close(1, 2)
            await eventually(lambda: metric(drafter, "drafting_verifier_waiting_sequences", verifier="greedy") < 10)
            await modest.end()
            shares = await drafter.shares()
            assert list(shares) == ["greedy"]
            assert shares["greedy"].preemptions == 2


async def test_a_weight_is_a_larger_part(services: Services, checkpoint: Path) -> None:
    async with (
        services.in_process_drafter(
            checkpoint, kv_slots=300, max_tree_nodes=16, verifier_weight=("heavy=3",)
        ) as drafter,
        drafter.connected("light") as light,
        drafter.connected("heavy") as heavy,
    ):
        await flood(light, 12, drafted=4)
        await flood(heavy, 12, drafted=3)
        shares = await drafter.shares()
        running = {name: each.open_sequences - each.waiting_sequences for name, each in shares.items()}
        assert running == {"light": 1, "heavy": 3}
        assert {name: each.weight for name, each in shares.items()} == {"light": 1.0, "heavy": 3.0}


async def test_more_streams_are_no_larger_part(services: Services, checkpoint: Path) -> None:
    async with (
        services.in_process_drafter(checkpoint, kv_slots=300, max_tree_nodes=16) as drafter,
        drafter.connected("many") as first,
        drafter.connected("many") as second,
        drafter.connected("many") as third,
        drafter.connected("one") as one,
    ):
        for verifier in (first, second, third):
            for number in range(4):
                await verifier.open(number, [number + 3, *PROMPT], max_length=100, credit=1)
        await first.until(lambda: first.opened)
        await flood(one, 4, drafted=2)
        shares = await drafter.shares()
        assert shares["many"].streams == 3 and shares["many"].open_sequences == 12
        assert shares["many"].open_sequences - shares["many"].waiting_sequences <= 3
        assert shares["one"].open_sequences - shares["one"].waiting_sequences == 2


async def test_rows_and_nodes_are_counted_for_whom_they_were(drafter: InProcessDrafter) -> None:
    async with drafter.connected("alice") as alice, drafter.connected("bob"):
        await alice.open(1, PROMPT, credit=8)
        await alice.until(lambda: alice.mirrors[1].tree.size == 8)
        shares = await drafter.shares()
        assert shares["alice"].drafted_nodes == 8
        assert shares["alice"].rows >= len(PROMPT) + 1, "the prompt and nodes"
        assert (shares["bob"].drafted_nodes, shares["bob"].rows, shares["bob"].streams) == (0, 0, 1)
        assert metric(drafter, "drafting_verifier_nodes_total", verifier="alice") == 8
        assert metric(drafter, "drafting_verifier_rows_total", verifier="alice") == shares["alice"].rows
        assert metric(drafter, "drafting_verifier_sequences", verifier="alice") == 1
        assert metric(drafter, "drafting_verifier_weight", verifier="bob") == 1
    await asyncio.sleep(0)
    await eventually(lambda: not list(drafter.changes.verifiers()))


@pytest.fixture
def no_caller() -> Iterator[None]:
    yield
    set_caller(None)


@pytest.mark.parametrize(
    ("role", "names"),
    [(Role.DRAFT, ["alice"]), (Role.GENERATE, ["alice"]), (Role.ADMIN, ["alice", "bob"]), (None, ["alice", "bob"])],
)
async def test_who_is_told_of_whom(
    drafter: InProcessDrafter, no_caller: None, role: Role | None, names: list[str]
) -> None:
    async with drafter.connected("alice"), drafter.connected("bob"):
        set_caller(None if role is None else Caller("alice", frozenset({role})))
        request = pb.DrafterServiceGetModelInfoRequest()
        answer = pb.DrafterServiceGetModelInfoResponse()
        while not answer.HasField("status"):  # the thread may be slow to report
            answer = await drafter.servicer.GetModelInfo(request, None)  # type: ignore[arg-type]
        assert [each.name for each in answer.status.verifiers] == names
