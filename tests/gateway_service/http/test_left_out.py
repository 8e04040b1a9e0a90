"""Parts of a request that were left out, in a header of its response and in the log."""

import asyncio
from collections.abc import Iterator
from typing import Any

import h11
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from draftwire.v1 import verifier_service_pb2 as pb
from gateway_service.http.left_out import HEADER, VIOLATIONS, sendable
from tests.harness.stand_ins.scripted_verifier import ScriptedVerifier
from tests.harness.waiting import eventually

TOOL = {"name": "mail", "parameters": {"type": "object", "properties": {"to": {"pattern": "(?<!x)y"}}}}
PLACE = "mail(properties.to.pattern)"
CHAT: Any = {"messages": [{"role": "user", "content": "hello"}], "tools": [{"type": "function", "function": TOOL}]}
RESPONSES: Any = {"input": "hello", "tools": [{"type": "function"} | TOOL]}
ASKED = {"chat/completions": CHAT, "responses": RESPONSES}


@pytest.fixture
def fake() -> Iterator[ScriptedVerifier]:
    with ScriptedVerifier() as made:
        made.chat_format = pb.ChatFormat(tool_calls=pb.TOOL_CALL_FORMAT_HERMES)
        made.answer = '<tool_call>\n{"name": "mail", "arguments": {"to": "xy"}}\n</tool_call>'
        made.left_out = [PLACE]
        yield made


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_of_a_tool_is_not_enforced(http: httpx.AsyncClient, path: str, stream: bool) -> None:
    with capture_logs() as logs:
        body = ASKED[path] | {"tool_choice": "required", "stream": stream, "unheard_of": 1}
        response = await http.post(f"/v1/{path}", json=body)
    assert response.status_code == 200
    assert response.headers[HEADER] == f"unheard_of, {PLACE}"
    assert [each["parts"] for each in logs if each["event"] == "request parts left out"] == [["unheard_of", PLACE]]


@pytest.mark.parametrize("path", ASKED)
async def test_nothing_is_said_where_nothing_is_left_out(
    http: httpx.AsyncClient, fake: ScriptedVerifier, path: str
) -> None:
    fake.left_out = []
    for stream in (False, True):
        response = await http.post(f"/v1/{path}", json=ASKED[path] | {"tool_choice": "required", "stream": stream})
        assert response.status_code == 200 and HEADER not in response.headers


async def test_the_header_is_bounded(http: httpx.AsyncClient, fake: ScriptedVerifier) -> None:
    fake.left_out = [f"{'t' * 64}(properties.{number}é,{'x' * 400}.pattern)" for number in range(64)]
    response = await http.post("/v1/chat/completions", json=CHAT | {"n": 3})
    names = response.headers[HEADER].split(", ")
    assert len(names) == 17 and names[-1] == "...48" and max(map(len, names)) <= 140
    assert names[0].startswith("t" * 64 + "(properties.0??")


@given(st.lists(st.text(max_size=4), min_size=1, max_size=3))
def test_any_name_can_be_sent(names: list[str]) -> None:
    value = ", ".join(sendable(names))
    assert value == value.strip() and len(value.split(", ")) == len(names)
    h11.Response(status_code=200, headers=[(HEADER, value)])  # raises what would end the connection


@pytest.mark.parametrize("path", ASKED)
async def test_a_call_that_violates_its_schema_is_said_and_kept(
    http: httpx.AsyncClient, fake: ScriptedVerifier, path: str
) -> None:
    violated = "schema violations found"
    body = ASKED[path] | {"tool_choice": "required"}
    with capture_logs() as logs:
        response = await http.post(f"/v1/{path}", json=body)
        assert response.headers[VIOLATIONS] == PLACE and "xy" in response.text
        assert [each["parts"] for each in logs if each["event"] == violated] == [[PLACE]]
        streamed = await http.post(f"/v1/{path}", json=body | {"stream": True})
        assert VIOLATIONS not in streamed.headers and "[DONE]" in streamed.text
        both = lambda: [each["parts"] for each in logs if each["event"] == violated] == [[PLACE]] * 2  # noqa: E731
        await asyncio.to_thread(eventually, both, "the check of the stream")
    fake.answer = fake.answer.replace("xy", "y")
    assert VIOLATIONS not in (await http.post(f"/v1/{path}", json=body)).headers
    fake.answer, fake.finish = fake.answer[:40], pb.FINISH_REASON_LENGTH
    assert VIOLATIONS not in (await http.post(f"/v1/{path}", json=body)).headers, "it was cut off"
