"""The page's requests: JSON bodies, parsed and checked. The verifier checks ranges."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.requests import Request

from gateway_service.console.api_errors import ApiError
from gateway_service.http.errors import GatewayError
from gateway_service.http.json_body import BodyReader
from gateway_service.openai.fields.checks import MOST_MESSAGES, at_most

MOST_BYTES = 1 << 20
"""Largest body, in bytes."""


class Form(BaseModel):
    """A request body; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class MessageForm(Form):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class GenerateForm(Form):
    """A generation request: a prompt or messages, and its options."""

    prompt: str | None = None
    messages: Annotated[list[MessageForm], at_most(MOST_MESSAGES)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = 128
    seed: int | None = None
    speculation: bool = True

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("expected either prompt or messages")
        return self


class AttachForm(Form):
    """A drafter to attach."""

    address: str = Field(min_length=1)
    name: str | None = None


class DetachForm(Form):
    """A drafter to detach."""

    name: str = Field(min_length=1)


class SwapForm(Form):
    """A drafter, and the name or address of its replacement."""

    old: str = Field(min_length=1)
    new: str = Field(min_length=1)


class StartRolloutForm(SwapForm):
    """A gradual replacement of a drafter by another, which begins with a share."""

    share: float


class FinishRolloutForm(Form):
    """The end of a rollout, named by its new drafter."""

    new: str = Field(min_length=1)
    promote: bool


FormT = TypeVar("FormT", bound=Form)


async def read_form(request: Request, form: type[FormT]) -> FormT:
    """Reads the body of a request. Raises ApiError, which names the field."""
    # A page of another origin cannot send this type without a CORS preflight, which is not answered.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "expected a body of type application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise ApiError(413, f"the body is longer than {MOST_BYTES} bytes")
    reader: BodyReader = request.app.state.bodies
    try:
        return await reader.read(bytes(body), form)
    except GatewayError as error:
        raise ApiError(error.status, error.message) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or None
        message = first["msg"].removeprefix("Value error, ")
        raise ApiError(400, f"{field}: {message}" if field else message, field) from error
