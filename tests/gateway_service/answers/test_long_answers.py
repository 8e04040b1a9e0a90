"""Long answers: the same parts however they are cut, in time that grows with their length alone."""

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftwire import CallSpelling, ChatFormat
from gateway_service.answers.parsers import answer_parser
from gateway_service.answers.part import Content, Part, Reasoning, joined
from tests.harness.engine.counted_work import instructions
from tests.harness.models import call_spellings

SPELLINGS = {
    "qwen 3.5": call_spellings.QWEN_3_5,
    "glm": call_spellings.GLM_4_5,
    "gemma 4": call_spellings.GEMMA_4,
    "lfm 2": call_spellings.LFM_2,
    "command a": call_spellings.COMMAND_A,
    "json": call_spellings.JSON,
    "two tags": CallSpelling(
        "parameters",
        call_begin="<tool_call>",
        key_begin="<arg_key>",
        key_end="</arg_key>\n<arg_value>",
        value_end="</arg_value>\n</parameter>",
        call_end="</tool_call>",
    ),
}
TOOLS = {"weather", "clock"}
SCHEMAS = {"weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}
FORMATS = [
    *map(call_spellings.spelled, SPELLINGS.values()),
    ChatFormat(
        "spelled",
        "<think>",
        "</think>",
        spelling=call_spellings.COMMAND_A,
        content_begin="<|START_RESPONSE|>",
        content_end="<|END_RESPONSE|>",
    ),
    ChatFormat("hermes", "<think>", "</think>"),
    ChatFormat("llama"),
    ChatFormat("mistral"),
    ChatFormat("mistral_args"),
    ChatFormat("harmony"),
    ChatFormat(None, "<think>", "</think>", reasoning_open=True),
    ChatFormat("spelled", "<think>", "</think>", reasoning_open=True, spelling=call_spellings.QWEN_3_5),
]
PIECES = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<think>", "</think>", "<|channel|>",
    "<|message|>", "<|end|>", "<|start|>", "<|call|>", "analysis", " to=functions.weather", "weather", "clock", "rm",
    '{"name": "weather", "arguments": {"city": "Ro}me\\""}}', '{"name": "clock"}', '"arguments"', '"parameters": ',
    "<function=", "</function>", "<parameter=", "</parameter>", ">", "<arg_key>", "</arg_key>", "<arg_value>",
    "</arg_value>", "city", "days", "<|tool_call>call:", "<tool_call|>", '<|"|>', "<|tool_call_start|>[",
    "]<|tool_call_end|>", "(", ")", "=", "'", "True", "1.50", "\\u00e9", "\\x4", "<|START_ACTION|>[",
    "<|END_ACTION|>", '{"tool_name": "clock", "parameters": {}}', "<|START_RESPONSE|>", "\n</parameter>\n",
    "<tool_call>\n<function=weather>\n<parameter=city>\n", "weather{city:",
    "<tool_call>weather<arg_key>city</arg_key><arg_value>", "<|tool_call_start|>[weather(city='", "{", "}", "[", "]",
    '"', "\\", ",", ":", ";", " ", "\n", "  \t", "<", "|", "text", "null", "1",
]  # fmt: skip
CUTS = {
    "answer": st.lists(st.sampled_from(PIECES), max_size=25).map("".join),
    "cuts": st.lists(st.integers(0, 400), max_size=8),
}


def name_of(chat_format: ChatFormat) -> str:
    found = next((name for name, each in SPELLINGS.items() if each == chat_format.spelling), "reasoning")
    return found if chat_format.tool_calls in (None, "spelled") else chat_format.tool_calls


def parse(chat_format: ChatFormat, pieces: list[str]) -> list[Part]:
    parser = answer_parser(chat_format, TOOLS, reasoning=True, schemas=SCHEMAS)
    return joined([part for piece in pieces for part in parser.push(piece)] + parser.end())


def check_cuts(chat_format: ChatFormat, answer: str, cuts: list[int]) -> None:
    whole = parse(chat_format, [answer])
    assert parse(chat_format, list(answer)) == whole
    ends = [0, *sorted(min(cut, len(answer)) for cut in cuts), len(answer)]
    assert parse(chat_format, [answer[a:b] for a, b in pairwise(ends)]) == whole


@pytest.mark.parametrize("chat_format", FORMATS, ids=name_of)
@settings(max_examples=15)
@given(**CUTS)
@example(answer='[TOOL_CALLS] [{"name": "clock"}, ]x', cuts=[])
@example(answer='<tool_call>{"name": "clock"} <tool_call>{"name": "clock"}', cuts=[29])
def test_an_answer_is_the_same_however_it_is_cut(chat_format: ChatFormat, answer: str, cuts: list[int]) -> None:
    check_cuts(chat_format, answer, cuts)


