"""The gateway in front of a real verifier with a drafter, with OpenAI's own clients."""

import asyncio
import hashlib
import json
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from draftwire import Client
from tests.harness.checkout import ROOT
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.suite.skipped import skip_without
from tests.harness.waiting import PATIENCE, eventually

pytestmark = pytest.mark.processes

PROMPT = "def read_config(path):\n"
MESSAGES: Any = [{"role": "user", "content": "write a function"}]


@pytest.fixture
def sdk(verifier: ServiceProcess, good_drafter: str) -> Iterator[Client]:
    """A client of the verifier behind the gateway, with its drafter attached."""
    with Client(verifier.address, timeout=PATIENCE) as made:
        made.drafters.attach(good_drafter, "good")
        yield made
        made.drafters.detach("good")


@pytest.fixture
def client(real_gateway: ServiceProcess, sdk: Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url=f"{real_gateway.url}/v1", max_retries=0, timeout=PATIENCE) as made:
        yield made


def test_the_model(client: openai.OpenAI, sdk: Client) -> None:
    (model,) = client.models.list().data
    info = sdk.model_info()
    assert model.id == info.model_id
    assert client.models.retrieve(model.id).id == model.id
    done = client.completions.create(model=model.id, prompt=PROMPT, max_tokens=2)
    both = hashlib.sha256(f"{info.fingerprint} {info.numerics}".encode()).hexdigest()
    assert info.numerics and done.system_fingerprint == f"fp_{both[:16]}"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_completions_are_the_sdks(client: openai.OpenAI, sdk: Client, temperature: float) -> None:
    expected = sdk.generate(PROMPT, max_tokens=40, temperature=temperature, seed=5)
    asked: Any = {"model": "target", "prompt": PROMPT, "max_tokens": 40, "temperature": temperature, "seed": 5}
    done = client.completions.create(**asked)
    chunks = list(client.completions.create(stream=True, **asked))
    assert done.choices[0].text == "".join(chunk.choices[0].text for chunk in chunks) == expected.text
    assert done.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == expected.finish_reason
    assert done.usage is not None and done.usage.completion_tokens == len(expected.token_ids)
    told: Any = done
    assert told.speculation["lossless"] is True
    assert 0 < told.speculation["steps"] <= done.usage.completion_tokens
    plain = client.completions.create(**asked, extra_body={"speculation": {"enabled": False}})
    assert plain.choices[0].text == expected.text
    unaided: Any = plain
    assert unaided.speculation["draft_tokens"] == 0


async def test_chat_is_the_sdks(real_gateway: ServiceProcess, sdk: Client) -> None:
    expected = [sdk.chat(MESSAGES, max_tokens=24, seed=seed) for seed in (5, 6)]
    asked: Any = {"model": "target", "messages": MESSAGES, "max_tokens": 24, "seed": 5, "n": 2}
    async with openai.AsyncOpenAI(api_key="none", base_url=f"{real_gateway.url}/v1", max_retries=0) as client:
        done = await client.chat.completions.create(**asked)
        texts = ["", ""]
        async for chunk in await client.chat.completions.create(stream=True, **asked):
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert [choice.message.content for choice in done.choices] == texts == [each.text for each in expected]


def test_a_prompt_alone_is_scored_as_with_a_token_after_it(client: openai.OpenAI) -> None:
    asked: Any = {"model": "target", "prompt": PROMPT, "logprobs": 2, "echo": True, "temperature": 0}
    alone = client.completions.create(**asked, max_tokens=0)
    longer = client.completions.create(**asked, max_tokens=1)
    told, more = alone.choices[0].logprobs, longer.choices[0].logprobs
    assert alone.choices[0].text == PROMPT and told is not None and more is not None
    assert told.tokens and told.token_logprobs and more.tokens and more.token_logprobs
    assert len(more.tokens) == len(told.tokens) + 1
    assert (told.tokens, told.token_logprobs) == (more.tokens[:-1], more.token_logprobs[:-1])
    assert alone.usage is not None and alone.usage.completion_tokens == 0


def test_stop_strings(client: openai.OpenAI, sdk: Client) -> None:
    whole = sdk.generate(PROMPT, max_tokens=40, temperature=0.0).text
    word = whole.split()[2]
    done: Any = client.completions.create(
        model="target", prompt=PROMPT, max_tokens=40, temperature=0.0, stop=[word, "\0never"]
    )
    assert done.choices[0].text == whole[: whole.index(word)]
    assert (done.choices[0].finish_reason, done.choices[0].stop_reason) == ("stop", word)


def test_a_prediction_is_counted(client: openai.OpenAI, sdk: Client) -> None:
    text = sdk.chat(MESSAGES, max_tokens=30, temperature=0.0).text
    done = client.chat.completions.create(
        model="target", messages=MESSAGES, max_tokens=30, temperature=0.0,
        prediction={"type": "content", "content": text}, extra_body={"speculation": {"drafters": 1}},
    )  # fmt: skip
    assert done.choices[0].message.content == text
    assert done.usage is not None and done.usage.completion_tokens_details is not None
    assert (done.usage.completion_tokens_details.accepted_prediction_tokens or 0) > 0


