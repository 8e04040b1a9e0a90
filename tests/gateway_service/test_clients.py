"""Clients of OpenAI's API, by their own packages and in the modes that they have by default, in front of a real model.

Their programs are in `clients`, the versions of their packages in `clients/packages`. The bundled target was not
trained to call tools or to write forms: grammars make it do so.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.harness.client_packages import node_packages, python_packages, run_client
from tests.harness.models import chat_templates
from tests.harness.models.chat_templates import target_with_template
from tests.harness.services.services import Services

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).with_name("clients")
TEMPLATES = {
    "hermes": chat_templates.HERMES,
    "no tools": chat_templates.WITHOUT_TOOLS,
    "no system": chat_templates.GEMMA,  # nor tools
}
BEGIN_AND_END = "91,0"
"""The token that begins an object in JSON, and the one that ends an answer."""
CITIES = ("Rome", "Oslo")
LONGEST = 2048
"""Tokens of the model's context."""


@pytest.fixture(scope="module", params=TEMPLATES)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, module_services: Services) -> str:
    """A gateway in front of a verifier whose chat template knows tools, or no tools, or not even system messages."""
    model = target_with_template(tmp_path_factory.mktemp("clients") / "target", TEMPLATES[request.param])
    verifier = module_services.verifier(str(model), "--drafter", "local:ngram")
    return module_services.gateway("--verifier", verifier.address).url
    verifier.kill()


def run(name: str, url: str, *more: str, **variables: str) -> dict[str, Any]:
    """Returns what a program in Python prints. name: of the client. more: further arguments."""
    python = python_packages(PROGRAMS / "packages" / f"{name}.txt")
    command = [python, "-E", PROGRAMS / f"{name}_client.py", url, BEGIN_AND_END, *more]
    told: dict[str, Any] = run_client(command, **variables)
    return told


def check_weather(found: Any) -> None:
    assert set(found) == {"city", "sky", "winds", "code"}
    assert found["city"] in CITIES and set(found["winds"]) <= {"north", "south"} and 1 <= len(found["winds"]) <= 2
    sky = found["sky"]
    assert set(sky) == {"kind", "hours"} if sky["kind"] == "sun" else sky["heavy"] in (True, False, None)
    assert re.fullmatch("[A-Z]{2}", found["code"])


def check_forecast(found: Any) -> None:
    assert set(found) == {"city", "days"} and found["city"] in CITIES and 1 <= found["days"] <= 9


def check(told: dict[str, Any], *calls: str) -> None:
    """Checks answers. calls: names of those that have the arguments of the tool; the others have the form."""
    for name, found in told.items():
        (check_forecast if name in calls else check_weather)(found)


def test_openai(url: str) -> None:
    told = run("openai", url)
    check(told, "chat call", "response call")
    assert told["chat form"] == told["chat form streamed"] == told["response form"] == told["response form streamed"]
    assert told["chat call"] == told["response call"]
    assert told["chat form after a call"] == told["response form after a call"]


def test_openai_agents(url: str) -> None:
    """The first turn has to call the tool; then the framework leaves the choice to the model, beside a form."""
    told = run("openai_agents", url, OPENAI_AGENTS_DISABLE_TRACING="1")
    assert len(told) == 6
    first, *others = told.values()
    assert others == [first] * 5
    check_weather(first["output"])
    assert first["asked"]["city"] in CITIES
    assert first["items"] == ["tool_call_item", "tool_call_output_item", "message_output_item"]


def test_langchain(url: str) -> None:
    told = run("langchain", url)
    half = len(told) // 2
    chat, responses = list(told.values())[:half], list(told.values())[half:]
    assert chat == responses
    assert told.pop("chat call after a call") in ("forecast", "Weather")
    del told["responses call after a call"]
    check(told, *(f"{api} call{streamed}" for api in ("chat", "responses") for streamed in ("", " streamed")))
    assert told["chat call"] == told["chat call streamed"]


def test_litellm(url: str) -> None:
    told = run("litellm", url, str(LONGEST), LITELLM_LOCAL_MODEL_COST_MAP="true")  # prices are on the internet
    assert told.pop("full") == [True] * 6
    assert told.pop("after a call") in ("stop", "length", "tool_calls") and told.pop("response")
    check(told, "call", "call streamed")
    assert told["call"] == told["call streamed"]


def test_instructor(url: str) -> None:
    told = run("instructor", url)
    assert told.pop("mode") == "tool_call" and told.pop("tries") == 2
    check(told, "partial", "second try")


def test_pydantic_ai(url: str) -> None:
    told = run("pydantic_ai", url)
    assert len(told) == 10
    check(told)


def test_zod(url: str) -> None:
    """Schemas that zod writes, by the helpers of OpenAI's client and without them."""
    packages = node_packages("zod", "openai@6.49.0", "zod@4.6.7")
    told = run_client(["node", PROGRAMS / "zod_client.mjs", url, BEGIN_AND_END, packages])
    plain, strict = told.pop("plain"), told.pop("strict")
    check(told, "call", "responseCall")
    assert told["form"] == told["formStreamed"] == told["response"] and told["call"] == told["responseCall"]
    assert set(strict) < set(plain) and len(strict) >= 12
    for found in (plain, strict):
        assert not [kind for kind, value in found.items() if isinstance(value, dict) and "error" in value]
