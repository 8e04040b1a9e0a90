"""Requests for completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from draftwire import Prompt
from gateway_service.http.errors import GatewayError
from gateway_service.http.field_names import FieldNames
from gateway_service.openai.fields.checks import one_of
from gateway_service.openai.fields.whole_numbers import LimitOrNone, TokenIds, Whole, limit_of
from gateway_service.openai.generation_request import GenerationRequest
from gateway_service.openai.template_options import TemplateFields

_each = Field(fail_fast=True)
_DEFAULT_TOKENS = 16
"""OpenAI's default."""


_OF_CHAT = "only a conversation has it, at /v1/chat/completions"


class CompletionRequest(GenerationRequest):
    """A request for completions."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("messages", "tools", "tool_choice", *TemplateFields.model_fields), _OF_CHAT),
        **dict.fromkeys(("reasoning_effort", "reasoning", "verbosity"), _OF_CHAT),
        "top_logprobs": "is logprobs here",
    }

    max_tokens: LimitOrNone | None = None
    """Most tokens to generate; -1 stands for the end of the context. 0 requires `echo`, and serves to get the prompt's
    log-probabilities."""
    max_completion_tokens: LimitOrNone | None = None
    """Rejected unless it equals `max_tokens`: GuideLLM sends both to either endpoint."""
    prompt: Annotated[
        str | Annotated[list[str], _each] | TokenIds | Annotated[list[TokenIds], _each],
        one_of("a string, a list of strings, a list of token ids, or a list of such lists"),
    ]
    """Text or token ids to continue: one prompt or several."""
    logprobs: Annotated[int, Field(ge=0, le=64), Whole] | None = None
    """Report the log-probability of each token, and of this many of the likeliest."""
    echo: bool | None = None
    """Begin the text with the prompt."""
    suffix: str | None = None
    """The text after the completion, for models that fill in the middle; `prompt` is a text then."""
    best_of: Annotated[int, Whole] | None = None
    """Rejected unless it equals `n`."""

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts of the request."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        tokens = [token for token in self.prompt if isinstance(token, int)]
        return [tokens] if tokens else [prompt for prompt in self.prompt if not isinstance(prompt, int)]

    def names_of(self, index: int) -> FieldNames:
        """Returns this request's names for the contract's fields, for the prompt with that index."""
        several = isinstance(self.prompt, list) and not any(isinstance(part, int) for part in self.prompt)
        name = f"prompt[{index}]" if several else "prompt"
        return FieldNames(self.field_names() | dict.fromkeys(("prompt", "text", "token_ids", "token_ids.ids"), name))

    @property
    def prompt_alone(self) -> bool:
        """Whether no token is to be generated."""
        return self.max_tokens == 0

    @property
    def most_tokens(self) -> int | None:
        """Most tokens to generate at the verifier, at least one; None continues to the end of the context."""
        return _DEFAULT_TOKENS if self.max_tokens is None else limit_of(self.max_tokens or 1)

    def check(self) -> None:
        """Checks fields whose validity depends on other fields, including those of all requests."""
        super().check()
        if (self.model_extra or {}).get("add_special_tokens") is False:
            name = "add_special_tokens"
            raise GatewayError(
                f"{name}: false is not supported for text; send token ids, as /tokenize gives them",
                param=name,
                code="unsupported_parameter",
            )
        if self.max_completion_tokens not in (None, self.max_tokens):
            name = "max_completion_tokens"
            raise GatewayError(f"{name}: is max_tokens here", param=name, code="unsupported_parameter")
        if self.prompt_alone and not self.echo:
            raise GatewayError("max_tokens: 0 requires echo", param="max_tokens", code="invalid_value")
        if self.suffix and self.echo:
            raise GatewayError("suffix: cannot be combined with echo", param="suffix", code="invalid_value")
        if self.suffix and not all(isinstance(prompt, str) for prompt in self.prompts):
            raise GatewayError("suffix: requires prompts that are texts", param="suffix", code="invalid_value")
        if self.best_of is not None and self.best_of != self.choices_each:
            message = "best_of: is not supported unless it equals n"
            raise GatewayError(message, param="best_of", code="unsupported_parameter")
