"""Any conversation that a gateway produced can be sent back to it, and rendered by the template of its model."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftwire.v1 import verifier_service_pb2 as pb
from draftwire_core.engine.text.tokenizer import Tokenizer
from gateway_service.app import make_app
from gateway_service.keys.api_keys import ApiKeys
from gateway_service.settings import GatewaySettings
from tests.harness.models import chat_templates
from tests.harness.models.chat_templates import target_with_template
from tests.harness.stand_ins.scripted_verifier import ScriptedVerifier
from tests.harness.waiting import PATIENCE
from verifier_service.reading.chat import chat_format_message
from verifier_service.reading.text import TextReader

HERMES = [
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>',
    "<tool_call>",
    "</tool_call>",
]
PARAMETERS = ["<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>\n"]
GLM = ["<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>\n"]
HARMONY = [
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
    "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant",
    '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>',
    "<|channel|>final<|message|>Warm.",
]
MODELS: dict[str, tuple[str, list[str]]] = {
    "qwen": (chat_templates.QWEN_3, HERMES),
    "no system": (
        chat_templates.GEMMA.replace("message.role }}", "'model' if message.role == 'assistant' else 'user' }}"),
        HERMES,
    ),
    "no tools": (chat_templates.WITHOUT_TOOLS, HERMES),
    "llama": (chat_templates.LLAMA_3, ['{"name": "weather", "parameters": {"city": "Rome"}}', "; "]),
    "mistral": (chat_templates.MISTRAL, ['[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome"}}]']),
    "mistral args": (chat_templates.MISTRAL_ARGS, ['[TOOL_CALLS]weather[ARGS]{"city": "Rome"}']),
    "harmony": (chat_templates.HARMONY, HARMONY),
    "qwen 3.5": (chat_templates.family("qwen3_5_think"), PARAMETERS),
    "glm": (chat_templates.family("glm4moe"), GLM),
    "gemma 4": (chat_templates.family("gemma4_v5"), ['<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|>']),
    "lfm 2": (chat_templates.family("lfm2_v2"), ["<|tool_call_start|>[weather(city='Rome')]<|tool_call_end|>"]),
    "command a": (
        chat_templates.family("command_a_tool_use"),
        [
            '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Rome"}}\n'
            "]<|END_ACTION|>"
        ],
    ),
    "falcon": (chat_templates.family("falcon_h1"), HERMES),
    "jamba": (
        chat_templates.family("jamba"),
        ['<tool_calls>[\n    {"name": "weather", "arguments": {"city": "Rome"}}\n]</tool_calls>'],
    ),
    "nemotron": (chat_templates.family("nemotron_3_nano"), PARAMETERS),
}
"""Templates, and pieces of what their models write."""
TEXTS = ["", "Well.", "\n", "<think>", "Hm", "</think>\n\n", '{"city": 3}', "é<", '"']
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS: dict[str, list[Any]] = {
    "chat": [{"type": "function", "function": WEATHER}, {"type": "function", "function": {"name": "clock"}}],
    "responses": [{"type": "function"} | WEATHER, {"type": "function", "name": "clock"}, {"type": "web_search"}],
}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FORMS: dict[str, Any] = {
    "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}},
    "responses": {"text": {"format": {"type": "json_schema", "name": "it", "schema": SCHEMA}}},
}


@dataclass(frozen=True)
class Turn:
    """What a client asks, what the model writes, and what the client does with it."""

    answer: str
    cut: bool
    tools: bool
    choice: str
    parallel: bool
    form: bool
    system: bool
    exclude_none: bool
    results: str | None
    """What tools return, if they are called; None leaves the calls without results."""
    asks_on: bool
    """Whether the user says something more."""


def turns(pieces: list[str]) -> st.SearchStrategy[list[Turn]]:
    texts = st.lists(st.sampled_from([*pieces * 2, *TEXTS]), max_size=5).map("".join)
    cut = st.tuples(texts, st.integers(0, 60)).map(lambda both: both[0][: -both[1]] if both[1] else both[0])
    turn = st.builds(
        Turn,
        answer=texts | cut,
        cut=st.booleans(),
        tools=st.booleans() | st.just(True),
        choice=st.sampled_from(["auto", "auto", "required", "none"]),
        parallel=st.booleans(),
        form=st.booleans(),
        system=st.booleans(),
        exclude_none=st.booleans(),
        results=st.sampled_from(["warm", "", '{"degrees": 20}', None]),
        asks_on=st.booleans(),
    )
    return st.lists(turn, min_size=1, max_size=3)


def common(turn: Turn, api: str) -> dict[str, Any]:
    more: dict[str, Any] = {"model": "fake"}
    if turn.tools:
        more |= {"tools": TOOLS[api], "tool_choice": turn.choice, "parallel_tool_calls": turn.parallel}
    return more | (FORMS[api] if turn.form else {})


async def chat(client: openai.AsyncOpenAI, fake: ScriptedVerifier, played: list[Turn]) -> None:
    messages: list[Any] = [{"role": "system", "content": "Be kind."}] * played[0].system
    messages.append({"role": "user", "content": "Hello."})
    for turn in [*played, played[-1]]:
        write(fake, turn)
        done = await client.chat.completions.create(messages=messages, **common(turn, "chat"))
        message = done.choices[0].message
        messages.append(message.model_dump(exclude_none=turn.exclude_none))
        if turn.results is not None:
            for call in message.tool_calls or ():
                messages.append({"role": "tool", "tool_call_id": call.id, "content": turn.results})
        if turn.asks_on:
            messages.append({"role": "user", "content": [{"type": "text", "text": "And?"}]})


async def responses(client: openai.AsyncOpenAI, fake: ScriptedVerifier, played: list[Turn]) -> None:
    items: list[Any] = [{"role": "developer", "content": "Be kind."}] * played[0].system
    items.append({"role": "user", "content": "Hello."})
    for turn in [*played, played[-1]]:
        write(fake, turn)
        done = await client.responses.create(input=items, **common(turn, "responses"))
        items += [item.model_dump(exclude_none=turn.exclude_none) for item in done.output]
        if turn.results is not None:
            for item in done.output:
                if item.type == "function_call":
                    items.append({"type": "function_call_output", "call_id": item.call_id, "output": turn.results})
        if turn.asks_on:
            items.append({"role": "user", "content": [{"type": "input_text", "text": "And?"}]})


def write(fake: ScriptedVerifier, turn: Turn) -> None:
    """Has the model write an answer."""
    fake.answer = turn.answer
    fake.finish = pb.FINISH_REASON_LENGTH if turn.cut else pb.FINISH_REASON_STOP


def load(directory: Path, name: str) -> Tokenizer:
    return Tokenizer.load(str(target_with_template(directory / "model", MODELS[name][0])))


def check(tokenizer: Tokenizer, name: str, examples: int) -> None:
    """Plays random conversations with both APIs. A request that is refused, or cannot be rendered, fails."""
    _, pieces = MODELS[name]
    reader = TextReader(tokenizer, 1 << 20, "the context", None)  # type: ignore[arg-type] # renders here, not in a pool

    with ScriptedVerifier() as fake, asyncio.Runner() as runner:
        fake.chat_format = chat_format_message(tokenizer.chat_format)
        app = make_app(GatewaySettings(verifier=(fake.address,)), ApiKeys(()))
        opened = app.router.lifespan_context(app)
        runner.run(opened.__aenter__())
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=PATIENCE)
        client = openai.AsyncOpenAI(api_key="none", base_url="http://localhost/v1", http_client=http, max_retries=0)

        @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
        @given(turns(pieces), st.sampled_from([chat, responses]))
        def run(played: list[Turn], play: Any) -> None:
            fake.requests.clear()
            runner.run(play(client, fake, played))
            for request in fake.requests:
                assert reader.rendered(request.messages)
                for message in request.messages.messages:
                    assert all(call.name in ("weather", "clock") for call in message.tool_calls)

        try:
            run()
        finally:
            runner.run(http.aclose())
            runner.run(opened.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """Tokenizers of the models of the default tier."""
    return {name: load(tmp_path_factory.mktemp("model"), name) for name in ("qwen", "no system")}


@pytest.mark.parametrize("name", ["qwen", "no system"])
def test_what_a_gateway_produced_can_be_sent_back(tokenizers: dict[str, Tokenizer], name: str) -> None:
    check(tokenizers[name], name, 8)


@pytest.mark.slow
class TestEveryTemplate:
    @pytest.mark.parametrize("name", MODELS)
    def test_what_a_gateway_produced_can_be_sent_back(self, tmp_path: Path, name: str) -> None:
        check(load(tmp_path, name), name, 150)
