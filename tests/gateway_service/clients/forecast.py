"""What the clients ask for: a tool that tells the weather, and answers of a form, as pydantic models."""

import sys
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

URL = f"{sys.argv[1]}/v1"
"""Base URL of the gateway."""
MODEL = "target"
QUESTION = "How is the weather?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
SAMPLING: Any = {"seed": 3, "logit_bias": dict.fromkeys(sys.argv[2].split(","), 100)}
"""Makes the tokens that begin JSON and end an answer the likeliest: the model was not trained for forms or calls."""
SPECULATION: Any = {"plain": {"enabled": False}, "drafted": {"planning": "always"}}
"""Without drafts, and with drafts in every step."""


class City(StrEnum):
    """A place."""

    ROME = "Rome"
    OSLO = "Oslo"


class Closed(BaseModel):
    """An object without further keys, which an untrained model would never stop to add."""

    model_config = ConfigDict(extra="forbid")


class Sun(Closed):
    """It is dry."""

    kind: Literal["sun"] = "sun"
    hours: int = Field(ge=0, le=24)


class Rain(Closed):
    """It is wet."""

    kind: Literal["rain"] = "rain"
    heavy: bool | None = None


class Forecast(Closed):
    """Tells the weather."""

    city: Literal["Rome", "Oslo"] = Field(description="Where.")
    days: int = Field(ge=1, le=9)


class Weather(Closed):
    """The weather in a city."""

    city: City
    sky: Annotated[Sun | Rain, Field(discriminator="kind")]
    winds: Annotated[list[Literal["north", "south"]], Field(min_length=1, max_length=2)]
    code: str = Field(pattern="^[A-Z]{2}$")