LONG = {
    "white space": ("", " " * 20, ""),
    "white space behind a mark": ("<tool_call>", "\n" * 20, ""),
    "an argument": ('<tool_call>{"name": "weather", "arguments": {"a": "', "letters of it " * 2, '"}}</tool_call>'),
    "escapes": ('[TOOL_CALLS]weather[ARGS]{"a": "', '\\"' * 10, '"}'),
    "brackets": ('{"name": "weather", "parameters": {"a": ', "[1, " * 5, ""),
    "reasoning": ("<think>", "hm <thin " * 3, "</think>"),
    "a parameter": ("<tool_call><function=weather><parameter=city>", "letters \n of </ it " * 2, "</parameter>"),
    "ends of calls in a value": ("<tool_call><function=weather><parameter=city>", "</function> </tool", "</parameter>"),
    "a number": ("<tool_call>weather<arg_key>days</arg_key><arg_value>", "1 \n " * 5, "</arg_value></tool_call>"),
    "spaces within a mark": ("<tool_call>weather<arg_key>days</arg_key>", " \n" * 10, "<arg_value>1</arg_value>"),
    "tags that are text": ("<tool_call>weather<arg_key>city", "</arg_key> <arg", "</arg_key><arg_value>"),
    "a quoted string": ('<|tool_call>call:weather{city:<|"|>', 'Ro"me <| ' * 3, '<|"|>}<tool_call|>'),
    "words": ("<|tool_call>call:weather{a:[", "word <, " * 3, ""),
    "apostrophes": ("<|tool_call_start|>[weather(city='", "it's \\' " * 3, "')]<|tool_call_end|>"),
    "spaces behind apostrophes": ("<|tool_call_start|>[weather(city='a'", " \n" * 10, ")]"),
    "calls": ("<|tool_call_start|>[", "clock(), weather(days=[1, {'a': 2}]), ", "]<|tool_call_end|>"),
    "a name": ("<function=", "weather" * 3, ">{}"),
    "messages": ("", "<|channel|>final<|message|>x<|end|>", ""),
    "marks in reasoning": ("<think>", '<tool_call>{"name": "rm"} or ', "</think>"),
}


WRITTEN_FOR = {
    "white space": "hermes", "white space behind a mark": "qwen 3.5", "an argument": "hermes",
    "escapes": "mistral_args", "brackets": "llama", "reasoning": "hermes", "a parameter": "qwen 3.5",
    "ends of calls in a value": "qwen 3.5",
    "a number": "glm", "spaces within a mark": "two tags", "tags that are text": "glm", "a quoted string": "gemma 4",
    "words": "gemma 4", "apostrophes": "lfm 2", "spaces behind apostrophes": "lfm 2", "calls": "lfm 2",
    "a name": "qwen 3.5", "messages": "harmony", "marks in reasoning": "hermes",
}  # fmt: skip
"""The format whose marks a long answer has."""


def check_work(chat_format: ChatFormat, case: str) -> None:
    begin, repeated, end = LONG[case]

    def pieces(count: int) -> list[str]:
        return [begin, *[repeated] * count, end]

    for cut in (pieces, lambda count: ["".join(pieces(count))]):
        short, long = (instructions(lambda each=each: parse(chat_format, each)) for each in (cut(40), cut(80)))
        assert long < 2.3 * short + 1000


@pytest.mark.parametrize("case", LONG)
def test_the_work_grows_with_the_length(case: str) -> None:
    """In instructions, whole and in pieces: twice the text takes about twice as many. In the format of the answer and
    in one that takes its marks for text."""
    check_work(next(each for each in FORMATS if name_of(each) == WRITTEN_FOR[case]), case)
    check_work(FORMATS[[*LONG].index(case) % len(FORMATS)], case)


def check_white_space(chat_format: ChatFormat) -> None:
    """400,000 letters of it: copies with each piece would take more than the budget of a test, or give others."""
    parser = answer_parser(chat_format, TOOLS, reasoning=True)
    parts = [part for _ in range(200_000) for part in parser.push("  ")]
    trimmed = chat_format.reasoning_open  # white space around the reasoning is left out
    content = "x" if trimmed else " " * 400_000 + "x"
    assert joined([*parts, *parser.push("x"), *parser.end()]) == [Reasoning(content) if trimmed else Content(content)]


@pytest.mark.parametrize("chat_format", [FORMATS[0], *FORMATS[len(SPELLINGS) :]], ids=name_of)
def test_white_space_that_is_held_back_is_copied_once(chat_format: ChatFormat) -> None:
    check_white_space(chat_format)


@pytest.mark.slow
@pytest.mark.parametrize("chat_format", FORMATS, ids=name_of)
class TestEveryFormat:
    @settings(max_examples=120)
    @given(**CUTS)
    def test_an_answer_is_the_same_however_it_is_cut(
        self, chat_format: ChatFormat, answer: str, cuts: list[int]
    ) -> None:
        check_cuts(chat_format, answer, cuts)

    @pytest.mark.parametrize("case", LONG)
    def test_the_work_grows_with_the_length(self, chat_format: ChatFormat, case: str) -> None:
        check_work(chat_format, case)

    def test_white_space_that_is_held_back_is_copied_once(self, chat_format: ChatFormat) -> None:
        check_white_space(chat_format)
