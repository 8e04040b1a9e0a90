"""Proposals that are gathered while the verifier's step runs."""

import asyncio
import math

import pytest

from drafter_service.conversation.gathered_proposals import GatheredProposals
from drafter_service.conversation.opened_sequence import SequenceKey
from draftwire.v1.drafter_service_pb2 import StepBegun
from draftwire.v1.proposal_pb2 import DraftDistribution, Proposal, ProposalBatch
from tests.harness.drafter.verifier_side import Request
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.waiting import PATIENCE
from tests.harness.world.simulated_loop import SimulatedLoop

ONE, TWO = SequenceKey(1, 1, 1), SequenceKey(1, 2, 1)
MINUTE = 60.0


def proposal(key: SequenceKey, first: int, *parents: int, length: int = 5, last: bool = False) -> Proposal:
    return Proposal(
        sequence_id=key.sequence_id,
        epoch=key.epoch,
        committed_length=length,
        first_node_id=first,
        token_ids=range(first, first + len(parents)),
        parent_ids=parents,
        log_probs=[-float(first)] * len(parents),
        distributions=[DraftDistribution(parent_id=parents[0], token_ids=[first], probabilities=[1.0])],
        last=last,
    )


class Sent:
    """The messages sent, and an event loop whose time the test moves."""

    def __init__(self) -> None:
        self.loop = SimulatedLoop()
        self.batches: list[ProposalBatch] = []
        self.ended: set[SequenceKey] = set()
        self.gathered = GatheredProposals(self.batches.append, lambda key: key not in self.ended)

    def gather(self, seconds: float) -> None:
        self.loop.call_soon(self.gathered.gather, seconds)
        self.loop.settle()


@pytest.fixture
def sent() -> Sent:
    return Sent()


def test_without_a_step_they_are_sent_at_once(sent: Sent) -> None:
    sent.gathered.take({ONE: proposal(ONE, 1, 0)}, 0.003)
    (batch,) = sent.batches
    assert (batch.step_seconds, batch.gathered_steps, len(batch.proposals)) == (0.003, 0, 1)


def test_each_sequence_gets_one_proposal_of_all_steps(sent: Sent) -> None:
    sent.gather(1.0)
    sent.gathered.take({ONE: proposal(ONE, 1, 0, 0)}, 0.25)
    sent.gathered.take({ONE: proposal(ONE, 3, 1, last=True), TWO: proposal(TWO, 1, 0)}, 0.5)
    assert sent.batches == []
    sent.loop.advance(0.76)
    (batch,) = sent.batches
    assert (batch.step_seconds, batch.gathered_steps) == (0.75, 2)
    one, two = batch.proposals
    assert two == proposal(TWO, 1, 0)
    assert (one.first_node_id, list(one.token_ids), list(one.parent_ids), one.last) == (1, [1, 2, 3], [0, 0, 1], True)
    assert list(one.log_probs) == [-1.0, -1.0, -3.0]
    assert [each.parent_id for each in one.distributions] == [0, 1]


def test_they_are_sent_after_three_quarters_and_when_the_time_is_over(sent: Sent) -> None:
    sent.gather(1.0)
    seen = []
    for first in range(1, 12):
        sent.gathered.take({ONE: proposal(ONE, first, 0)}, 0.01)
        sent.loop.advance(0.1)
        seen.append(sum(len(batch.proposals[0].token_ids) for batch in sent.batches))
    assert seen == [0, 0, 0, 0, 0, 0, 0, 8, 8, 10, 11]
    assert [batch.gathered_steps for batch in sent.batches] == [8, 2, 0]


def test_a_release_sends_them_and_ends_the_time(sent: Sent) -> None:
    sent.gather(1.0)
    sent.gathered.take({ONE: proposal(ONE, 1, 0)}, 0.1)
    sent.gathered.release()
    sent.gathered.take({ONE: proposal(ONE, 2, 1)}, 0.1)
    sent.loop.advance(2.0)
    assert [batch.gathered_steps for batch in sent.batches] == [1, 0]