LARGE = "def f(x):\n    return x\n" * 100_000
TALK = [{"role": "user", "content": LARGE}]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": LARGE}, "prompt"),
        ("/v1/chat/completions", {"messages": TALK}, "messages"),
        ("/tokenize", {"prompt": LARGE}, "prompt"),
        ("/tokenize", {"messages": TALK}, "messages"),
    ],
)
def test_a_text_that_cannot_fit_is_named_as_the_client_sent_it(
    real_gateway: ServiceProcess, path: str, body: dict[str, Any], param: str
) -> None:
    response = httpx.post(f"{real_gateway.url}{path}", json=body, timeout=PATIENCE)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"], error["param"]) == (
        400, "invalid_request_error", "context_length_exceeded", param,
    ), error  # fmt: skip
    assert f"has {len(LARGE)} bytes" in error["message"] or param == "messages"


def test_tokens(real_gateway: ServiceProcess, client: openai.OpenAI, sdk: Client) -> None:
    told = client.post(f"{real_gateway.url}/tokenize", cast_to=object, body={"prompt": PROMPT})
    tokens = sdk.tokenize(PROMPT, add_special_tokens=True)
    assert told == {
        "count": len(tokens), "max_model_len": sdk.model_info().limits.max_sequence_tokens, "tokens": tokens,
        "token_strs": None,
    }  # fmt: skip
    asked: Any = {"messages": MESSAGES, "return_token_strs": True}
    chat: Any = client.post(f"{real_gateway.url}/tokenize", cast_to=object, body=asked)
    assert chat["tokens"] == sdk.tokenize(messages=MESSAGES) and len(chat["token_strs"]) == chat["count"]
    back = client.post(f"{real_gateway.url}/detokenize", cast_to=object, body={"tokens": tokens})
    assert back == {"prompt": sdk.detokenize(tokens)}
    by_ids = client.completions.create(model="target", prompt=tokens, max_tokens=8, temperature=0.0)
    assert by_ids.choices[0].text == sdk.generate(tokens, max_tokens=8, temperature=0.0).text


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"prompt": "a", "stop": [""]}, "stop[0]"),
        ({"prompt": [4096]}, "prompt[0]"),
        ({"prompt": "a", "extra_body": {"speculation": {"drafter": "nobody"}}}, "speculation.drafter"),
    ],
)
def test_errors_name_the_field(client: openai.OpenAI, asked: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(model="target", **asked)
    assert caught.value.status_code in (400, 404)
    assert caught.value.param == param


def test_a_prompt_beyond_the_context(client: openai.OpenAI, sdk: Client) -> None:
    longest = sdk.model_info().limits.max_sequence_tokens
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="target", prompt=[5] * (longest + 1))
    assert caught.value.code == "context_length_exceeded"
    assert f"This model's maximum context length is {longest} tokens." in str(caught.value)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_slots(
    verifier: ServiceProcess, services: Services, sdk: Client, stream: bool
) -> None:
    gateway = services.gateway("--verifier", verifier.address)
    body = {"prompt": PROMPT, "max_tokens": 1800, "ignore_eos": True, "stream": stream, "n": 2}
    content = json.dumps(body).encode()
    with socket.create_connection(gateway.socket_address) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n"
        connection.sendall(head.encode() + b"content-type: application/json\r\n\r\n" + content)
        if stream:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        eventually(lambda: sdk.model_info().engine.running_sequences == 2, "both choices run")
    eventually(lambda: sdk.model_info().engine.used_slots == 0, "the slots are free")
    eventually(lambda: sdk.drafters.list()[0].sequences == 0, "the drafter's sequences are closed")


async def test_many_at_once_are_what_each_is_alone(real_gateway: ServiceProcess, sdk: Client) -> None:
    expected = [sdk.generate(PROMPT, max_tokens=16, seed=seed).text for seed in range(6)]
    async with openai.AsyncOpenAI(api_key="none", base_url=f"{real_gateway.url}/v1", max_retries=0) as client:
        calls = (
            client.completions.create(model="target", prompt=PROMPT, max_tokens=16, seed=seed) for seed in range(6)
        )
        assert [done.choices[0].text for done in await asyncio.gather(*calls)] == expected


def test_the_javascript_client(real_gateway: ServiceProcess, sdk: Client) -> None:
    """openai comes from npm; `npm ci` runs here if it has not run yet."""
    skip_without("node", "npm")
    if not (ROOT / "node_modules" / "openai").exists():
        install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run(install, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE)
    script = ROOT / "tests" / "gateway_service" / "openai_client.mjs"
    done = subprocess.run(
        ["node", script, f"{real_gateway.url}/v1", PROMPT], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    expected = sdk.generate(PROMPT, max_tokens=20, seed=5).text
    answer = sdk.chat(MESSAGES, max_tokens=20, seed=5).text
    assert told["completion"] == told["streamed"] == expected
    assert told["chat"] == told["chatStreamed"] == answer
    assert told["usage"]["completion_tokens"] == 20 or told["reason"] == "stop"
    assert told["error"] == {"status": 400, "param": "temperature", "type": "invalid_request_error"}
    assert told["models"] == [sdk.model_info().model_id]
