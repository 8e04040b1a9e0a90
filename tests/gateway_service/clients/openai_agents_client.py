"""OpenAI's agents: a tool and a form of the last output together, with both of OpenAI's APIs."""

import asyncio
import json
from typing import Any

import agents
import openai
from forecast import MODEL, QUESTION, SAMPLING, SPECULATION, URL, City, Weather

asked: list[dict[str, Any]] = []


@agents.function_tool
def forecast(city: City, days: int = 3) -> str:
    """Tells the weather.

    Args:
        city: Where.
        days: For how many days.
    """
    asked.append({"city": city.value, "days": days})
    return "warm"


async def run(kind: str, speculation: str, *, stream: bool) -> dict[str, Any]:
    """Returns the final output, and the kinds of items on the way to it."""
    async with openai.AsyncOpenAI(api_key="none", base_url=URL, max_retries=0) as client:
        settings = agents.ModelSettings(
            tool_choice="required", temperature=0.8, extra_body={**SAMPLING, "speculation": SPECULATION[speculation]}
        )
        model = getattr(agents, kind)(MODEL, client)
        agent = agents.Agent(
            "forecaster", instructions="Be brief.", model=model, model_settings=settings, tools=[forecast],
            output_type=Weather,
        )  # fmt: skip
        if stream:
            done = agents.Runner.run_streamed(agent, QUESTION, max_turns=4)
            async for _ in done.stream_events():
                pass
        else:
            done = await agents.Runner.run(agent, QUESTION, max_turns=4)
    output = done.final_output.model_dump(mode="json")
    return {"output": output, "items": [each.type for each in done.new_items], "asked": asked.pop()}


told = {
    f"{kind} {speculation}{' streamed' * stream}": asyncio.run(run(kind, speculation, stream=stream))
    for kind in ("OpenAIChatCompletionsModel", "OpenAIResponsesModel")
    for speculation, stream in (("plain", False), ("drafted", False), ("drafted", True))
}
print(json.dumps(told))
