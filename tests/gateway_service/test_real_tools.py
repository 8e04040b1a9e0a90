"""Conversations with tools, with OpenAI's clients and real models.

The bundled target was not trained to call tools: the grammar of a required call makes it do so.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.harness.checkout import ROOT
from tests.harness.models import chat_templates
from tests.harness.models.chat_templates import target_with_template
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.slow

MODELS = {
    "hermes": (chat_templates.HERMES, (), ()),
    "qwen": (chat_templates.QWEN_3, (), ("<tool_call>", "</tool_call>", "<think>", "</think>")),
    "llama": (chat_templates.LLAMA_3, (), ()),
    "mistral": (chat_templates.MISTRAL, ("[TOOL_CALLS]",), ()),
    "harmony": (chat_templates.HARMONY, ("<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>"), ()),
    "qwen 3.5": (chat_templates.family("qwen3_5_think"), (), ("<tool_call>", "</tool_call>", "<think>", "</think>")),
    "glm": (chat_templates.family("glm4moe"), (), ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")),
    "gemma 4": (chat_templates.family("gemma4_v5"), ("<|tool_call>", "<tool_call|>", '<|"|>', "<channel|>"), ()),
    "lfm 2": (chat_templates.family("lfm2_v2"), ("<|tool_call_start|>", "<|tool_call_end|>"), ()),
    "jamba": (chat_templates.family("jamba"), (), ()),
    "no tools": (chat_templates.WITHOUT_TOOLS, (), ()),
    "no system": (
        chat_templates.GEMMA.replace("message.role }}", "'model' if message.role == 'assistant' else 'user' }}"),
        (),
        (),
    ),
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FORECAST = {"name": "forecast", "description": "Tells the weather.", "parameters": PARAMETERS, "strict": True}
TOOLS: Any = [{"type": "function", "function": FORECAST}, {"type": "function", "function": {"name": "clock"}}]
MESSAGES: Any = [{"role": "user", "content": "How is the weather?"}]
ASKED: Any = {"model": "target", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 400, "seed": 3}
ASKED |= {"logit_bias": {"4095": 100}}
"""Ends reasoning at once, whose end is the last token of the models that have any: this one would never end it."""
NAMED: Any = {"type": "function", "function": {"name": "forecast"}}


@pytest.fixture(scope="module", params=MODELS)
def calling(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, module_services: Services
) -> ServiceProcess:
    """A gateway in front of a verifier whose chat template knows tools."""
    place = tmp_path_factory.mktemp("calling")
    template, special, added = MODELS[request.param]
    model = target_with_template(place / "target", template, special, added)
    verifier = module_services.verifier(str(model), "--drafter", "local:ngram")
    return module_services.gateway("--verifier", verifier.address).serving()
    verifier.kill()


@pytest.fixture
def client(calling: ServiceProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url=f"{calling.url}/v1", max_retries=0, timeout=PATIENCE) as made:
        yield made


def check_forecast(arguments: str) -> None:
    found = json.loads(arguments)
    assert set(found) == {"city", "days"} and found["city"] in ("Rome", "Oslo") and 1 <= found["days"] <= 9


def test_a_conversation_with_a_tool(client: openai.OpenAI) -> None:
    done = client.chat.completions.create(**ASKED, tool_choice=NAMED)
    message = done.choices[0].message
    assert message.tool_calls, message
    (call,) = message.tool_calls or ()
    assert call.type == "function" and call.function.name == "forecast"
    check_forecast(call.function.arguments)
    assert not message.content
    messages = [*MESSAGES, message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "warm"}]
    answer = client.chat.completions.create(**ASKED | {"messages": messages, "max_tokens": 8}, tool_choice="none")
    assert answer.usage is not None and done.usage is not None
    again = client.chat.completions.create(**ASKED | {"messages": messages}, tool_choice=NAMED)
    check_forecast((again.choices[0].message.tool_calls or ())[0].function.arguments)  # type: ignore[union-attr]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_drafts_and_streams_change_no_call(client: openai.OpenAI, temperature: float, choice: Any) -> None:
    asked = ASKED | {"tool_choice": choice, "temperature": temperature, "parallel_tool_calls": False}
    plain = client.chat.completions.create(**asked, extra_body={"speculation": {"enabled": False}})
    drafted = client.chat.completions.create(**asked, extra_body={"speculation": {"planning": "always"}})
    (expected,), (found,) = plain.choices[0].message.tool_calls or (), drafted.choices[0].message.tool_calls or ()
    assert expected.function == found.function  # type: ignore[union-attr]
    told: Any = drafted
    assert told.speculation["accepted_tokens"] > 0
    with client.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0]
    (again,) = streamed.message.tool_calls or ()
    assert (again.function.name, again.function.arguments) == (
        expected.function.name,  # type: ignore[union-attr]
        expected.function.arguments,  # type: ignore[union-attr]
    )
    assert streamed.finish_reason == plain.choices[0].finish_reason == "tool_calls"


def test_the_responses_api_calls_the_same_tool(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(**ASKED, tool_choice=NAMED)
    asked: Any = {
        "model": "target",
        "input": MESSAGES,
        "tools": [{"type": "function", **FORECAST}, {"type": "function", "name": "clock"}],
        "tool_choice": {"type": "function", "name": "forecast"},
        "max_output_tokens": 400,
        "extra_body": {"seed": 3, "logit_bias": ASKED["logit_bias"]},
    }
    done = client.responses.create(**asked)
    (call,) = [item for item in done.output if item.type == "function_call"]
    (expected,) = chat.choices[0].message.tool_calls or ()
    assert call.arguments == expected.function.arguments  # type: ignore[union-attr]
    *_, last = client.responses.create(**asked, stream=True)
    assert last.type == "response.completed"
    assert [item.to_dict().get("arguments") for item in last.response.output][-1] == call.arguments
    items: Any = [*MESSAGES, *(item.to_dict() for item in done.output)]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "warm"})
    again = client.responses.create(**asked | {"input": items})
    check_forecast(next(item.arguments for item in again.output if item.type == "function_call"))


def test_a_schema_that_cannot_be_enforced_is_named(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 1}}, "required": ["a"]}
    tools: Any = [{"type": "function", "function": FORECAST | {"parameters": schema}}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASKED | {"tools": tools}, tool_choice="required")
    assert caught.value.param == "tools"


def test_the_sdk_renders_the_same_conversation(client: openai.OpenAI, calling: ServiceProcess) -> None:
    done = client.chat.completions.create(**ASKED | {"max_tokens": 1})
    fewer = client.chat.completions.create(**ASKED | {"max_tokens": 1}, tool_choice="none")
    assert done.usage is not None and fewer.usage is not None
    assert done.usage.prompt_tokens > fewer.usage.prompt_tokens + 20


FORM: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "it",
        "schema": {
            "type": "object",
            "properties": {"warm": {"type": "boolean"}},
            "required": ["warm"],
            "additionalProperties": False,
        },
    },
}


def test_a_call_or_an_answer_of_the_form(client: openai.OpenAI) -> None:
    # One call at most: this model would call without end.
    asked = ASKED | {"response_format": FORM, "max_tokens": 700, "parallel_tool_calls": False}
    reasons = set()
    for seed in range(3):
        done = client.chat.completions.create(**asked | {"seed": seed})
        (choice,) = done.choices
        reasons.add(choice.finish_reason)
        if choice.finish_reason == "tool_calls":
            assert not choice.message.content
        elif choice.finish_reason == "stop":
            assert set(json.loads(choice.message.content or "")) == {"warm"}
    assert reasons & {"tool_calls", "stop"}, "a whole answer has come"


def test_a_call_that_is_cut_off_anywhere(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASKED, tool_choice=NAMED)
    assert whole.usage is not None
    (expected,) = whole.choices[0].message.tool_calls or ()
    for most in range(1, whole.usage.completion_tokens, 3):
        done = client.chat.completions.create(**ASKED | {"max_tokens": most}, tool_choice=NAMED).choices[0]
        assert done.finish_reason == "length" and not done.message.content
        for call in done.message.tool_calls or ():
            assert call.function.name == "forecast"  # type: ignore[union-attr]
            assert expected.function.arguments.startswith(call.function.arguments)  # type: ignore[union-attr]


def test_the_javascript_client(calling: ServiceProcess, client: openai.OpenAI) -> None:
    """openai comes from npm, see test_real_services."""
    if shutil.which("node") is None or not (ROOT / "node_modules" / "openai").exists():
        pytest.skip("OpenAI's JavaScript client is not installed: npm ci")
    expected = client.chat.completions.create(**ASKED, tool_choice=NAMED).choices[0].message.tool_calls
    script = Path(__file__).with_name("openai_tools.mjs")
    done = subprocess.run(
        ["node", script, f"{calling.url}/v1", json.dumps(ASKED | {"tool_choice": NAMED})],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert expected is not None
    assert told["whole"] == told["streamed"] == [expected[0].to_dict()["function"]]
    check_forecast(json.dumps(told["ran"]))  # of another prompt, with this tool alone
