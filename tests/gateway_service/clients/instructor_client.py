"""instructor in its default mode, a call of a tool: an answer, its parts, a second try; and in two other modes."""

import json
from typing import Any

import instructor
import openai
from forecast import MESSAGES, MODEL, SAMPLING, URL, Forecast, Weather
from pydantic import model_validator

told: dict[str, Any] = {}
client = instructor.from_openai(openai.OpenAI(api_key="none", base_url=URL, max_retries=0))
asked: Any = {"model": MODEL, "messages": MESSAGES, **SAMPLING}
told["mode"] = client.mode.value
told["form"] = client.create(**asked, response_model=Weather).model_dump(mode="json")
*_, last = client.create_partial(**asked, response_model=Forecast)
told["partial"] = last.model_dump(mode="json")
tries: list[str] = []


class Doubted(Forecast):
    """The weather, which is refused once."""

    @model_validator(mode="after")
    def check(self) -> "Doubted":
        """Refuses the first try."""
        tries.append(self.city)
        if len(tries) == 1:
            raise ValueError("think again")
        return self


told["second try"] = client.create(**asked, response_model=Doubted, max_retries=2).model_dump(mode="json")
told["tries"] = len(tries)
for mode in (instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    other = instructor.from_openai(openai.OpenAI(api_key="none", base_url=URL, max_retries=0), mode=mode)
    told[mode.value] = other.create(**asked, response_model=Weather, max_retries=1).model_dump(mode="json")
print(json.dumps(told))
