"""A request through the console: what the verifier receives, and the events that the page receives."""

import grpc
import httpx
import pytest

from tests.gateway_service.console.event_reader import read_events
from tests.harness.stand_ins.fake_verifier import PROMPT, PROMPT_IDS, FakeVerifier, expected_ids, rich_status, text_of
from tests.harness.waiting import PATIENCE

GENERATE = "/console/api/generate"
ASKED = {"prompt": PROMPT, "max_tokens": 5, "seed": 5}


def test_chunks_and_the_result(http: httpx.Client) -> None:
    with http.stream("POST", GENERATE, json=ASKED) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        events = list(read_events(response))
    ids = expected_ids(5, 5)
    assert [name for name, _ in events] == ["chunk"] * 4 + ["finished"]
    first = events[0][1]
    assert first["sources"] == ["good", None]
    assert first["pieces"] == [{"text": chr(ids[0]), "source": "good"}, {"text": chr(ids[1]), "source": None}]
    assert first["rejected"] == [{"text": "?", "drafter": "good", "position": len(PROMPT_IDS), "depth": 1}]
    result = events[-1][1]
    assert (result["text"], result["token_ids"], result["seed"]) == (text_of(ids), ids, "5")
    assert (result["acceptance_rate"], result["acceptance_length"]) == (2 / 6, 5 / 3)
    assert result["drafters"] == [{"name": "good", "draft_tokens": 6, "accepted_tokens": 2}]


def test_what_is_asked_is_passed_on(http: httpx.Client, verifier: FakeVerifier) -> None:
    http.post(GENERATE, json={**ASKED, "temperature": 0.25, "top_p": 0.5, "speculation": False})
    (request,) = verifier.requests
    assert (request.text, request.max_tokens) == (PROMPT, 5)
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.seed) == (0.25, 0.5, 5)
    assert not request.speculation.enabled and not request.report_rejected


def test_chat(http: httpx.Client, verifier: FakeVerifier) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    assert http.post(GENERATE, json={"messages": messages, "max_tokens": 2}).status_code == 200
    assert [(each.role, each.content) for each in verifier.requests[0].messages.messages] == [
        ("user", "hi"),
        ("assistant", "yes"),
    ]


def test_an_error_on_the_way_is_the_last_event(http: httpx.Client, verifier: FakeVerifier) -> None:
    verifier.break_status = rich_status(grpc.StatusCode.INTERNAL, "it broke", "INTERNAL")
    verifier.break_after = [2]
    with http.stream("POST", GENERATE, json=ASKED) as response:
        events = list(read_events(response))
    assert [name for name, _ in events] == ["chunk", "error"]
    assert events[-1][1]["error"]["message"] == "it broke"


def test_a_reader_that_goes_cancels_the_request(http: httpx.Client, verifier: FakeVerifier) -> None:
    verifier.hang_after = 2
    with http.stream("POST", GENERATE, json=ASKED) as response:
        events = read_events(response)
        assert next(events)[0] == "chunk"
        assert not verifier.cancelled.is_set()
    assert verifier.cancelled.wait(PATIENCE)
    assert verifier.is_idle()


def test_a_reader_that_goes_before_the_first_token(http: httpx.Client, verifier: FakeVerifier) -> None:
    verifier.hang_after = 0
    for seconds in (0.5, 5, 50):  # on a busy machine it may be gone before the verifier has seen the request
        with pytest.raises(httpx.ReadTimeout):
            http.post(GENERATE, json=ASKED, timeout=seconds)
        if verifier.calls:
            break
    assert verifier.cancelled.wait(PATIENCE)