def test_a_stop_sends_nothing_then_or_later(sent: Sent) -> None:
    sent.gather(1.0)
    sent.gathered.take({ONE: proposal(ONE, 1, 0)}, 0.1)
    sent.gathered.stop()
    sent.loop.advance(2.0)
    assert sent.batches == []


def test_what_was_drafted_for_another_root_comes_apart(sent: Sent) -> None:
    sent.gather(1.0)
    sent.gathered.take({ONE: proposal(ONE, 1, 0)}, 0.1)
    sent.gathered.take({ONE: proposal(ONE, 2, 0, length=6)}, 0.1)
    sent.gathered.release()
    assert [batch.proposals[0].committed_length for batch in sent.batches] == [5, 6]
    assert [batch.gathered_steps for batch in sent.batches] == [1, 1]


def test_nodes_of_an_opening_that_has_ended_are_dropped(sent: Sent) -> None:
    sent.gather(1.0)
    sent.gathered.take({ONE: proposal(ONE, 1, 0), TWO: proposal(TWO, 1, 0)}, 0.1)
    sent.ended.add(ONE)
    sent.gathered.release()
    assert [[each.sequence_id for each in batch.proposals] for batch in sent.batches] == [[2]]
    sent.gather(1.0)
    sent.gathered.take({ONE: proposal(ONE, 2, 0)}, 0.1)
    sent.gathered.release()
    assert len(sent.batches) == 1, "no empty batch is sent"


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_no_time_is_no_gathering(sent: Sent, seconds: float) -> None:
    sent.gather(seconds)
    sent.gathered.take({ONE: proposal(ONE, 1, 0)}, 0.1)
    assert len(sent.batches) == 1


def test_no_verifier_holds_them_for_long(sent: Sent) -> None:
    sent.gather(math.inf)
    sent.gathered.take({ONE: proposal(ONE, 1, 0)}, 0.1)
    sent.loop.advance(10.0)
    assert len(sent.batches) == 1


class TestStream:
    async def test_a_verdict_ends_the_time_of_a_step(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.open(1, [5, 9, 14, 23, 42, 7])
            mirror = verifier.mirrors[1]
            await verifier.until(lambda: mirror.tree.size)
            for _ in range(3):
                await verifier.stream.write(Request(step_begun=StepBegun(seconds=MINUTE)))
                other = next(token for token in range(50, 60) if token not in mirror.tree.root.children)
                await verifier.commit({1: [other]})
                await verifier.until(lambda: mirror.tree.size)

    async def test_nodes_of_several_steps_come_in_one_message(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.open(1, [5, 9, 14, 23, 42, 7], credit=1)
            mirror = verifier.mirrors[1]
            await verifier.until(lambda: mirror.tree.size)
            await verifier.commit({1: mirror.best_path()}, max_tree_nodes=1)
            await verifier.stream.write(Request(step_begun=StepBegun(seconds=0.2)))
            await verifier.until(lambda: mirror.tree.size)

    async def test_the_end_of_the_stream_leaves_no_timer(self, drafter: InProcessDrafter) -> None:
        def timers() -> list[asyncio.TimerHandle]:
            scheduled: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
            return [each for each in scheduled if not each.cancelled() and GatheredProposals.__name__ in repr(each)]

        async with drafter.connected() as verifier:
            await verifier.open(1, [5, 9, 14, 23, 42, 7])
            await verifier.stream.write(Request(step_begun=StepBegun(seconds=MINUTE)))
            async with asyncio.timeout(PATIENCE):
                while not timers():  # noqa: ASYNC110
                    await asyncio.sleep(0)
            await verifier.end()
            async with asyncio.timeout(PATIENCE):
                while timers():  # noqa: ASYNC110
                    await asyncio.sleep(0)
