"""``/tokenize`` and ``/detokenize``, in vLLM's shapes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from draftwire import DraftwireError
from gateway.http.errors import GatewayError, from_draftwire
from gateway.http.field_names import FieldNames
from gateway.http.json_body import BodyRoute
from gateway.openai.bounds import MOST_MESSAGES, at_most
from gateway.openai.chat_message import ChatMessage, check_messages, conversation_of
from gateway.openai.token_ids import TokenIds
from gateway.openai.tools import Tools
from gateway.routes.state import GatewayState, errors

_DETOKENIZED = FieldNames({"token_ids": "tokens"})
_ERRORS = errors(400, 401, 404, 408, 413, 500, 503, 504)

router = APIRouter(route_class=BodyRoute)


class TokenizeRequest(BaseModel):
    """A request for the token ids of a text or of a conversation."""

    model_config = ConfigDict(strict=True, extra="allow", use_attribute_docstrings=True)

    model: str | None = None
    """Name of the model."""
    prompt: str | None = None
    """The text."""
    messages: Annotated[list[ChatMessage], at_most(MOST_MESSAGES, least=1)] | None = None
    """The conversation, rendered by the chat template."""
    add_special_tokens: bool = True
    """Add the special tokens that the tokenizer puts around a text. A chat template writes its own."""
    tools: Tools | None = None
    """Tools of the conversation."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables of the chat template."""
    add_generation_prompt: bool = True
    """Whether the prompt ends with what begins the assistant's answer."""
    continue_final_message: bool = False
    """Whether the prompt ends with the text of the last message, which is the assistant's."""
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
async def tokenize(asked: TokenizeRequest, state: GatewayState) -> TokenizeResponse:
    """Returns the token ids of a text or of a conversation."""
    if (asked.prompt is None) == (asked.messages is None):
        both = "and messages: only one of them can be given" if asked.messages else "or messages: one is required"
        raise GatewayError(f"prompt {both}", param="prompt", code="missing_required_parameter")
    check_messages(asked.messages or ())
    if (asked.model_extra or {}).get("chat_template"):
        name = "chat_template"
        raise GatewayError(f"{name}: only the model's own is supported", param=name, code="unsupported_parameter")
    await state.served.check(asked.model)
    info = await state.served.info()
    told = await state.client.tokenization(
        asked.prompt,
        messages=None if asked.messages is None else conversation_of(asked.messages),
        tools=None if asked.tools is None else [tool.to_tool().to_sdk() for tool in asked.tools],
        chat_template_kwargs=asked.chat_template_kwargs,
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
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
async def detokenize(asked: DetokenizeRequest, state: GatewayState) -> DetokenizeResponse:
    """Returns the text of token ids."""
    await state.served.check(asked.model)
    try:
        text = await state.client.detokenize(asked.tokens, timeout=state.settings.request_seconds)
    except DraftwireError as error:
        raise from_draftwire(error, _DETOKENIZED) from error
    return DetokenizeResponse(prompt=text)
