"""LangChain: tools that are bound, and outputs of a form by each of its methods."""

import json
from typing import Any

from forecast import MODEL, QUESTION, SAMPLING, URL, Forecast, Weather
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool(args_schema=Forecast)
def forecast(city: str, days: int) -> str:
    """Tells the weather."""
    return f"warm in {city} for {days} days"


told: dict[str, Any] = {}
for api in (False, True):
    name = "responses" if api else "chat"
    model = ChatOpenAI(
        model=MODEL, base_url=URL, api_key="none", max_retries=0, use_responses_api=api, extra_body=SAMPLING
    )
    told[f"{name} form"] = model.with_structured_output(Weather).invoke(QUESTION).model_dump(mode="json")
    by_call = model.with_structured_output(Weather, method="function_calling")
    told[f"{name} form by a call"] = by_call.invoke(QUESTION).model_dump(mode="json")
    bound = model.bind_tools([forecast, Weather], tool_choice="forecast")
    answer = bound.invoke(QUESTION)
    (call,) = answer.tool_calls
    told[f"{name} call"] = call["args"]
    first, *others = bound.stream(QUESTION)
    told[f"{name} call streamed"] = sum(others, first).tool_calls[0]["args"]
    result = forecast.invoke(call | {"type": "tool_call", "args": {"city": "Rome", "days": 1}})
    any_of = model.bind_tools([forecast, Weather], tool_choice="any", parallel_tool_calls=False)
    told[f"{name} call after a call"] = any_of.invoke([("user", QUESTION), answer, result]).tool_calls[0]["name"]
    both = model.bind_tools([forecast], response_format=Weather, strict=True)
    told[f"{name} tools and form"] = both.invoke(QUESTION).additional_kwargs["parsed"].model_dump(mode="json")
print(json.dumps(told))
