"""Agent frameworks at the gateway: their loops call a tool and read its result, with a real model.

The bundled target was not trained to call tools: the grammar of a required call makes it do so. So a loop takes the
same course whenever its requests have the same seed.
"""

import asyncio
import json
from typing import Any, ClassVar

import openai
import pytest
import smolagents

from tests.harness.models import chat_templates
from tests.harness.models.chat_templates import target_with_template
from tests.harness.services.services import Services
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.slow

PLAIN = {"enabled": False}
FORCED = {"planning": "always"}
CITIES = ("Rome", "Oslo")
ENDING: Any = {"min_tokens": 8, "logit_bias": {"0": 100}}
"""Ends a text after 8 tokens: this model would never end it."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, module_services: Services) -> str:
    """A gateway in front of a verifier whose chat template knows tools."""
    place = tmp_path_factory.mktemp("agents")
    model = target_with_template(place / "target", chat_templates.HERMES)
    verifier = module_services.verifier(str(model), "--drafter", "local:ngram")
    return module_services.gateway("--verifier", verifier.address).url + "/v1"
    verifier.kill()


@pytest.mark.parametrize("kind", ["OpenAIChatCompletionsModel", "OpenAIResponsesModel"])
def test_openai_agents(url: str, kind: str) -> None:
    """The first turn has to call the tool; then the framework leaves the choice to the model, which writes a text."""
    agents = pytest.importorskip("agents", reason="OpenAI's agents are not installed: openai-agents")
    agents.set_tracing_disabled(True)
    asked: list[tuple[str, int]] = []

    async def forecast(_: Any, arguments: str) -> str:
        found = json.loads(arguments)
        asked.append((found["city"], found["days"]))
        return "warm"

    schema = {
        "type": "object",
        "properties": {"city": {"enum": list(CITIES)}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    tool = agents.FunctionTool("forecast", "Tells the weather.", schema, forecast, strict_json_schema=True)

    async def run(speculation: dict[str, Any]) -> Any:
        async with openai.AsyncOpenAI(api_key="none", base_url=url, max_retries=0, timeout=PATIENCE) as client:
            settings = agents.ModelSettings(
                tool_choice="forecast", temperature=0.8, parallel_tool_calls=False,
                extra_body={"seed": 3, "speculation": speculation, **ENDING},
            )  # fmt: skip
            model = getattr(agents, kind)("target", client)
            agent = agents.Agent("forecaster", instructions="Be brief.", model=model, model_settings=settings)
            agent.tools = [tool]
            return await agents.Runner.run(agent, "How is the weather?", max_turns=4)

    plain, drafted = (asyncio.run(run(each)) for each in (PLAIN, FORCED))
    assert len(asked) == 2 and asked[0] == asked[1]
    assert asked[0][0] in CITIES and 1 <= asked[0][1] <= 9
    assert plain.final_output and plain.final_output == drafted.final_output
    assert [each.type for each in plain.new_items] == ["tool_call_item", "tool_call_output_item", "message_output_item"]
    assert len(drafted.raw_responses) == 2


def test_smolagents(url: str) -> None:
    """The framework wants a call in each step: first that of the tool, then that of the answer."""
    asked: list[str] = []

    class Forecast(smolagents.Tool):  # type: ignore[misc]
        name = "forecast"
        description = "Tells the weather."
        inputs: ClassVar = {"city": {"type": "string", "description": "Where.", "enum": list(CITIES)}}
        output_type = "string"

        def forward(self, city: str) -> str:
            asked.append(city)
            return "warm"

    class Answer(smolagents.FinalAnswerTool):  # type: ignore[misc]
        inputs: ClassVar = {"answer": {"type": "string", "description": "It.", "enum": ["warm", "cold"]}}

    def run(speculation: dict[str, Any]) -> list[Any]:
        model = smolagents.OpenAIModel(
            "target", api_base=url, api_key="none", client_kwargs={"max_retries": 0, "timeout": PATIENCE},
            temperature=0.8, seed=3, extra_body={"speculation": speculation}, tool_choice=_named("forecast"),
        )  # fmt: skip

        def next_step(_: Any) -> None:
            model.kwargs["tool_choice"] = _named("final_answer")

        agent = smolagents.ToolCallingAgent(
            [Forecast(), Answer()], model, max_steps=3, verbosity_level=smolagents.LogLevel.OFF,
            step_callbacks=[next_step],
        )  # fmt: skip
        assert agent.run("How is the weather?") in ("warm", "cold")
        task, *steps = agent.memory.steps
        assert task.task == "How is the weather?"
        return steps

    plain, drafted = (run(each) for each in (PLAIN, FORCED))
    assert len(asked) == 2 and asked[0] == asked[1] and asked[0] in CITIES
    for first, last in (plain, drafted):
        assert (first.tool_calls[0].name, first.observations) == ("forecast", "warm")
        assert last.is_final_answer and last.tool_calls[0].name == "final_answer"
        assert first.error is last.error is None


def _named(function: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": function}}
