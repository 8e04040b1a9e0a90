"""litellm: its error for a full context, a tool, a form, and responses."""

import json
import sys
from typing import Any

import litellm
from forecast import MESSAGES, MODEL, SAMPLING, URL, Forecast, Weather

litellm.suppress_debug_info = True
longest = int(sys.argv[3])
asked: Any = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": "none", "num_retries": 0}
chat = asked | {"messages": MESSAGES, **SAMPLING}
told: dict[str, Any] = {"full": []}
texts = ("a " * longest, "a " * 20 * longest)  # the first fits by its bytes
for content, most in ((texts[0], None), (texts[1], None), ("a", longest)):
    for stream in (False, True):
        try:
            litellm.completion(**asked, messages=[{"role": "user", "content": content}], max_tokens=most, stream=stream)
        except litellm.ContextWindowExceededError:
            told["full"].append(True)
form = litellm.completion(**chat, response_format=Weather)
told["form"] = json.loads(form.choices[0].message.content)
tool = {"type": "function", "function": {"name": "forecast", "parameters": Forecast.model_json_schema()}}
choice = {"type": "function", "function": {"name": "forecast"}}
done = litellm.completion(**chat, tools=[tool], tool_choice=choice)
message = done.choices[0].message
told["call"] = json.loads(message.tool_calls[0].function.arguments)
chunks = list(litellm.completion(**chat, tools=[tool], tool_choice=choice, stream=True))
built = litellm.stream_chunk_builder(chunks)
told["call streamed"] = json.loads(built.choices[0].message.tool_calls[0].function.arguments)
result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "warm"}
after = litellm.completion(**chat | {"messages": [*MESSAGES, message, result]}, tools=[tool], max_tokens=8)
told["after a call"] = after.choices[0].finish_reason
response = litellm.responses(**asked, input=MESSAGES, max_output_tokens=16)
told["response"] = response.output[0].content[0].text
print(json.dumps(told))
