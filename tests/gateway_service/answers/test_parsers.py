"""Parsers of answers: however the text is cut, the parts are the same."""

import itertools
from dataclasses import replace

import pytest

from draftwire import CallSpelling, ChatFormat, ToolCallFormat
from gateway_service.answers.answer import Answer, Call
from gateway_service.answers.parsers import answer_parser
from gateway_service.answers.part import CallArguments, CallStart, Content, Part, Reasoning, joined
from tests.harness.models import call_spellings
from tests.harness.models.call_spellings import spelled

TOOLS = {"weather", "clock"}
THINK = ChatFormat("hermes", "<think>", "</think>")
SCHEMAS = {
    "weather": {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}, "days": {}, "dry": {}, "more": {}},
        "$defs": {"City": {"type": "string"}},
    }
}
QWEN_3_5, GLM_4_5, GEMMA_4, LFM_2, COMMAND_A, JSON = map(
    spelled,
    (
        call_spellings.QWEN_3_5, call_spellings.GLM_4_5, call_spellings.GEMMA_4, call_spellings.LFM_2,
        call_spellings.COMMAND_A, call_spellings.JSON,
    ),
)  # fmt: skip
TWO_TAGS = spelled(
    CallSpelling(
        "parameters",
        call_begin="<call>",
        key_begin="\n<arg>\n<key>",
        key_end="</key>\n<value>",
        value_end="</value>\n</arg>",
        call_end="\n</call>",
    )
)
"""Marks of two tags on two lines, around keys and values."""
CALLS_WITHOUT_END = spelled(CallSpelling("json", begin="<calls>", call_begin="<c>", name_end=":", call_end="</c>"))
OPEN = ChatFormat(None, "<think>", "</think>", reasoning_open=True)
CODER = replace(OPEN, tool_calls="spelled", spelling=call_spellings.QWEN_3_5)


