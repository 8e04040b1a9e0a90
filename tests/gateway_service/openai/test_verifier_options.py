"""Log-probabilities, structured outputs and logit changes through the gateway, in front of a real verifier."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from draftwire import Client
from tests.harness.services.service_process import ServiceProcess

pytestmark = pytest.mark.processes

PROMPT = "def read_config(path):\n"
MESSAGES: Any = [{"role": "user", "content": "write a function"}]


@pytest.fixture
def sdk(verifier: ServiceProcess) -> Iterator[Client]:
    with Client(verifier.address, timeout=60) as made:
        yield made


@pytest.fixture
def client(real_gateway: ServiceProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url=f"{real_gateway.url}/v1", max_retries=0, timeout=60) as made:
        yield made


def test_log_probabilities(client: openai.OpenAI) -> None:
    done = client.completions.create(
        model="target", prompt=PROMPT, max_tokens=6, temperature=0.0, logprobs=3, echo=True
    )
    told = done.choices[0].logprobs
    assert told is not None and told.tokens and told.token_logprobs and told.top_logprobs and told.text_offset
    assert done.choices[0].text.startswith(PROMPT) and told.token_logprobs[0] is None
    assert "".join(told.tokens) == done.choices[0].text
    for offset, token in zip(told.text_offset, told.tokens, strict=True):
        assert done.choices[0].text[offset:].startswith(token)
    for chosen, top in zip(told.token_logprobs[-6:], told.top_logprobs[-6:], strict=True):
        assert chosen is not None and top is not None and chosen == max(top.values())
    answer = client.chat.completions.create(
        model="target", messages=MESSAGES, max_tokens=5, temperature=0.0, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs and answer.choices[0].logprobs.content
    assert content and len(content) == 5 and all(len(token.top_logprobs) == 2 for token in content)
    assert b"".join(bytes(token.bytes or []) for token in content).decode(errors="replace") == (
        answer.choices[0].message.content
    )


def test_structured_output(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema |= {"additionalProperties": False}
    answer = client.chat.completions.create(
        model="target", messages=MESSAGES, max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "ok", "schema": schema}},
    )  # fmt: skip
    assert set(json.loads(answer.choices[0].message.content or "")) == {"ok"}
    choice = client.completions.create(
        model="target", prompt=PROMPT, extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
    )
    assert choice.choices[0].text in ("yes", "no")


def test_penalties_and_bans(client: openai.OpenAI, sdk: Client) -> None:
    asked: Any = {"model": "target", "prompt": PROMPT, "max_tokens": 12, "temperature": 0.0}
    first = sdk.generate(PROMPT, max_tokens=12, temperature=0.0).token_ids[0]
    banned = client.completions.create(**asked, logit_bias={str(first): -100})
    assert sdk.tokenize(banned.choices[0].text)[:1] != [first]
    stopped: Any = client.completions.create(**asked, extra_body={"stop_token_ids": [first]})
    assert (stopped.choices[0].text, stopped.choices[0].stop_reason) == ("", first)
    penalized = client.completions.create(**asked, frequency_penalty=2.0, presence_penalty=2.0)
    assert penalized.choices[0].text
