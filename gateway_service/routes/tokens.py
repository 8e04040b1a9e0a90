"""``/tokenize`` and ``/detokenize``, in vLLM's shapes."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from draftwire import DraftwireError
from gateway_service.http.errors import GatewayError, from_draftwire
from gateway_service.http.field_names import FieldNames
from gateway_service.http.json_body import BodyRoute, beside_the_loop
from gateway_service.http.left_out import LeftOut
from gateway_service.openai.chat_message import Messages, check_messages, conversation_of, unread_parts
from gateway_service.openai.fields.whole_numbers import TokenIds
from gateway_service.openai.other_fields import check_others, left_out
from gateway_service.openai.template_options import Effort, TemplateFields, TemplateUse, template_use
from gateway_service.openai.tools import FunctionTool, Tools, others_of
from gateway_service.routes.state import GatewayState, errors

_DETOKENIZED = FieldNames({"token_ids": "tokens"})
_ERRORS = errors(400, 401, 403, 404, 408, 413, 429, 500, 503, 504)

router = APIRouter(route_class=BodyRoute)


class TokenizeRequest(TemplateFields):
    """A request for the token ids of a text or of a conversation."""

    model_config = ConfigDict(strict=True, extra="allow", use_attribute_docstrings=True)

    model: str | None = None
    """Name of the model."""
    prompt: str | None = None
    """The text."""
    messages: Messages | None = None
    """The conversation, rendered by the chat template."""
    add_special_tokens: bool = True
    """Add the special tokens that the tokenizer puts around a text. A chat template writes its own."""
    tools: Tools | None = None
    """Tools of the conversation."""
    reasoning_effort: Effort | None = None
    """How much the model reasons, as in a request for an answer."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """The variable of that name, for templates that read it."""
    return_token_strs: bool | None = None
    """Whether to return the text of each token as well."""


class TokenizeResponse(BaseModel):
    """The token ids."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(BaseModel):
    """A request for the text of token ids."""

    model_config = ConfigDict(strict=True, extra="ignore", use_attribute_docstrings=True)

    model: str | None = None
    """Name of the model."""
    tokens: TokenIds
    """The token ids."""


class DetokenizeResponse(BaseModel):
    """The text."""

    prompt: str


@router.post("/tokenize", responses=_ERRORS)
async def tokenize(
    asked: TokenizeRequest, request: Request, response: Response, state: GatewayState
) -> TokenizeResponse:
    """Returns the token ids of a text or of a conversation."""
    if (asked.prompt is None) == (asked.messages is None):
        both = "and messages: only one of them can be given" if asked.messages else "or messages: one is required"
        raise GatewayError(f"prompt {both}", param="prompt", code="missing_required_parameter")
    check_messages(asked.messages or ())
    others = asked.model_extra or {}
    check_others(others, {})
    target = (await state.model(request, asked.model)).described
    info = await target.info()
    if asked.messages is None:
        use = TemplateUse()
    else:
        use = template_use(
            asked,
            info.chat_format,
            effort=("reasoning_effort", asked.reasoning_effort),
            verbosity=("verbosity", asked.verbosity),
            continues=bool(asked.messages[-1].prefix),
        )
    messages = asked.messages
    unread = unread_parts(messages or ())
    LeftOut(request, [*left_out(others), *use.left_out, *others_of(asked.tools), *unread]).tell(response)
    functions = [tool.to_tool().to_sdk() for tool in asked.tools or () if isinstance(tool, FunctionTool)]
    told = await target.client.tokenization(
        asked.prompt,
        messages=None if messages is None else await beside_the_loop(request, lambda: conversation_of(messages)),
        tools=functions or None,
        **({} if asked.messages is None else use.to_sdk()),
        add_special_tokens=asked.add_special_tokens and asked.messages is None,
        timeout=state.settings.request_seconds,
    )
    return TokenizeResponse(
        count=len(told.token_ids),
        max_model_len=info.limits.max_sequence_tokens,
        tokens=told.token_ids,
        token_strs=told.token_texts if asked.return_token_strs else None,
    )


@router.post("/detokenize", responses=_ERRORS)
async def detokenize(asked: DetokenizeRequest, request: Request, state: GatewayState) -> DetokenizeResponse:
    """Returns the text of token ids."""
    target = (await state.model(request, asked.model)).described
    try:
        text = await target.client.detokenize(asked.tokens, timeout=state.settings.request_seconds)
    except DraftwireError as error:
        raise from_draftwire(error, _DETOKENIZED) from error
    return DetokenizeResponse(prompt=text)
