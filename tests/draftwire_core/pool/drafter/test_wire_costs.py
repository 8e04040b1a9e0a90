"""What a conversation with a drafter takes is charged to that drafter: processor time, and the slowdown of steps."""

from collections.abc import Sequence
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from draftwire.v1.drafter_service_pb2 import DraftRequest, DraftResponse, Pong, SequenceOpened
from draftwire.v1.model_info_pb2 import PeerInfo
from draftwire.v1.proposal_pb2 import ProposalBatch
from draftwire_core.engine.acceptance.acceptance import COUPLED
from draftwire_core.engine.engine.step_result import SequenceOutcome
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.pool.drafter.conversation import DrafterConversation
from draftwire_core.pool.standing.pause_policy import PausePolicy
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.observability.span import NO_SPAN
from draftwire_core.runtime.rpc.message_stream import MessageStream
from tests.harness.verifier.simulated_clocks import SimulatedClocks

TRANSPORT = 3e-3
"""Seconds of reads and writes that the stream reports at each request."""


class Said(MessageStream[DraftRequest, DraftResponse]):
    """A stream whose drafter sends given messages and ends."""

    def __init__(self, messages: Sequence[DraftResponse]) -> None:
        self._messages = list(messages)

    async def read(self) -> DraftResponse | None:
        return self._messages.pop(0) if self._messages else None

    async def write(self, message: DraftRequest) -> None:
        raise AssertionError("no message is expected")

    async def close(self, error: ServiceError | None = None) -> None:
        pass

    def take_seconds(self) -> float:
        return TRANSPORT


def conversation(messages: Sequence[DraftResponse], policy: PausePolicy) -> DrafterConversation:
    """A conversation in which handling a message takes 1 ms."""
    clocks = SimulatedClocks(reading=1e-3).clocks
    drafter = Mock(pause_policy=policy)
    drafter.name = "d"
    return DrafterConversation(Said(messages), PeerInfo(), drafter, Mock(), Mock(), Mock(), 0, clocks)


def charged(policy: Mock) -> list[float]:
    return [call.args[0] for call in policy.charge.call_args_list]


async def test_a_message_is_charged_with_its_transport_whatever_comes_of_it() -> None:
    policy = Mock(spec=PausePolicy)
    await conversation([DraftResponse(proposals=ProposalBatch()), DraftResponse()], policy).run()
    assert charged(policy) == [pytest.approx(1e-3 + TRANSPORT)] * 2


async def test_signs_of_life_are_not_charged() -> None:
    policy = Mock(spec=PausePolicy)
    talk = conversation([DraftResponse(pong=Pong(number=1))], policy)
    talk._flood_limit.asked()
    await talk.run()
    assert charged(policy) == []


@pytest.mark.parametrize(("paused", "handling"), [(False, 1e-3), (True, 0.0)])
async def test_verdicts_are_charged_with_their_transport(paused: bool, handling: float) -> None:
    policy = Mock(spec=PausePolicy, paused=paused)
    conversation([], policy).send_verdicts([])
    assert sum(charged(policy)) == pytest.approx(handling + TRANSPORT)


def opened(talk: DrafterConversation, sequence_id: int, *, always_draft: bool = False, caught_up: bool = True) -> None:
    """Opens a sequence of three tokens."""
    order = SimpleNamespace(
        request_id="",
        sampling=SamplingParams(),
        max_length=100,
        acceptance=COUPLED,
        always_draft=always_draft,
        dynamic_temperature=False,
    )
    request = SimpleNamespace(sequence_id=sequence_id, order=order, span=NO_SPAN, tokens=[1, 2, 3], finished=False)
    talk.open(request, 8)
    if caught_up:
        talk._take(DraftResponse(opened=SequenceOpened(sequence_id=sequence_id, epoch=talk.epoch)))


def committed(sequence_id: int) -> SequenceOutcome:
    return SequenceOutcome(sequence_id, [4], [None], 4)


async def test_a_step_that_is_drafted_for_is_charged_with_its_slowdown_once() -> None:
    policy = Mock(spec=PausePolicy, paused=False, max_tree_nodes=8)
    talk = conversation([], policy)
    opened(talk, 1)
    opened(talk, 2, caught_up=False)
    talk.send_verdicts([committed(1), committed(2)])
    policy.stepped.assert_called_once_with(1, on_demand=False)
    policy.catching_up.assert_not_called()
    talk.close(1)
    talk.send_verdicts([committed(2)])
    policy.catching_up.assert_called_once_with()


async def test_a_paused_drafter_is_not_charged_with_catching_up_on_demand() -> None:
    policy = Mock(spec=PausePolicy, paused=True, max_tree_nodes=8)
    talk = conversation([], policy)
    opened(talk, 1, always_draft=True, caught_up=False)
    talk.send_verdicts([committed(1)])
    policy.catching_up.assert_not_called()


@pytest.mark.parametrize("always_draft", [False, True])
async def test_a_paused_drafter_is_busy_while_it_drafts_on_demand(always_draft: bool) -> None:
    """Steps next to it are not those without it, with which its slowdown is compared."""
    talk = conversation([], Mock(spec=PausePolicy, paused=True))
    opened(talk, 1, always_draft=always_draft, caught_up=always_draft)
    assert talk.busy is always_draft
