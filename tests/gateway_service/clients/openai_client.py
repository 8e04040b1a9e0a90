"""OpenAI's own client: forms and tools as pydantic models, in chat completions and in responses."""

import json
from typing import Any

import openai
from forecast import MESSAGES, MODEL, SAMPLING, URL, Forecast, Weather

client = openai.OpenAI(api_key="none", base_url=URL, max_retries=0)
told: dict[str, Any] = {}
chat: Any = {"model": MODEL, "messages": MESSAGES, **SAMPLING}
responses: Any = {"model": MODEL, "input": MESSAGES, "extra_body": SAMPLING}

# A schema in chat completions.
form = client.chat.completions.parse(**chat, response_format=Weather)
told["chat form"] = form.choices[0].message.parsed.model_dump(mode="json")
with client.chat.completions.stream(**chat, response_format=Weather) as stream:
    for _ in stream:
        pass
    told["chat form streamed"] = stream.get_final_completion().choices[0].message.parsed.model_dump(mode="json")

# A tool in chat completions.
tool = openai.pydantic_function_tool(Forecast)
done = client.chat.completions.parse(**chat, tools=[tool], tool_choice="required", parallel_tool_calls=False)
message = done.choices[0].message
told["chat call"] = message.tool_calls[0].function.parsed_arguments.model_dump(mode="json")
result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "warm"}
after = client.chat.completions.parse(
    **chat | {"messages": [*MESSAGES, message, result]}, tools=[tool], response_format=Weather
)
told["chat form after a call"] = after.choices[0].message.parsed.model_dump(mode="json")

# The same as responses.
made = client.responses.parse(**responses, text_format=Weather)
told["response form"] = made.output_parsed.model_dump(mode="json")
with client.responses.stream(**responses, text_format=Weather) as events:
    for _ in events:
        pass
    told["response form streamed"] = events.get_final_response().output_parsed.model_dump(mode="json")
response_tool: Any = {"type": "function", **tool["function"]}
called = client.responses.parse(**responses, tools=[response_tool], tool_choice="required", parallel_tool_calls=False)
(call,) = [item for item in called.output if item.type == "function_call"]
told["response call"] = json.loads(call.arguments)
items = [*MESSAGES, *called.output, {"type": "function_call_output", "call_id": call.call_id, "output": "warm"}]
again = client.responses.parse(**responses | {"input": items}, tools=[response_tool], text_format=Weather)
told["response form after a call"] = again.output_parsed.model_dump(mode="json")
print(json.dumps(told))