def parse(chat_format: ChatFormat, pieces: list[str]) -> list[Part]:
    parser = answer_parser(chat_format, TOOLS if chat_format.tool_calls else (), reasoning=True, schemas=SCHEMAS)
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
    ("hermes", '<tool_call>{"name": "weat', []),
    ("hermes", 'Hm <tool_call>{"name": "weather", "arg', [Content("Hm"), CallStart(0, "weather")]),
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
    ("mistral_args", "[TOOL_CALLS]weather[AR", [CallStart(0, "weather")]),
    (
        QWEN_3_5,
        'Hm\n\n<tool_call>\n<function=weather>\n<parameter=city>\n Ro"me\n\n</parameter>\n'
        "<parameter=days>\n3\n</parameter>\n<parameter=dry>\nTrue\n</parameter>\n"
        "<parameter=more>\n{'a': [None]}\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=clock>\n</function>\n</tool_call>",
        [
            Content("Hm"),
            *calls('{"city": " Ro\\"me\\n", "days": 3, "dry": true, "more": {"a": [null]}}'),
            *calls("{}", name="clock", first=1),
        ],
    ),
    (
        QWEN_3_5,
        "<tool_call>\n<function=weather>\n<parameter=city>\n42\n</parameter>\n</tool_call> after",
        [*calls('{"city": "42"}'), Content("after")],
    ),
    (
        QWEN_3_5,
        "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n<tool_call>\n"
        "<function=clock>\n</function>after",
        [*calls('{"city": "Rome"}'), *calls("{}", name="clock", first=1), Content("after")],
    ),
    (
        QWEN_3_5,
        "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>",
        calls('{"city": "Rome"}'),
    ),
    (
        QWEN_3_5,
        "<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\n<parameter=city>\nRome\n</function>\n</tool_call>",
        calls('{"days": 3, "city": "Rome"}'),
    ),
    (
        QWEN_3_5,
        "<function=weather>\n<parameter=days>\n3\n</function>\n</tool_call>\n<tool_call>\n<function=weather>\n"
        "<parameter=city>\nRome\n</function></tool_call>\n\n<function=clock>\n</function>\n</tool_call>",
        [*calls('{"days": 3}', '{"city": "Rome"}'), *calls("{}", name="clock", first=2)],
    ),
    (
        QWEN_3_5,
        "<tool_call>\n<function=weather>\n<parameter=city>\n</function>\n</tool_call> and </function></parameter>\n"
        "</function>",
        calls('{"city": "</function>\\n</tool_call> and </function>"}'),
    ),
    (QWEN_3_5, "<tool_call>\n<function=weather>\n<parameter=city>\n</function>", calls('{"city": ""}')),
    (
        QWEN_3_5,
        "<tool_call>\n<function=weather>\n<parameter=city>\nRo<parameter=me>\n<parameter=days>\n3\n<parameter=city>\n4\n"
        "</parameter>\n<parameter=dry>\nTrue\n<parameter=more >\na</function>\n</tool_call>",
        calls('{"city": "Ro<parameter=me>", "days": "3\\n<parameter=city>\\n4", "dry": true, "more": "a"}'),
    ),
    (QWEN_3_5, "<tool_call>\n<function=clock>\n</function>\n", calls("{}", name="clock")),
    (
        QWEN_3_5,
        "Hm\n\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>\n"
        "<function=clock>\n</function>\n<tool_call>\n<function=clock>\n</function>\n</tool_call>",
        [Content("Hm"), *calls('{"city": "Rome"}'), *calls("{}", "{}", name="clock", first=1)],
    ),
    (
        QWEN_3_5,
        "A `<function=weather>` or <function=rm>\n</function>\n\n<function=weather></function>",
        [Content("A `<function=weather>` or <function=rm>\n</function>"), *calls("{}")],
    ),
    (QWEN_3_5, "<tool_call>\n<function=rm>\n</function>", [Content("<tool_call>\n<function=rm>\n</function>")]),
    (QWEN_3_5, "<tool_call>\n<function=weather>\n<parameter=city>\nRo", calls('{"city": "Ro')),
    (
        GLM_4_5,
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome\n</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3"
        "</arg_value></tool_call>",
        calls('{"city": "Rome\\n", "days": 3}'),
    ),
    (
        GLM_4_5,
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Ro</arg_key>me</arg_value><arg_key>days</arg_key>\n\n \t"
        "<arg_value>3</arg_value></tool_call><tool_call> weather <arg_key> city </arg_key> <arg_value> a</arg_value> "
        "</tool_call>",
        calls('{"city": "Ro</arg_key>me", "days": 3}', '{"city": " a"}'),
    ),
    (
        QWEN_3_5,
        "<tool_call><function=weather><parameter=city>Rome</parameter><parameter=days>3</parameter></function></tool_call>"
        "<tool_call>\n\n<function=weather>\n \n<parameter=city>\nRome\n</parameter> </function>\t</tool_call>",
        calls('{"city": "Rome", "days": 3}', '{"city": "Rome"}'),
    ),
    (
        GLM_4_5,
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome\n</tool_call>\n<tool_call>clock</tool_call>",
        [*calls('{"city": "Rome\\n"}'), *calls("{}", name="clock", first=1)],
    ),
    (
        TWO_TAGS,
        "<call>weather<arg><key>city</key><value>a</value>b</value></arg><arg>\n\n<key>days</key> \n<value>3</value>"
        "\t</arg></call>",
        calls('{"city": "a</value>b", "days": 3}'),
    ),
    (
        TWO_TAGS,
        "<call>weather<arg><key>city</key><value></value></a</value></value></arg></call>",
        calls('{"city": "</value></a</value>"}'),
    ),
    (
        GEMMA_4,
        '<|tool_call>call:weather{city:<|"|>Ro}"me\\<|"|>,days:-3,more:{a:[true,<|"|>b<|"|>,null],b:x}}<tool_call|>'
        "<|tool_call>call:clock{}<tool_call|>",
        [
            *calls('{"city": "Ro}\\"me\\\\", "days": -3, "more": {"a": [true, "b", null], "b": "x"}}'),
            *calls("{}", name="clock", first=1),
        ],
    ),
    (
        LFM_2,
        "<|tool_call_start|>[weather(city='Tom's \\'x\\' \\x41', days=3, dry=True, more={\"a\": (1, 2.5)}), clock()]"
        "<|tool_call_end|>It is.",
        [
            *calls('{"city": "Tom\'s \'x\' \\u0041", "days": 3, "dry": true, "more": {"a": [1, 2.5]}}'),
            *calls("{}", name="clock", first=1),
            Content("It is."),
        ],
    ),
    (
        COMMAND_A,
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Rome"}}\n]'
        "<|END_ACTION|>",
        calls('{"city": "Rome"}'),
    ),
    (
        JSON,
        '<function=weather>{"city": "Rome"}</function> <function=nothing>',
        [
            *calls('{"city": "Rome"}'),
            Content("<function=nothing>"),
        ],
    ),
    (
        CALLS_WITHOUT_END,
        '<calls><c>weather:{"x": 1}</c><c>weather:{"y": 2}</c>',
        calls('{"x": 1}', '{"y": 2}'),
    ),
    (
        QWEN_3_5,
        "<tool_call>\n<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
        [Content("<tool_call>"), *calls('{"city": "Rome"}')],
    ),
    (
        QWEN_3_5,
        "<tool_call>\n<function=weather>\n<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n"
        "</function>\n</tool_call>",
        [Content("<tool_call>\n<function=weather>"), *calls('{"city": "Rome"}')],
    ),
    (
        GLM_4_5,
        "<tool_call><tool_call>weather<arg_key>city</arg_key>\n<arg_value>Rome</arg_value></tool_call>",
        [Content("<tool_call>"), *calls('{"city": "Rome"}')],
    ),
    (
        "hermes",
        '<tool_call>\n<tool_call>\n{"name": "weather", "arguments": {"a": 1}}\n</tool_call>',
        [Content("<tool_call>"), *calls('{"a": 1}')],
    ),
    (
        LFM_2,
        "<|tool_call_start|>[weather(d=date(2024, [1], 'a'), e=2), weather(**{'a': 1}, b=2), weather({}, {'c': 3}), "
        "weather([1, 'x=2'], *{4: 5}, f=6)]<|tool_call_end|>",
        calls('{"d": "date", "e": 2}', '{"a": 1, "b": 2}', '{"c": 3}', '{"*": null, "f": 6}'),
    ),
    (
        LFM_2,
        "<|tool_call_start|>[weather(p='C:\\x', n=1, q='\\u12\\n'), weather(a=+5, b=007, c=1_000, d=inf, e=.5)]"
        "<|tool_call_end|>",
        calls('{"p": "C:\\\\x", "n": 1, "q": "\\\\u12\\n"}', '{"a": 5, "b": 7, "c": 1000, "d": "inf", "e": 0.5}'),
    ),
    (
        "harmony",
        "<|channel|>commentary to=functions.weather<|message|><",
        calls("<"),
    ),
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
    (
        "harmony",
        "<|channel|>analysis to=python<|message|>1 + 1<|end|><|start|>assistant<|channel|>comment to=weather code"
        '<|message|>{"city": "Rome"}<|call|>',
        [Reasoning("1 + 1"), *calls('{"city": "Rome"}')],
    ),
    ("harmony", "<|channel|>commentary to=rm <|message|>{}<|call|>", [Content("{}")]),
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
    (
        THINK,
        '<think>\nRome.\n<tool_call>\n{"name": "weather", "arguments": {"a": "</think>"}}\n</tool_call>\nwarm',
        [Reasoning("Rome."), *calls('{"a": "</think>"}'), Content("warm")],
    ),
    (
        THINK,
        '<think>Use <tool_call>, or <tool_call>{"name": "rm"} so.</think><tool_call>{"name": "clock"}</tool_call>',
        [Reasoning('Use <tool_call>, or <tool_call>{"name": "rm"} so.'), *calls("{}", name="clock")],
    ),
    (THINK, "<think><tool_call></think>warm", [Reasoning("<tool_call>"), Content("warm")]),
    (THINK, "<think>a <tool_call>{", [Reasoning("a <tool_call>{")]),
    (
        CODER,
        "Rome.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
        [Reasoning("Rome."), *calls('{"city": "Rome"}')],
    ),
    (CODER, "<function=clock>\n</function>\n</tool_call>", calls("{}", name="clock")),
    (CODER, "A <function=clock> or so\n</think>warm", [Reasoning("A <function=clock> or so"), Content("warm")]),
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


