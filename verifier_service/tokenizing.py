"""Answers Tokenize."""

from __future__ import annotations

from draftwire.v1.verifier_service_pb2 import TokenizeRequest, TokenizeResponse
from service_runtime.errors import invalid_field
from speculative_engine.tokenizer import Tokenizer
from verifier_service.chat_text import chat_text


def tokenize(request: TokenizeRequest, tokenizer: Tokenizer) -> TokenizeResponse:
    """The tokens of a text, or of a conversation. Raises ServiceError with INVALID_ARGUMENT."""
    text = request.text
    if request.HasField("messages"):
        if text:
            raise invalid_field("messages", "is given beside text")
        text = chat_text(request.messages, tokenizer)
    token_ids, offsets = tokenizer.encode_with_offsets(text, add_special_tokens=request.add_special_tokens)
    return TokenizeResponse(
        token_ids=token_ids,
        text_offsets=offsets,
        token_texts=[tokenizer.texts.of(token).text for token in token_ids],
    )
