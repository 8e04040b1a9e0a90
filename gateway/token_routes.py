"""``/tokenize`` and ``/detokenize``, in vLLM's shapes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from gateway.errors import GatewayError
from gateway.speculation_options import TokenId
from gateway.state import GatewayState, errors

_ERRORS = errors(400, 401, 404, 408, 413, 500, 503, 504)

router = APIRouter()


class TokenizeRequest(BaseModel):
    """Asks for the token ids of a text."""

    model_config = ConfigDict(strict=True, extra="ignore", use_attribute_docstrings=True)

    model: str | None = None
    """Name of the model."""
    prompt: str | None = None
    """The text."""
    messages: Any = None
    """Refused: conversations are rendered by the verifier."""
    add_special_tokens: bool = True
    """Add the special tokens that the tokenizer puts around a text."""
    return_token_strs: bool | None = None
    """Refused, unless it is false."""


class TokenizeResponse(BaseModel):
    """The token ids."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(BaseModel):
    """Asks for the text of token ids."""

    model_config = ConfigDict(strict=True, extra="ignore", use_attribute_docstrings=True)

    model: str | None = None
    """Name of the model."""
    tokens: list[TokenId]
    """The token ids."""


class DetokenizeResponse(BaseModel):
    """The text."""

    prompt: str


@router.post("/tokenize", responses=_ERRORS)
async def tokenize(asked: TokenizeRequest, state: GatewayState) -> TokenizeResponse:
    """Return the token ids of a text."""
    for name in ("messages", "return_token_strs"):
        if getattr(asked, name):
            raise GatewayError(f"{name}: is not supported", param=name, code="unsupported_parameter")
    if asked.prompt is None:
        raise GatewayError("prompt: is required", param="prompt", code="missing_required_parameter")
    await state.served.check(asked.model)
    info = await state.served.info()
    seconds = state.settings.request_seconds
    tokens = await state.client.tokenize(asked.prompt, add_special_tokens=asked.add_special_tokens, timeout=seconds)
    length = info.limits.max_sequence_tokens
    return TokenizeResponse(count=len(tokens), max_model_len=length, tokens=tokens, token_strs=None)


@router.post("/detokenize", responses=_ERRORS)
async def detokenize(asked: DetokenizeRequest, state: GatewayState) -> DetokenizeResponse:
    """Return the text of token ids."""
    await state.served.check(asked.model)
    text = await state.client.detokenize(asked.tokens, timeout=state.settings.request_seconds)
    return DetokenizeResponse(prompt=text)
