"""pydantic-ai: the last output as a tool, which is the default, and as a form, each with a tool beside it."""

import json
from typing import Any

from forecast import MODEL, QUESTION, SAMPLING, URL, City, Weather
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=URL, api_key="none")
settings: Any = {"extra_body": SAMPLING}
told: dict[str, Any] = {}


def forecast(city: City, days: int) -> str:
    """Tells the weather."""
    return f"warm in {city.value} for {days} days"


for kind in (OpenAIChatModel, OpenAIResponsesModel):
    for name, output in (("default", Weather), ("native", NativeOutput(Weather))):
        for tools in ([], [forecast]):
            model = kind(MODEL, provider=provider)
            agent: Any = Agent(
                model, output_type=output, instructions="Be brief.", model_settings=settings, tools=tools
            )
            done = agent.run_sync(QUESTION)
            told[f"{kind.__name__} {name}{' with a tool' * len(tools)}"] = done.output.model_dump(mode="json")
    streaming: Any = Agent(kind(MODEL, provider=provider), output_type=Weather, model_settings=settings)
    streamed = streaming.run_stream_sync(QUESTION)
    told[f"{kind.__name__} streamed"] = streamed.get_output().model_dump(mode="json")
print(json.dumps(told))
