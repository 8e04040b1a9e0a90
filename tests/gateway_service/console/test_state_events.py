"""The stream of states that pages follow."""

import threading
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from draftwire.v1 import verifier_service_pb2 as pb
from draftwire.v1.learning_pb2 import LearningStatus
from gateway_service.console import state_events
from tests.gateway_service.console.event_reader import read_events
from tests.harness.console_server import serve_console
from tests.harness.stand_ins.fake_verifier import FakeVerifier
from tests.harness.stand_ins.scripted_verifier import ScriptedVerifier
from tests.harness.waiting import PATIENCE, eventually

STATE = "/console/api/state"


def test_the_state_comes_at_once_and_again(http: httpx.Client, verifier: FakeVerifier) -> None:
    http.post("/console/api/rollouts/start", json={"old": "a", "new": "b", "share": 0.25})
    verifier.learning["bad"] = LearningStatus(
        activity="LEARNER_ACTIVITY_TRAINING", version=2, first_agreement=0.5, agreement=0.75
    )
    with http.stream("GET", STATE) as response:
        events = read_events(response)
        states = [next(events) for _ in range(3)]  # the first one, one for the fake's change, one by the timer
        assert not verifier.cancelled.is_set()
    assert [name for name, _ in states] == ["state"] * 3
    state = states[0][1]
    assert [drafter["name"] for drafter in state["drafters"]] == ["good", "bad"]
    assert state["drafters"][0]["learning"] is None
    learning = {"activity": "training", "version": 2, "first_agreement": 0.5, "agreement": 0.75}
    assert state["drafters"][1]["learning"] == learning
    assert state["rollouts"][0]["new"]["name"] == "b"
    assert (state["verifier"]["model"], state["verifier"]["total_slots"]) == ("fake", 64)
    assert state["verifier"]["plain_tokens_per_second"] == 8.0  # c = 125 ms
    assert verifier.cancelled.wait(PATIENCE), "nobody reads, so nobody watches"


@pytest.mark.parametrize("chat_format", [None, pb.ChatFormat()])
def test_whether_the_model_can_chat(chat_format: pb.ChatFormat | None) -> None:
    fake = ScriptedVerifier()
    fake.chat_format = chat_format
    with (
        fake,
        serve_console(fake.address) as address,
        httpx.stream("GET", address + STATE, timeout=PATIENCE) as response,
    ):
        _, state = next(read_events(response))
    assert state["verifier"]["chat"] is (chat_format is not None)


def test_pages_are_bounded(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_events, "MOST_PAGES", 2)
    with ExitStack() as pages:
        followed = [read_events(pages.enter_context(http.stream("GET", STATE))) for _ in range(2)]
        for events in followed:
            next(events)
        assert http.get(STATE).status_code == 429

    def has_room() -> bool:
        with http.stream("GET", STATE) as response:
            return response.status_code == 200

    eventually(has_room, "those that went make room")


def test_a_verifier_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    answers.set()

    class Silent(FakeVerifier):
        def ListRollouts(self, request: Any, context: Any) -> Any:
            answers.wait(PATIENCE)
            return super().ListRollouts(request, context)

    monkeypatch.setattr(state_events, "PATIENCE", 0.5)
    with Silent() as verifier, serve_console(verifier.address) as address:
        with httpx.stream("GET", address + STATE, timeout=PATIENCE) as response:
            events = read_events(response)
            assert next(events)[0] == "state"
            answers.clear()
            found = [each for each in events if each[0] == "error"]
        answers.set()
    assert found[0][1]["error"]["status"] == 504


def test_a_verifier_that_is_gone(http: httpx.Client, verifier: FakeVerifier) -> None:
    with http.stream("GET", STATE) as response:
        events = read_events(response)
        assert next(events)[0] == "state"
        verifier.stop()
        found = [each for each in events if each[0] == "error"]
    assert found[0][1]["error"]["status"] == 503
    assert http.get(STATE).json()["error"]["status"] == 503
