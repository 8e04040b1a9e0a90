"""Log-probabilities in the shapes of OpenAI's two endpoints, and the prompt's in vLLM's shape."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel

from draftwire import PromptReport, TokenLogProb, TokenLogProbs

_REPLACED = "\ufffd"
"""The text that stands for bytes that are no character."""
_LEAST = -9999.0
"""Replacement for minus infinity, which JSON lacks."""


class CompletionLogprobs(BaseModel):
    """Log-probabilities of a completion's tokens."""

    tokens: list[str]
    """Text of each token."""
    token_logprobs: list[float | None]
    """Log-probability of each token; null for the first token of a prompt."""
    top_logprobs: list[dict[str, float] | None]
    """The likeliest tokens at each position, and the token itself, by text."""
    text_offset: list[int]
    """Offset of each token in the text, in characters."""


class Alternative(BaseModel):
    """A token with its log-probability."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatToken(Alternative):
    """A token of a chat completion with the likeliest at its position."""

    top_logprobs: list[Alternative]


class ChatLogprobs(BaseModel):
    """Log-probabilities of a chat completion's tokens."""

    content: list[ChatToken]
    refusal: None = None


class PromptToken(BaseModel):
    """A token reported at a position of the prompt."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptToken] | None]
"""The prompt's log-probabilities: for each token, it and the likeliest at its position, by id; null for the first."""


def completion_logprobs(logprobs: Iterable[TokenLogProbs], offsets: Iterable[int], shift: int) -> CompletionLogprobs:
    """Returns the log-probabilities of an output's tokens; the output begins `shift` characters into the text."""
    each = list(logprobs)
    return CompletionLogprobs(
        tokens=[_name(one.token) for one in each],
        token_logprobs=[_finite(one.token.logprob) for one in each],
        top_logprobs=[_by_text(one) for one in each],
        text_offset=[shift + offset for offset in offsets],
    )


def with_prompt(prompt: PromptReport, output: CompletionLogprobs) -> CompletionLogprobs:
    """Returns the log-probabilities of an echoed prompt and of the output that follows it."""
    each = prompt.logprobs
    texts = zip(prompt.token_texts, each, strict=True)
    return CompletionLogprobs(
        tokens=[text if one is None else _name(one.token) for text, one in texts] + output.tokens,
        token_logprobs=[None if one is None else _finite(one.token.logprob) for one in each] + output.token_logprobs,
        top_logprobs=[None if one is None else _by_text(one) for one in each] + output.top_logprobs,
        text_offset=prompt.text_offsets + output.text_offset,
    )


def chat_logprobs(logprobs: Iterable[TokenLogProbs]) -> ChatLogprobs:
    """Returns the log-probabilities of tokens in the shape of chat completions."""
    tokens = [
        ChatToken(
            token=_name(one.token),
            logprob=_finite(one.token.logprob),
            bytes=list(one.token.text_bytes),
            top_logprobs=[
                Alternative(token=_name(top), logprob=_finite(top.logprob), bytes=list(top.text_bytes))
                for top in one.top
            ],
        )
        for one in logprobs
    ]
    return ChatLogprobs(content=tokens, refusal=None)


def prompt_logprobs(prompt: PromptReport) -> PromptLogprobs:
    """Returns the log-probabilities of the prompt's tokens."""
    return [None if one is None else _by_id(one) for one in prompt.logprobs]


def _by_id(one: TokenLogProbs) -> dict[str, PromptToken]:
    tokens = {str(top.token_id): _prompt_token(top, rank) for rank, top in enumerate(one.top, 1)}
    return {str(one.token.token_id): _prompt_token(one.token, one.rank)} | tokens


def _prompt_token(token: TokenLogProb, rank: int) -> PromptToken:
    return PromptToken(logprob=_finite(token.logprob), rank=rank, decoded_token=_name(token))


def _by_text(one: TokenLogProbs) -> dict[str, float]:
    """Returns log-probabilities by text. If several tokens have equal texts, the likeliest of them counts, except that
    the token itself always does."""
    tops = {_name(top): _finite(top.logprob) for top in reversed(one.top)}
    return tops | {_name(one.token): _finite(one.token.logprob)}


def _name(token: TokenLogProb) -> str:
    r"""Returns a token's text; that of a part of a character is its bytes, as OpenAI spells them: ``bytes:\xc3``."""
    if _REPLACED not in token.text or token.text_bytes == token.text.encode():
        return token.text
    return "bytes:" + "".join(f"\\x{each:02x}" for each in token.text_bytes)


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
