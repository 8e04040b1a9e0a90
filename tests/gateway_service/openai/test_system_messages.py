"""System messages at the start of a conversation are one."""

from typing import Any

import httpx

from gateway_service.openai.chat_message import merged
from tests.harness.stand_ins.scripted_verifier import ScriptedVerifier


def turn(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_leading_ones_are_merged() -> None:
    found = merged([turn("system", "a"), turn("system", ""), turn("system", "b"), turn("user", "c")])
    assert found == [turn("system", "a\n\nb"), turn("user", "c")]


def test_others_stay() -> None:
    turns = [turn("system", "a"), turn("user", "b"), turn("system", "c"), turn("system", "d")]
    assert merged(turns) == turns
    assert merged([]) == []


async def test_instructions_and_developer_messages_come_together(
    http: httpx.AsyncClient, fake: ScriptedVerifier
) -> None:
    items = [{"role": "developer", "content": "be kind"}, {"role": "user", "content": "hi"}]
    response = await http.post("/v1/responses", json={"instructions": "be brief", "input": items})
    assert response.status_code == 200, response.text
    response = await http.post(
        "/v1/chat/completions", json={"messages": [{"role": "system", "content": "be brief"}, *items]}
    )
    assert response.status_code == 200, response.text
    for request in fake.requests:
        told = [(each.role, each.content) for each in request.messages.messages]
        assert told == [("system", "be brief\n\nbe kind"), ("user", "hi")]
