"""The parser for an answer, by the format of the served model's chat template."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from draftwire import ChatFormat
from gateway_service.answers.harmony import HarmonyParser
from gateway_service.answers.hermes import HermesParser
from gateway_service.answers.llama import LlamaParser
from gateway_service.answers.mistral import MistralParser
from gateway_service.answers.part import AnswerParser
from gateway_service.answers.reasoning import ContentMarksParser, PlainParser, ReasoningParser
from gateway_service.answers.spelled.parser import SpelledParser

_PARSERS: dict[str, Callable[[Collection[str]], AnswerParser]] = {
    "hermes": HermesParser,
    "llama": LlamaParser,
    "mistral": MistralParser,
    "mistral_args": MistralParser,
    "harmony": HarmonyParser,
}


def answer_parser(
    chat_format: ChatFormat | None,
    tools: Collection[str],
    *,
    reasoning: bool,
    schemas: Mapping[str, Mapping[str, Any]] | None = None,
) -> AnswerParser:
    """Returns the parser for one answer. tools: names of the tools that it may call. reasoning: whether to
    separate reasoning from the answer. schemas: JSON schemas of the tools' arguments, where known."""
    if chat_format is None:
        return PlainParser()
    parser: AnswerParser = PlainParser()
    if chat_format.tool_calls is not None and (tools or (reasoning and chat_format.tool_calls == "harmony")):
        if chat_format.tool_calls == "spelled":
            assert chat_format.spelling is not None
            parser = SpelledParser(tools, chat_format.spelling, schemas or {})
        else:
            parser = _PARSERS[chat_format.tool_calls](tools)
    if chat_format.content_begin:
        parser = ContentMarksParser(chat_format.content_begin, chat_format.content_end, parser)
    if reasoning and chat_format.reasoning_end:
        begin, end = chat_format.reasoning_begin, chat_format.reasoning_end
        parser = ReasoningParser(begin, end, parser, begun=chat_format.reasoning_open)
    return parser


def needs_special_tokens(chat_format: ChatFormat | None) -> bool:
    """Whether an answer can be parsed only with its special tokens."""
    return chat_format is not None and chat_format.special_markers
