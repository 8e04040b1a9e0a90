"""The parser for an answer, by the format of the served model's chat template."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from draftwire import ChatFormat
from gateway_service.answers import hermes, mistral
from gateway_service.answers.harmony import HarmonyParser
from gateway_service.answers.hermes import HermesParser
from gateway_service.answers.llama import LlamaParser
from gateway_service.answers.mistral import MistralParser
from gateway_service.answers.part import AnswerParser
from gateway_service.answers.reasoning import ContentMarksParser, PlainParser, ReasoningParser
from gateway_service.answers.spelled.expected_text import begins
from gateway_service.answers.spelled.parser import SpelledParser

_PARSERS: dict[str, Callable[[Collection[str]], AnswerParser]] = {
    "hermes": HermesParser,
    "llama": LlamaParser,
    "mistral": MistralParser,
    "mistral_args": MistralParser,
    "harmony": HarmonyParser,
}
_MARKS = {"hermes": (hermes.BEGIN,), "mistral": (mistral.CALLS,), "mistral_args": (mistral.CALLS,)}


def answer_parser(
    chat_format: ChatFormat | None,
    tools: Collection[str],
    *,
    reasoning: bool,
    schemas: Mapping[str, Mapping[str, Any]] | None = None,
    enforced: bool = False,
) -> AnswerParser:
    """Returns the parser for one answer. tools: names of the tools that it may call. reasoning: whether to
    separate reasoning from the answer. schemas: JSON schemas of the tools' arguments, where known. enforced:
    whether a grammar holds for calls; otherwise marks may be missing that no grammar leaves out."""
    if chat_format is None:
        return PlainParser()

    def behind() -> AnswerParser:
        return _behind_reasoning(chat_format, tools, reasoning=reasoning, schemas=schemas or {}, enforced=enforced)

    if not (reasoning and chat_format.reasoning_end):
        return behind()
    begin, end = chat_format.reasoning_begin, chat_format.reasoning_end
    marks = _call_marks(chat_format) if tools and not enforced else ()
    return ReasoningParser(begin, end, behind, begun=chat_format.reasoning_open, calls=marks)


def _behind_reasoning(
    chat_format: ChatFormat,
    tools: Collection[str],
    *,
    reasoning: bool,
    schemas: Mapping[str, Mapping[str, Any]],
    enforced: bool,
) -> AnswerParser:
    parser: AnswerParser = PlainParser()
    if chat_format.tool_calls is not None and (tools or (reasoning and chat_format.tool_calls == "harmony")):
        if chat_format.tool_calls == "spelled":
            assert chat_format.spelling is not None
            parser = SpelledParser(tools, chat_format.spelling, schemas, enforced=enforced)
        else:
            parser = _PARSERS[chat_format.tool_calls](tools)
    if chat_format.content_begin:
        parser = ContentMarksParser(chat_format.content_begin, chat_format.content_end, parser)
    return parser


def _call_marks(chat_format: ChatFormat) -> Sequence[str]:
    """Returns the marks with which calls begin; none if they have none."""
    if chat_format.spelling is not None and chat_format.tool_calls == "spelled":
        return begins(chat_format.spelling)
    return _MARKS.get(chat_format.tool_calls or "", ())


def needs_special_tokens(chat_format: ChatFormat | None) -> bool:
    """Whether an answer can be parsed only with its special tokens."""
    return chat_format is not None and chat_format.special_markers
