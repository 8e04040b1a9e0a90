"""Requests for completions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from draftwire import Prompt
from gateway.errors import GatewayError
from gateway.generation_request import GenerationRequest
from gateway.speculation_options import TokenId, one_of

_DEFAULT_TOKENS = 16
"""OpenAI's default."""


class CompletionRequest(GenerationRequest):
    """A request for completions."""

    prompt: Annotated[
        str | list[str] | list[TokenId] | list[list[TokenId]],
        one_of("a string, a list of strings, a list of token ids, or a list of such lists"),
    ]
    """What to continue."""
    logprobs: Annotated[int, Field(ge=0, le=64)] | None = None
    """Tell the log-probability of each token, and of so many of the likeliest."""
    echo: bool | None = None
    """Begin the text with the prompt."""
    best_of: int | None = None
    """Refused unless it is n."""

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        tokens = [token for token in self.prompt if isinstance(token, int)]
        return [tokens] if tokens else [prompt for prompt in self.prompt if not isinstance(prompt, int)]

    @property
    def most_tokens(self) -> int:
        """Most tokens to generate."""
        return _DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens

    def check(self) -> None:
        """Look at what no single field shows, too."""
        super().check()
        if self.best_of is not None and self.best_of != self.choices_each:
            message = "best_of: is not supported, unless it is n"
            raise GatewayError(message, param="best_of", code="unsupported_parameter")
