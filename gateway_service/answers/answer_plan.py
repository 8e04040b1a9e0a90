"""How the answer to a request is made and read: what the verifier is asked for, and the parser of what comes."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

from draftwire import ChatFormat, GenerateOptions
from gateway_service.answers.answer_form import AnswerForm
from gateway_service.answers.call_grammar import call_grammar, names
from gateway_service.answers.parsers import answer_parser, needs_special_tokens
from gateway_service.answers.part import AnswerParser
from gateway_service.answers.tool import ToolUse
from gateway_service.http.errors import GatewayError

_MISTRAL_ID = 9
"""Letters of a call's id that templates of Mistral demand."""


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How one request's answers are made and read."""

    chat_format: ChatFormat | None
    use: ToolUse
    reasoning: bool
    """Whether reasoning is separated from the answer. It is not where an output format without tools applies, which is
    then that of the whole output."""
    form: AnswerForm = field(default_factory=AnswerForm)
    """Form of an answer without calls."""
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    """Makes ids of calls unique: clients match results by them, and some send one `x-request-id` for a session."""

    @property
    def plain(self) -> bool:
        """Whether answers are text alone, passed on as it comes."""
        told = self.chat_format
        if told is None:
            return True
        if told.content_begin and not self.form:
            return False
        has_reasoning = bool(told.reasoning_end) or told.tool_calls == "harmony"
        return not self.use.offered and not (self._splits_reasoning and has_reasoning)

    @property
    def _splits_reasoning(self) -> bool:
        """Whether this request's reasoning is separated. A form without tools covers the whole output, which has no
        reasoning."""
        return self.reasoning and (bool(self.use.offered) or not self.form)

    def options(self) -> GenerateOptions:
        """Returns what the verifier is asked for besides the request's own options, the form of the output included.

        Raises:
            GatewayError: the model cannot call tools, they are too large or nested too deeply, or the form cannot be
                combined with them.
        """
        told = self.chat_format
        if self.use.offered and (told is None or told.tool_calls is None):
            raise GatewayError(
                "tools: the served model has no chat template that this gateway can call tools with; the verifier's "
                "--chat-template replaces it",
                param="tools",
                code="unsupported_parameter",
            )
        options: GenerateOptions = {}
        if not self.plain and needs_special_tokens(told):
            options["special_tokens"] = True
        if not self.use.offered:
            return options | self.form.options
        if told is not None and (self.use.enforced or self.form):
            try:
                options["grammar"] = call_grammar(told, self.use, self.form)
            except RecursionError as error:
                raise GatewayError("tools: is nested too deeply", param="tools", code="invalid_value") from error
        return options

    def parser(self) -> AnswerParser:
        """Returns the parser of one answer."""
        schemas = {tool.name: tool.schema for tool in self.use.callable}
        return answer_parser(
            self.chat_format,
            names(self.use.callable),
            reasoning=self._splits_reasoning,
            schemas=schemas,
            enforced=self.use.enforced or bool(self.form),
        )

    def call_id(self, answer: str, index: int) -> str:
        """Returns the id of an answer's call. answer: id of the answer."""
        letters = hashlib.sha256(f"{self.nonce} {answer} {index}".encode()).hexdigest()
        told = self.chat_format
        if told is not None and told.tool_calls in ("mistral", "mistral_args"):
            return letters[:_MISTRAL_ID]
        return f"call_{letters[:24]}"
