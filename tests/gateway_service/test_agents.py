"""An agent framework at the gateway: its loop calls a tool and reads its result, with a real model.

The bundled target was not trained to call tools: the grammar of a required call makes it do so. So the loop takes the
same course whenever its requests have the same seed. Other frameworks are in test_clients.
"""

from typing import Any, ClassVar

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


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, module_services: Services) -> str:
    """A gateway in front of a verifier whose chat template knows tools."""
    place = tmp_path_factory.mktemp("agents")
    model = target_with_template(place / "target", chat_templates.HERMES)
    verifier = module_services.verifier(str(model), "--drafter", "local:ngram")
    return module_services.gateway("--verifier", verifier.address).url + "/v1"
    verifier.kill()


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
