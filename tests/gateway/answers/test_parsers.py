"""Parsers of answers: however the text is cut, the parts are the same."""

import itertools

import pytest

from draftwire import ChatFormat, ToolCallFormat
from gateway.answers.answer import Answer, Call
from gateway.answers.parsers import answer_parser
from gateway.answers.part import CallArguments, CallStart, Content, Part, Reasoning, joined

TOOLS = {"weather", "clock"}
THINK = ChatFormat("hermes", "<think>", "</think>")
OPEN = ChatFormat(None, "<think>", "</think>", reasoning_open=True)


def parse(chat_format: ChatFormat, pieces: list[str]) -> list[Part]:
    parser = answer_parser(chat_format, TOOLS if chat_format.tool_calls else (), reasoning=True)
    return joined([part for piece in pieces for part in parser.push(piece)] + parser.end())


def calls(*arguments: str, name: str = "weather", first: int = 0) -> list[Part]:
    return [
        part
        for index, each in enumerate(arguments, first)
        for part in (CallStart(index, name), CallArguments(index, each))
    ]


NESTED = '{"city": "Lis}bon\\" </tool_call>[", "days": [1, {"a": "]"}], "x": null}'

CASES: list[tuple[ToolCallFormat | ChatFormat, str, list[Part]]] = [
    ("hermes", "just text <tool", [Content("just text <tool")]),
    ("hermes", " \ntext\n ", [Content(" \ntext\n ")]),
    (
        "hermes",
        'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>',
        [Content("Let me see."), *calls('{"city": "Rome"}')],
    ),
    (
        "hermes",
        f'<tool_call>\n{{"name": "weather", "arguments": {NESTED}}}\n</tool_call>\n'
        '<tool_call>{"arguments": {"a": 1}, "name": "weather"}</tool_call>\n',
        calls(NESTED, '{"a": 1}'),
    ),
    (
        "hermes",
        '<tool_call>{"name": "weather"}</tool_call> and more',
        [*calls("{}"), Content("and more")],
    ),
    (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": "{\\"a\\": 1}"}</tool_call>',
        calls('{"a": 1}'),
    ),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Ro', calls('{"city": "Ro')),
    (
        "hermes",
        'a <tool_call>{"name": "rm", "arguments": {}}</tool_call> b',
        [Content('a <tool_call>{"name": "rm", "arguments": {}}</tool_call> b')],
    ),
    ("hermes", "<tool_call>nonsense</tool_call>", [Content("<tool_call>nonsense</tool_call>")]),
    ("hermes", '<tool_call>{"name": "weat', [Content('<tool_call>{"name": "weat')]),
    ("llama", '{"name": "weather", "parameters": {"city": "Rome"}}', calls('{"city": "Rome"}')),
    ("llama", '\n<|python_tag|>{"name": "weather", "parameters": {"a": 1}}', calls('{"a": 1}')),
    (
        "llama",
        '{"name": "weather", "parameters": {"a": 1}}; {"name": "weather", "parameters": {"a": 2}}',
        calls('{"a": 1}', '{"a": 2}'),
    ),
    ("llama", '{"name": "rm", "parameters": {}}', [Content('{"name": "rm", "parameters": {}}')]),
    ("llama", '{"answer": 3}', [Content('{"answer": 3}')]),
    ("llama", "It is {warm}.", [Content("It is {warm}.")]),
    ("llama", " <|python", [Content(" <|python")]),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"a": "]"}}, {"name": "weather", "arguments": {}}]',
        calls('{"a": "]"}', "{}"),
    ),
    (
        "mistral",
        'Well. [TOOL_CALLS][{"name": "weather", "arguments": {"a": 1}, "id": "x"}]',
        [Content("Well."), *calls('{"a": 1}')],
    ),
    ("mistral", "[TOOL_CALLS] [nothing]", [Content("[TOOL_CALLS] [nothing]")]),
    (
        "mistral_args",
        'Hm [TOOL_CALLS]weather[ARGS]{"a": {"b": 1}}[TOOL_CALLS]clock[CALL_ID]abc123[ARGS]{}',
        [Content("Hm"), *calls('{"a": {"b": 1}}'), *calls("{}", name="clock", first=1)],
    ),
    ("mistral_args", "[TOOL_CALLS]rm[ARGS]{}", [Content("[TOOL_CALLS]rm[ARGS]{}")]),
    (
        "harmony",
        "<|channel|>analysis<|message|>Rome?<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
        '<|constrain|>json<|message|>{"city": "Rome"}<|call|>',
        [Reasoning("Rome?"), *calls('{"city": "Rome"}')],
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>It is warm.",
        [Reasoning("Hm"), Content("It is warm.")],
    ),
    (
        "harmony",
        "<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant to=functions.clock<|channel|>commentary json"
        "<|message|>",
        [Content("Wait."), *calls("{}", name="clock")],
    ),
    ("harmony", "no header <|mess", [Content("no header <|mess")]),
    (
        THINK,
        '<think>\nRome </thin\n</think>\n\n<tool_call>{"name": "weather", "arguments": {}}</tool_call>',
        [Reasoning("Rome </thin"), *calls("{}")],
    ),
    (THINK, "<think>\n\n</think>\n\nwarm\n", [Content("warm\n")]),
    (THINK, "<thin ice>", [Content("<thin ice>")]),
    (THINK, "<think>cut off", [Reasoning("cut off")]),
    (OPEN, "so\n</think>\nwarm", [Reasoning("so"), Content("warm")]),
    (OPEN, "<think>\nso</think>warm", [Reasoning("so"), Content("warm")]),
    (OPEN, "so", [Reasoning("so")]),
]


def named(case: ToolCallFormat | ChatFormat) -> ChatFormat:
    return case if isinstance(case, ChatFormat) else ChatFormat(case)


@pytest.mark.parametrize(("kind", "text", "expected"), CASES)
def test_an_answer_is_the_same_however_it_is_cut(
    kind: ToolCallFormat | ChatFormat, text: str, expected: list[Part]
) -> None:
    chat_format = named(kind)
    assert parse(chat_format, [text]) == expected
    assert parse(chat_format, list(text)) == expected
    for cut in range(1, len(text)):
        assert parse(chat_format, [text[:cut], text[cut:]]) == expected, cut


@pytest.mark.slow
class TestCutTwice:
    @pytest.mark.parametrize(("kind", "text", "expected"), CASES)
    def test_an_answer_is_the_same(self, kind: ToolCallFormat | ChatFormat, text: str, expected: list[Part]) -> None:
        chat_format = named(kind)
        for first, second in itertools.combinations(range(len(text) + 1), 2):
            assert parse(chat_format, [text[:first], text[first:second], text[second:]]) == expected, (first, second)


def test_arguments_are_passed_on_as_they_come() -> None:
    parser = answer_parser(ChatFormat("hermes"), TOOLS, reasoning=True)
    assert joined(parser.push('<tool_call>{"name": "weather", "arguments": {"ci')) == calls('{"ci')
    assert joined(parser.push("ty")) == [CallArguments(0, "ty")]


def test_without_tools_calls_are_text() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    parser = answer_parser(ChatFormat("hermes"), (), reasoning=True)
    assert Answer.read(parser, text) == Answer(text, "", [])
    assert Answer.read(answer_parser(None, (), reasoning=True), text).content == text
    calling = answer_parser(ChatFormat("hermes"), TOOLS, reasoning=True)
    assert Answer.read(calling, text) == Answer("", "", [Call("weather", "{}")])