@pytest.mark.parametrize(
    ("kind", "text"),
    [(kind, text) for kind, text, parts in CASES if any(isinstance(part, CallStart) for part in parts)],
)
def test_an_answer_that_is_cut_off_shows_no_marks(kind: ToolCallFormat | ChatFormat, text: str) -> None:
    """Wherever it is cut off: its content, its calls and their arguments are the start of those of the whole."""
    chat_format = named(kind)
    whole = Answer.read(answer_parser(chat_format, TOOLS, reasoning=True, schemas=SCHEMAS), text)
    for end in range(len(text)):
        parser = answer_parser(chat_format, TOOLS, reasoning=True, schemas=SCHEMAS)
        answer = Answer.read(parser, text[:end], cut=True)
        assert whole.content.startswith(answer.content.rstrip()), text[:end]
        assert whole.reasoning.startswith(answer.reasoning)
        for expected, call in zip(whole.calls, answer.calls, strict=False):
            assert call.name == expected.name and expected.arguments.startswith(call.arguments)


def test_json_that_is_cut_off_is_text_unless_it_begins_as_a_call() -> None:
    for text, content in (('{"answer": 3', '{"answer": 3'), ('{"name": "Bob', '{"name": "Bob'), ('{"name": "wea', "")):
        assert Answer.read(answer_parser(ChatFormat("llama"), TOOLS, reasoning=True), text, cut=True).content == content
    text = '{"name": "wea'
    assert Answer.read(answer_parser(ChatFormat("llama"), TOOLS, reasoning=True), text).content == text


def test_a_name_that_is_nested_without_end_is_none() -> None:
    text = '<tool_call>{"name": ' + "[" * 200_000 + "]" * 200_000 + "}</tool_call>"
    assert Answer.read(answer_parser(ChatFormat("hermes"), TOOLS, reasoning=True), text) == Answer(text, "", [])


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
