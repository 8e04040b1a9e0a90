"""Chat completions with OpenAI's client and a verifier without a model."""

from typing import Any

import httpx
import openai
import pytest

from tests.harness.stand_ins.fake_verifier import expected_ids, text_of
from tests.harness.stand_ins.telling_verifier import TellingVerifier

MESSAGES: Any = [{"role": "user", "content": "hello"}]
PROMPT_IDS = [ord(letter) for letter in "userhello"]


async def test_an_answer(client: openai.AsyncOpenAI) -> None:
    done = await client.chat.completions.create(model="fake", messages=MESSAGES, max_completion_tokens=5, seed=3)
    assert done.object == "chat.completion"
    message = done.choices[0].message
    assert (message.role, message.content, message.refusal) == (
        "assistant",
        text_of(expected_ids(3, 5, PROMPT_IDS)),
        None,
    )
    assert done.choices[0].finish_reason == "length" and done.choices[0].logprobs is None
    assert done.usage is not None and done.usage.prompt_tokens == len(PROMPT_IDS)
    assert done.usage.prompt_tokens_details is not None and done.usage.prompt_tokens_details.cached_tokens == 0
    assert done.usage.completion_tokens_details is not None
    assert done.usage.completion_tokens_details.accepted_prediction_tokens == 0


async def test_the_parts_of_messages(client: openai.AsyncOpenAI, fake: TellingVerifier) -> None:
    messages: Any = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "to "}, {"type": "text", "text": "you"}], "name": "me"},
        {"role": "assistant", "content": "and me", "refusal": None},
    ]
    await client.chat.completions.create(model="fake", messages=messages, max_tokens=1)
    sent = [(message.role, message.content) for message in fake.requests[0].messages.messages]
    assert sent == [("system", "be kind"), ("user", "to you"), ("assistant", "and me")]


async def test_answers_without_a_text_can_be_sent_back(http: httpx.AsyncClient, fake: TellingVerifier) -> None:
    """Clients drop empty contents, and answers of OpenAI's models in the history may be refusals."""
    silent: list[dict[str, Any]] = [{"content": None}, {}, {"content": None, "reasoning_content": "Hm"}]
    refusing: list[dict[str, Any]] = [
        {"content": None, "refusal": "No."},
        {"content": [{"type": "refusal", "refusal": "No."}]},
        {"content": [{"type": "text", "text": "N"}, {"type": "refusal", "refusal": "o."}], "refusal": None},
    ]
    for answers, text in ((silent, ""), (refusing, "No.")):
        for answer in answers:
            messages = [*MESSAGES, {"role": "assistant"} | answer, *MESSAGES]
            response = await http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
            assert response.status_code == 200, response.text
            assert fake.requests[-1].messages.messages[1].content == text
    parts = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    response = await http.post("/v1/responses", json={"input": [*MESSAGES, parts, *MESSAGES], "max_output_tokens": 1})
    assert response.status_code == 200, response.text
    assert fake.requests[-1].messages.messages[1].content == "No."


async def test_a_stream(client: openai.AsyncOpenAI) -> None:
    contents, roles, reasons = {0: "", 1: ""}, {}, {}
    stats: list[Any] = []
    stream = await client.chat.completions.create(
        model="fake", messages=MESSAGES, max_tokens=7, seed=3, n=2, stream=True
    )
    async for chunk in stream:
        assert chunk.object == "chat.completion.chunk" and "usage" not in chunk.to_dict()
        assert len(chunk.choices) == 1
        told: Any = chunk
        stats += [told.speculation] if getattr(told, "speculation", None) else []
        choice = chunk.choices[0]
        contents[choice.index] += choice.delta.content or ""
        roles |= {choice.index: choice.delta.role} if choice.delta.role else {}
        reasons |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
    assert contents == {i: text_of(expected_ids(3 + i, 7, PROMPT_IDS)) for i in (0, 1)}
    assert roles == {0: "assistant", 1: "assistant"}
    assert reasons == {0: "length", 1: "length"}
    assert len(stats) == 1 and stats[0]["num_drafts"] == stats[0]["steps"] == 8


async def test_the_usage_of_a_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="fake", messages=MESSAGES, max_tokens=7, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 7
    assert all("usage" in chunk.to_dict() and chunk.usage is None for chunk in chunks[:-1])


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities(client: openai.AsyncOpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "fake", "messages": MESSAGES, "max_tokens": 4, "seed": 3}
    asked |= {"logprobs": True, "top_logprobs": 2}
    if stream:
        choices: Any = [c.choices[0] async for c in await client.chat.completions.create(stream=True, **asked)]
    else:
        choices = (await client.chat.completions.create(**asked)).choices
    told = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    ids = expected_ids(3, 4, PROMPT_IDS)
    assert [token.token for token in told] == [chr(token_id) for token_id in ids]
    assert [token.bytes for token in told] == [[token_id] for token_id in ids]
    assert {token.logprob for token in told} == {-0.5}
    assert [[top.token for top in token.top_logprobs] for token in told] == [[chr(t), chr(t + 1)] for t in ids]


async def test_no_length_goes_on_to_the_end_of_the_context(http: httpx.AsyncClient, fake: TellingVerifier) -> None:
    await http.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": None})
    assert not fake.requests[0].HasField("max_tokens")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].id"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"logprobs": 3}, "logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"prediction": {"type": "content", "content": 3}}, "prediction.content"),
        ({"speculation": {"drafer": "x"}}, "speculation.drafer"),
        ({"speculation": {"drafters": 0}}, "speculation.drafters"),
        ({"speculation": {"acceptance": "always"}}, "speculation.acceptance"),
        (
            {"speculation": {"prediction": "x"}, "prediction": {"type": "content", "content": "x"}},
            "speculation.prediction",
        ),
    ],
)
async def test_what_is_not_served(http: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    response = await http.post("/v1/chat/completions", json={"messages": MESSAGES} | body)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param), error
    assert param in error["message"]


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
async def test_parts_that_are_no_text_are_refused_by_their_type(http: httpx.AsyncClient, kind: str) -> None:
    content = [{"type": "text", "text": "What is this?"}, {"type": kind, kind: {"url": "https://example.com/cat.png"}}]
    response = await http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]})
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": f"messages[0].content[1].type: parts of type {kind} are not supported: "
        "models are served for text alone",
        "type": "invalid_request_error",
        "param": "messages[0].content[1].type",
        "code": "unsupported_parameter",
    }


@pytest.mark.parametrize("body", [{"tools": []}, {"tools": None}, {"tool_choice": "none"}, {"modalities": ["text"]}])
async def test_what_changes_nothing_is_served(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    response = await http.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 1} | body)
    assert response.status_code == 200, response.text
