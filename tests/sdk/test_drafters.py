"""Swaps, rollouts, labels and model loads through both clients."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import get_type_hints

import pytest
from grpc import StatusCode

from draftwire import (
    AsyncClient,
    AsyncDrafters,
    BusyError,
    Client,
    DrafterNotFoundError,
    Drafters,
    Learning,
    LearningRound,
    Rollout,
    RolloutNotFoundError,
    Speculation,
    StepCost,
    UnavailableError,
    VerifierShare,
)
from draftwire._types.drafter import Drafter
from draftwire._types.from_message import read
from draftwire.v1 import drafter_pool_service_pb2 as pool
from draftwire.v1 import drafter_service_pb2 as drafting
from tests.harness.stand_ins.fake_verifier import PROMPT, FakeVerifier, drafter_message, rich_status
from tests.sdk.conftest import QUICK

LOST = rich_status(StatusCode.UNAVAILABLE, "lost")


def test_a_swap_whose_answer_is_lost_is_the_same_swap_again(
    verifier: FakeVerifier, second_verifier: FakeVerifier
) -> None:
    verifier.failures += [LOST, LOST]
    with Client([verifier.address, second_verifier.address], retry=QUICK) as client:
        assert client.drafters.swap("good", "bad").moved_sequences == 3
        assert client.address == verifier.address
    assert second_verifier.calls == []
    first, second, third = (request.request_id for request in verifier.pool_requests)
    assert first == second == third != ""


def test_a_swap_is_given_up_where_it_began(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    verifier.failures += [LOST] * QUICK.attempts_per_address
    with Client([verifier.address, second_verifier.address], retry=QUICK) as client:
        with pytest.raises(UnavailableError, match=f"no answer from {verifier.address}: "):
            client.drafters.swap("good", "bad")
        assert client.address == second_verifier.address  # for later calls
    assert second_verifier.calls == []


def test_every_swap_has_its_own_name_unless_it_is_given_one(client: Client, verifier: FakeVerifier) -> None:
    client.drafters.swap("good", "bad")
    client.drafters.swap("good", "bad")
    client.drafters.swap("good", "bad", "mine")
    first, second, third = (request.request_id for request in verifier.pool_requests)
    assert first != second
    assert third == "mine"


def check_running(rollout: Rollout) -> None:
    assert (rollout.old.name, rollout.new.name, rollout.share, rollout.state) == ("good", "bad", 0.25, "running")
    assert (rollout.new.acceptance_rate, rollout.new.accepted_per_step) == (0.6, 1.5)
    assert (rollout.old.acceptance_rate, rollout.old.accepted_per_step) == (0.0, 0.0)
    assert (rollout.new.drafting_per_step, rollout.old.drafting_per_step) == (0.25, 0.0)
    assert rollout.started_at is not None
    assert rollout.ended_at is None


def test_rollouts(client: Client, verifier: FakeVerifier) -> None:
    assert client.drafters.rollouts() == []
    verifier.failures.append(LOST)  # it is safe to retry
    check_running(client.drafters.rollout("good", "bad", 0.25))
    promoted = client.drafters.promote("bad")
    assert (promoted.state, promoted.reason) == ("promoted", "asked for")
    assert promoted.ended_at is not None
    with pytest.raises(RolloutNotFoundError):
        client.drafters.withdraw("bad")
    client.drafters.rollout("good", "bad", 0.5)
    assert client.drafters.withdraw("bad").state == "withdrawn"
    assert [rollout.state for rollout in client.drafters.rollouts()] == ["promoted", "withdrawn"]


async def test_rollouts_with_asyncio(verifier: FakeVerifier) -> None:
    async with AsyncClient(verifier.address, retry=QUICK) as client:
        check_running(await client.drafters.rollout("good", "bad", 0.25))
        assert len(await client.drafters.rollouts()) == 1
        assert (await client.drafters.withdraw("bad")).state == "withdrawn"
        with pytest.raises(RolloutNotFoundError):
            await client.drafters.promote("bad")
        assert (await client.drafters.swap("good", "bad", "mine")).moved_sequences == 3
        assert (await client.drafters.attach("here:1", labels={"a": "b"})).labels == {"a": "b"}
    assert verifier.pool_requests[-1].request_id == "mine"


def test_labels(client: Client, verifier: FakeVerifier) -> None:
    assert client.drafters.attach("here:1", labels={"domain": "prose"}).labels == {"domain": "prose"}
    client.generate(PROMPT, max_tokens=2, speculation=Speculation(labels={"domain": "code"}, drafters=2))
    asked = verifier.requests[0].speculation
    assert (dict(asked.labels), asked.drafters) == ({"domain": "code"}, 2)
    client.generate(PROMPT, max_tokens=2)
    assert not verifier.requests[1].speculation.labels
    assert not verifier.requests[1].speculation.HasField("drafters")


def test_trust(client: Client) -> None:
    assert client.drafters.attach("here:1", trusted=True).trusted
    assert not client.drafters.attach("here:1").trusted
    message = drafter_message("x")
    message.trusted, message.lossy_draft_tokens, message.lossy_accepted_tokens = True, 9, 5
    message.resting = True
    found = read(Drafter, message)
    assert (found.trusted, found.lossy_draft_tokens, found.lossy_accepted_tokens) == (True, 9, 5)
    assert found.resting


def learning() -> Learning:
    last = LearningRound(4, False, "slower", 0.5, 0.75, 900, 1.5, 1.25, datetime(2026, 1, 2, tzinfo=UTC), 0.75)
    return Learning("trying", 3, 12_000, 4, 0.25, 0.5, last)


def test_what_a_learner_reports_is_what_is_read(client: Client, verifier: FakeVerifier) -> None:
    verifier.failures.append(LOST)
    client.drafters.report_learning("good", learning())
    at = datetime(2026, 1, 3, tzinfo=UTC)
    verifier.learning["good"].reported_at.FromDatetime(at)
    good, bad = client.drafters.list()
    assert (good.learning, bad.learning) == (replace(learning(), reported_at=at), None)
    client.drafters.report_learning("good", Learning("collecting", 0, 5, 0))
    assert client.drafters.list()[0].learning == Learning("collecting", 0, 5, 0)


def test_a_suspended_drafter() -> None:
    message = drafter_message("x")
    message.state = pool.DRAFTER_STATE_SUSPENDED
    assert read(Drafter, message).state == "suspended"


def test_loading_a_model_talks_to_the_drafter_service(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    drafter = second_verifier
    drafter.failures.append(LOST)
    with Client(verifier.address, retry=QUICK) as client:
        assert client.drafters.load_state(drafter.address).last_load is None
        drafter.failures.append(LOST)
        load = client.drafters.load_model(drafter.address, "models/other")
        assert (load.model, load.state, load.error) == ("models/other", "loading", None)
        drafter.load_steps = [drafting.MODEL_LOAD_STATE_SERVING, drafting.MODEL_LOAD_STATE_FAILED]
        info = client.drafters.load_state(drafter.address)
        assert (info.model.model_id, info.build, info.streams, info.used_slots) == ("draft", "fake 1", 1, 5)
        assert info.times.wait == 0.25
        assert info.step_costs == [StepCost(1, 0.002)]
        assert ([each.rank for each in info.classes], info.drafted_nodes) == ([2], 7)
        assert info.verifiers == [VerifierShare("alice", 2.0, 1, 0, 0, 5, 9, 7, 0)]
        assert info.last_load is not None
        assert (info.last_load.request_id, info.last_load.state) == (load.request_id, "serving")
        failed = client.drafters.load_state(drafter.address).last_load
        assert failed is not None
        assert failed.state == "failed"
        assert str(failed.error) == "no such model"
        assert client.address == verifier.address
    assert verifier.calls == []
    first, second = (request.request_id for request in drafter.pool_requests)
    assert first == second != ""


async def test_loading_a_model_with_asyncio(verifier: FakeVerifier, second_verifier: FakeVerifier) -> None:
    async with AsyncClient(verifier.address, retry=QUICK) as client:
        second_verifier.failures.append(rich_status(StatusCode.FAILED_PRECONDITION, "loading", "BUSY"))
        with pytest.raises(BusyError):
            await client.drafters.load_model(second_verifier.address, "m", "mine")
        assert (await client.drafters.load_model(second_verifier.address, "m", "mine")).request_id == "mine"
        assert (await client.drafters.load_state(second_verifier.address)).last_load is not None
        with pytest.raises(UnavailableError, match=r"no answer from 127.0.0.1:1: "):
            await client.drafters.load_state("127.0.0.1:1")
        assert (await client.drafters.list())[0].name == "good"  # at the verifier, as before


@pytest.mark.parametrize("kind", [Drafters, AsyncDrafters])
def test_pyright_finds_the_type_of_the_list(kind: type[Drafters | AsyncDrafters]) -> None:
    """It looks a name in an annotation up in the class first, and there `list` is the method."""
    assert get_type_hints(kind.list, localns=dict(vars(kind))) == {"return": list[Drafter]}


def test_errors_keep_their_class(client: Client, verifier: FakeVerifier) -> None:
    verifier.failures.append(rich_status(StatusCode.NOT_FOUND, "no drafter x", "DRAFTER_NOT_FOUND"))
    with pytest.raises(DrafterNotFoundError):
        client.drafters.rollout("x", "y", 0.5)
    verifier.failures.append(rich_status(StatusCode.FAILED_PRECONDITION, "under way", "BUSY"))
    with pytest.raises(BusyError):
        client.drafters.swap("x", "y")
