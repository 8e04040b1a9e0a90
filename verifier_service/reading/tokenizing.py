"""Serves Tokenize and Detokenize."""

from __future__ import annotations

from functools import partial

from draftwire.v1.verifier_service_pb2 import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.runtime.errors import invalid_field
from verifier_service.admission.peer_limits import PeerLimits
from verifier_service.reading.request import RequestReader


class Tokenizing:
    """Converts texts to tokens and back, with as many concurrent calls per peer as it may have requests."""

    def __init__(self, tokenizer: Tokenizer, reader: RequestReader, max_calls: int) -> None:
        """max_calls: most concurrent calls of a peer; 0 sets no limit."""
        self._tokenizer = tokenizer
        self._reader = reader
        self._peers = PeerLimits(max_requests=max_calls)

    async def tokenize(self, request: TokenizeRequest, peer: str) -> TokenizeResponse:
        """Tokenizes a text or a conversation. Raises ServiceError."""
        texts = self._reader.texts
        with self._peers.reading(peer):
            if not request.HasField("messages"):
                text, special = request.text, request.add_special_tokens
                size = texts.check_text("text", text)
                return await texts.run(partial(self._tokens, text, special), size, peer)
            if request.text:
                raise invalid_field("messages", "cannot be combined with text")
            chat, special = request.messages, request.add_special_tokens
            size = texts.check_chat(chat)
            return await texts.run(lambda: self._tokens(texts.rendered(chat), special), size, peer)

    async def detokenize(self, request: DetokenizeRequest, peer: str) -> DetokenizeResponse:
        """Returns the text of tokens. Raises ServiceError."""
        token_ids = request.token_ids
        with self._peers.reading(peer):
            self._reader.texts.check_number("token_ids", token_ids)
            self._reader.check_tokens("token_ids", token_ids)
            decode = partial(self._tokenizer.decode, token_ids, skip_special_tokens=request.skip_special_tokens)
            return DetokenizeResponse(text=await self._reader.texts.run(decode, len(token_ids), peer))

    def _tokens(self, text: str, add_special_tokens: bool) -> TokenizeResponse:
        token_ids, offsets = self._tokenizer.encode_with_offsets(text, add_special_tokens=add_special_tokens)
        return TokenizeResponse(
            token_ids=token_ids,
            text_offsets=offsets,
            token_texts=[self._tokenizer.texts.of(token).text for token in token_ids],
        )
