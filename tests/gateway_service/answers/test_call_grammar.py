"""Grammars of answers with calls: what they allow, and that parsers read what they allow."""

import json
from pathlib import Path

import pytest

from draftwire import ChatFormat
from draftwire._types.from_message import read
from draftwire_core.engine.logits.grammar import FormKind, Grammar
from draftwire_core.engine.logits.grammar_compiler import GrammarCompiler
from draftwire_core.engine.text.tokenizer import Tokenizer
from gateway_service.answers.answer import Answer, Call
from gateway_service.answers.answer_form import AnswerForm
from gateway_service.answers.answer_plan import AnswerPlan
from gateway_service.answers.tool import Tool, ToolUse
from gateway_service.http.errors import GatewayError
from tests.harness.models import call_spellings, chat_templates
from tests.harness.models.chat_templates import target_with_template
from verifier_service.reading.chat import chat_format_message

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
STRICT = CITY | {"additionalProperties": False}
TOOLS = [Tool("weather", parameters=STRICT, strict=True), Tool("clock")]
REQUIRED, AUTO = ToolUse(TOOLS, "required"), ToolUse(TOOLS, "auto")
ROME = Call("weather", '{"city": "Rome"}')
CLOCK = Call("clock", "{}")
HARMONY = ["<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>", "<|call|>"]
GEMMA_4 = ["<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"]
COMMAND_A = [f"<|{end}_{name}|>" for end in ("START", "END") for name in ("ACTION", "RESPONSE", "THINKING")]
ANALYSIS = "<|channel|>analysis<|message|>Rome?<|end|><|start|>assistant"
HARMONY_CALL = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"

TEMPLATES = {
    "hermes": (chat_templates.HERMES, (), ()),
    "hermes tokens": (chat_templates.HERMES, (), ("<tool_call>", "</tool_call>")),
    "qwen": (chat_templates.QWEN_3, (), ("<tool_call>", "</tool_call>", "<think>", "</think>")),
    "thinking": (chat_templates.THINKING, (), ()),
    "llama": (chat_templates.LLAMA_3, (), ()),
    "mistral": (chat_templates.MISTRAL, ("[TOOL_CALLS]",), ()),
    "mistral args": (chat_templates.MISTRAL_ARGS, ("[TOOL_CALLS]", "[ARGS]"), ()),
    "harmony": (chat_templates.HARMONY, HARMONY, ()),
    "qwen 3.5": (chat_templates.family("qwen3_5_think"), (), ("<tool_call>", "</tool_call>", "<think>", "</think>")),
    "glm": (chat_templates.family("glm4moe"), (), ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>")),
    "gemma 4": (chat_templates.family("gemma4_v5"), GEMMA_4, ()),
    "lfm 2": (chat_templates.family("lfm2_v2"), (), ()),
    "lfm 2 tokens": (chat_templates.family("lfm2"), ("<|tool_call_start|>", "<|tool_call_end|>"), ()),
    "command a": (chat_templates.family("command_a_tool_use"), COMMAND_A, ()),
    "jamba": (chat_templates.family("jamba"), (), ()),
    "json": (chat_templates.QWEN_3_CODER, (), ()),
    "none": (chat_templates.WITHOUT_TOOLS, (), ()),
}
_HERMES_ROME = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
_HERMES_CLOCK = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'

UNTYPED = ToolUse(
    [Tool("weather", parameters={"properties": CITY["properties"]}), Tool("clock", parameters={})], "required"
)
"""Tools whose schemas do not say that arguments are an object."""

ALLOWED: list[tuple[str, ToolUse, str, Answer]] = [
    ("hermes", REQUIRED, _HERMES_ROME, Answer("", "", [ROME])),
    ("hermes", UNTYPED, f"{_HERMES_ROME}\n{_HERMES_CLOCK}", Answer("", "", [ROME, CLOCK])),
    ("hermes tokens", REQUIRED, f"{_HERMES_ROME}\n{_HERMES_CLOCK}", Answer("", "", [ROME, CLOCK])),
    ("hermes", AUTO, f"Let me see. {_HERMES_ROME}{_HERMES_CLOCK}", Answer("Let me see.", "", [ROME, CLOCK])),
    ("hermes tokens", AUTO, f"Let me see. {_HERMES_ROME}", Answer("Let me see.", "", [ROME])),
    ("hermes tokens", AUTO, "It is warm.", Answer("It is warm.", "", [])),
    ("hermes", ToolUse(TOOLS, "auto", parallel=False), _HERMES_CLOCK, Answer("", "", [CLOCK])),
    ("qwen", REQUIRED, f"<think>\nRome?\n</think>\n\n{_HERMES_ROME}", Answer("", "Rome?", [ROME])),
    ("qwen", REQUIRED, _HERMES_ROME, Answer("", "", [ROME])),
    ("qwen", AUTO, "<think>\nHm\n</think>\n\nWarm.", Answer("Warm.", "Hm", [])),
    ("thinking", REQUIRED, f"Rome?\n</think>\n\n{_HERMES_ROME}", Answer("", "Rome?", [ROME])),
    ("llama", REQUIRED, '{"name": "weather", "parameters": {"city": "Rome"}}', Answer("", "", [ROME])),
    ("llama", AUTO, "It is {warm}.", Answer("It is {warm}.", "", [])),
    (
        "mistral",
        REQUIRED,
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome"}}, {"name": "clock", "arguments": {}}]',
        Answer("", "", [ROME, CLOCK]),
    ),
    ("mistral", AUTO, 'Hm [TOOL_CALLS][{"name": "clock", "arguments": {}}]', Answer("Hm", "", [CLOCK])),
    (
        "mistral args",
        REQUIRED,
        '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}[TOOL_CALLS]clock[ARGS]{}',
        Answer("", "", [ROME, CLOCK]),
    ),
    ("harmony", REQUIRED, ANALYSIS + HARMONY_CALL + '{"city": "Rome"}', Answer("", "Rome?", [ROME])),
    ("harmony", AUTO, "<|channel|>final<|message|>Warm.", Answer("Warm.", "", [])),
    ("harmony", AUTO, HARMONY_CALL + '{"city": "Rome"}', Answer("", "", [ROME])),
]

SPELLED = {
    "qwen 3.5": (
        "Rome?\n</think>\n\n{}",
        "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=clock>\n</function>\n</tool_call>",
    ),
    "glm": (
        "<think>Rome?</think>{}",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>\n",
        "<tool_call>clock\n</tool_call>",
    ),
    "gemma 4": (
        "<|channel>thought\nRome?<channel|>{}",
        '<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|>',
        "<|tool_call>call:clock{}<tool_call|>",
    ),
    "lfm 2": ("{}", "<|tool_call_start|>[weather(city='Rome'), ", "clock()]<|tool_call_end|>"),
    "lfm 2 tokens": ("{}", "<|tool_call_start|>[weather(city='Rome'), ", "clock()]<|tool_call_end|>"),
    "command a": (
        "<|START_THINKING|>Rome?<|END_THINKING|>{}",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Rome"}},',
        '\n    {"tool_call_id": "1", "tool_name": "clock", "parameters": {}}\n]<|END_ACTION|>',
    ),
    "jamba": (
        "{}",
        '<tool_calls>[\n    {"name": "weather", "arguments": {"city": "Rome"}},',
        '\n    {"name": "clock", "arguments": {}}\n]</tool_calls>',
    ),
    "json": (
        "{}",
        '<tool_call>\n<function=weather>{"city": "Rome"}</function>\n</tool_call>',
        "<tool_call>\n<function=clock>{}</function>\n</tool_call>",
    ),
    "none": ("{}", f"{_HERMES_ROME}\n", _HERMES_CLOCK),
}
"""By model: a frame with reasoning, and the two calls."""


@pytest.mark.parametrize("name", SPELLED)
def test_calls_of_a_family(models: dict[str, tuple[Tokenizer, ChatFormat]], name: str) -> None:
    tokenizer, chat_format = models[name]
    frame, rome, clock = SPELLED[name]
    text, reasoning = frame.format(rome + clock), "Rome?" if frame != "{}" else ""
    for use in (REQUIRED, AUTO):
        plan = AnswerPlan(chat_format, use, reasoning=True)
        assert taken(tokenizer, plan, text), use
        assert Answer.read(plan.parser(), text) == Answer("", reasoning, [ROME, CLOCK])
        assert taken(tokenizer, plan, frame.format("It is warm.")) == (use is AUTO)
        assert not taken(tokenizer, plan, text.replace("city", "town"))
    one = AnswerPlan(chat_format, ToolUse(TOOLS, "required", "clock"), reasoning=True)
    assert not taken(tokenizer, one, text)
    form = AnswerPlan(chat_format, AUTO, reasoning=True, form=FORMS["schema"])
    assert taken(tokenizer, form, text)
    assert taken(tokenizer, form, frame.format('{"name": "Bob"}'))
    assert not taken(tokenizer, form, frame.format("It is warm."))


@pytest.mark.parametrize("parallel", [True, False])
def test_a_call_without_its_first_mark_follows_its_schema(
    models: dict[str, tuple[Tokenizer, ChatFormat]], parallel: bool
) -> None:
    """Qwen 3 Coder often leaves out the mark before a function."""
    tokenizer, chat_format = models["qwen 3.5"]
    plan = AnswerPlan(chat_format, ToolUse(TOOLS, "auto", parallel=parallel), reasoning=True)
    frame, rome, clock = (text.replace("<tool_call>\n", "") for text in SPELLED["qwen 3.5"])
    text = frame.format(f"Let me see.\n\n{rome}")
    assert taken(tokenizer, plan, text)
    assert Answer.read(plan.parser(), text) == Answer("Let me see.", "Rome?", [ROME])
    for wrong in ("city", "weather"):
        assert not taken(tokenizer, plan, text.replace(wrong, "town"))
    for second in (f"\n{clock}", f"\n{SPELLED['qwen 3.5'][2]}"):
        assert taken(tokenizer, plan, text + second) == parallel
        assert Answer.read(plan.parser(), text + second).calls == [ROME, CLOCK]
    assert not taken(tokenizer, AnswerPlan(chat_format, REQUIRED, reasoning=True), frame.format(rome))


def test_a_call_within_the_reasoning_is_one_if_no_grammar_holds(
    models: dict[str, tuple[Tokenizer, ChatFormat]],
) -> None:
    """Qwen 3.5 often leaves out the end of its reasoning before a call. A grammar makes it write that end."""
    tokenizer, chat_format = models["qwen 3.5"]
    text = f"Rome?\n{SPELLED['qwen 3.5'][1]}"
    free = AnswerPlan(chat_format, ToolUse([Tool("weather", parameters=CITY)], "auto"), reasoning=True)
    assert not free.options()
    assert Answer.read(free.parser(), text) == Answer("", "Rome?", [ROME])
    strict = AnswerPlan(chat_format, AUTO, reasoning=True)
    assert not taken(tokenizer, strict, text)
    assert Answer.read(strict.parser(), text) == Answer("", text, [])


def test_a_value_without_its_end_has_one_if_no_grammar_holds(models: dict[str, tuple[Tokenizer, ChatFormat]]) -> None:
    _, chat_format = models["qwen 3.5"]
    text = SPELLED["qwen 3.5"][0].format(SPELLED["qwen 3.5"][1].replace("</parameter>\n", ""))
    free = AnswerPlan(chat_format, ToolUse([Tool("weather", parameters=CITY)], "auto"), reasoning=True)
    assert Answer.read(free.parser(), text).calls == [ROME]
    (call,) = Answer.read(AnswerPlan(chat_format, AUTO, reasoning=True).parser(), text).calls
    assert call.arguments == '{"city": "Rome\\n</function>\\n</tool_call>'


def test_marks_around_a_text_are_left_out(models: dict[str, tuple[Tokenizer, ChatFormat]]) -> None:
    tokenizer, chat_format = models["command a"]
    text = "<|START_THINKING|>Hm<|END_THINKING|><|START_RESPONSE|>It is warm.<|END_RESPONSE|>"
    for use in (AUTO, ToolUse()):
        assert Answer.read(AnswerPlan(chat_format, use, True).parser(), text) == Answer("It is warm.", "Hm", [])
    assert taken(tokenizer, AnswerPlan(chat_format, AUTO, True), text)


REFUSED: list[tuple[str, ToolUse, str]] = [
    ("hermes", REQUIRED, "It is warm."),
    ("hermes tokens", REQUIRED, '<tool_call>\n{"name": "weather", "arguments": {"town": "Rome"}}\n</tool_call>'),
    ("hermes tokens", AUTO, '<tool_call>\n{"name": "weather", "arguments": {"town": "Rome"}}\n</tool_call>'),
    ("hermes", AUTO, '<tool_call>\n{"name": "weather", "arguments": {"town": "Rome"}}\n</tool_call>'),
    ("hermes", ToolUse(TOOLS, "required", "clock"), _HERMES_ROME),
    ("hermes", ToolUse(TOOLS, "required", parallel=False), f"{_HERMES_ROME}\n{_HERMES_CLOCK}"),
    ("hermes", ToolUse(TOOLS, "auto", parallel=False), f"{_HERMES_CLOCK}{_HERMES_CLOCK}"),
    ("hermes", UNTYPED, _HERMES_ROME.replace('{"city": "Rome"}', '["Rome"]')),
    ("hermes", UNTYPED, _HERMES_CLOCK.replace("{}", "5")),
    ("llama", AUTO, '{"name": "rm", "parameters": {}}'),
    ("mistral", REQUIRED, "[TOOL_CALLS] []"),
    ("harmony", REQUIRED, "<|channel|>final<|message|>Warm."),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tokenizer, ChatFormat]]:
    """Tokenizers with chat templates, and their formats as clients receive them."""
    found: dict[str, tuple[Tokenizer, ChatFormat]] = {}
    place: Path = tmp_path_factory.mktemp("models")
    for name, (template, special, added) in TEMPLATES.items():
        tokenizer = Tokenizer.load(str(target_with_template(place / name, template, special, added)))
        found[name] = tokenizer, read(ChatFormat, chat_format_message(tokenizer.chat_format))
    return found


COMPILERS: dict[str, GrammarCompiler] = {}
"""By tokenizer: the grammar of several answers is compiled once."""


def taken(tokenizer: Tokenizer, plan: AnswerPlan, text: str) -> bool:
    """Whether the plan's grammar allows the text as a whole answer."""
    compiler = COMPILERS.setdefault(tokenizer.sha256, GrammarCompiler(tokenizer.token_table, 4096))
    form = compiler.form(Grammar(FormKind.LARK, str(plan.options()["grammar"])), [0])
    ids = tokenizer.encode(text, add_special_tokens=False)
    if ids and not form.allows(ids):
        return False
    if ids:
        form.commit(ids)
    return form.ended or form.allows([0]) or form._matcher.is_accepting()


@pytest.mark.parametrize(("name", "use", "text", "answer"), ALLOWED)
def test_an_answer_that_is_allowed_and_read(
    models: dict[str, tuple[Tokenizer, ChatFormat]], name: str, use: ToolUse, text: str, answer: Answer
) -> None:
    tokenizer, chat_format = models[name]
    plan = AnswerPlan(chat_format, use, reasoning=True)
    assert taken(tokenizer, plan, text)
    assert Answer.read(plan.parser(), text) == answer
    assert bool(plan.options().get("special_tokens")) == bool(TEMPLATES[name][1])


@pytest.mark.parametrize(("name", "use", "text"), REFUSED)
def test_an_answer_that_is_not_allowed(
    models: dict[str, tuple[Tokenizer, ChatFormat]], name: str, use: ToolUse, text: str
) -> None:
    tokenizer, chat_format = models[name]
    assert not taken(tokenizer, AnswerPlan(chat_format, use, reasoning=True), text)


PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
FORMS = {
    "schema": AnswerForm("response_format", {"json_schema": json.dumps(PERSON | {"additionalProperties": False})}),
    "object": AnswerForm("response_format", {"json_object": True}),
    "regex": AnswerForm("guided_regex", {"regex": "^[a-z/]+$"}),
    "choice": AnswerForm("guided_choice", {"choice": ["yes", 'say "no"']}),
    "grammar": AnswerForm("guided_grammar", {"grammar": "start: WORD\nWORD: /[a-z]+/\n"}),
}
CALLING = {
    "hermes": _HERMES_CLOCK,
    "qwen": f"<think>\nHm\n</think>\n\n{_HERMES_CLOCK}",
    "llama": '{"name": "clock", "parameters": {}}',
    "mistral": '[TOOL_CALLS] [{"name": "clock", "arguments": {}}]',
    "mistral args": "[TOOL_CALLS]clock[ARGS]{}",
    "harmony": "<|channel|>commentary to=functions.clock <|constrain|>json<|message|>{}",
}
FORMED = {"schema": '{"name": "Bob"}', "object": '{"a": [1]}', "regex": "a/b", "choice": 'say "no"', "grammar": "word"}


@pytest.mark.parametrize(
    ("name", "form"), [*((name, "schema") for name in CALLING), *(("hermes", form) for form in FORMS)]
)
def test_an_answer_is_a_call_or_of_the_form(
    models: dict[str, tuple[Tokenizer, ChatFormat]], name: str, form: str
) -> None:
    tokenizer, chat_format = models[name]
    plan = AnswerPlan(chat_format, AUTO, reasoning=True, form=FORMS[form])
    frame = "<|channel|>final<|message|>{}" if name == "harmony" else "{}"
    assert taken(tokenizer, plan, CALLING[name])
    assert Answer.read(plan.parser(), CALLING[name]).calls == [CLOCK]
    for shape, text in FORMED.items():
        fits = shape == form or (form, shape) in {("object", "schema"), ("regex", "grammar")}
        assert taken(tokenizer, plan, frame.format(text)) == fits, text
        if fits:
            assert Answer.read(plan.parser(), frame.format(text)) == Answer(text, "", [])
    assert not taken(tokenizer, plan, frame.format("It is WARM."))
    required = AnswerPlan(chat_format, REQUIRED, reasoning=True, form=FORMS[form])
    assert taken(tokenizer, required, CALLING[name])
    assert not taken(tokenizer, required, frame.format(FORMED[form]))


def test_without_tools_to_call_the_form_is_alone() -> None:
    plan = AnswerPlan(ChatFormat("hermes", "<think>", "</think>"), ToolUse(TOOLS, "none"), True, FORMS["object"])
    assert plan.options() == {"json_object": True} and plan.plain


def test_a_form_that_cannot_be_combined_with_tools_is_named() -> None:
    form = AnswerForm("guided_grammar", {"ebnf": 'root ::= "a"'})
    with pytest.raises(GatewayError, match="guided_grammar: a grammar in GBNF cannot be combined with tools"):
        AnswerPlan(ChatFormat("hermes"), AUTO, True, form).options()
    assert "grammar" in AnswerPlan(ChatFormat("hermes"), REQUIRED, True, form).options()


@pytest.mark.parametrize("regex", ["", "^", "^$"])
def test_a_form_that_is_the_empty_text(models: dict[str, tuple[Tokenizer, ChatFormat]], regex: str) -> None:
    tokenizer, chat_format = models["hermes"]
    plan = AnswerPlan(chat_format, AUTO, True, AnswerForm("guided_regex", {"regex": regex}))
    assert taken(tokenizer, plan, "") and taken(tokenizer, plan, _HERMES_CLOCK)
    assert not taken(tokenizer, plan, "a")


DEFINED = {
    "type": "object",
    "properties": {
        "when": {"$ref": "#/$defs/When"},
        "days": {"type": "integer"},
        "more": {"type": "array", "items": {"type": "integer"}},
    },
    "$defs": {
        "When": {"type": "object", "properties": {"at": {"$ref": "#/$defs/Hour"}}, "additionalProperties": False},
        "Hour": {"type": "integer"},
        "Unused": {"description": "never_referred_to"},
    },
}


@pytest.mark.parametrize(
    ("name", "text", "wrong"),
    [
        (
            "qwen 3.5",
            'Hm\n</think>\n\n<tool_call>\n<function=plan>\n<parameter=when>\n{"at": 3}\n</parameter>\n'
            "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
            '"at": "x"',
        ),
        ("lfm 2", '<|tool_call_start|>[plan(when={"at": 3}, days=2)]<|tool_call_end|>', '"at": "x"'),
    ],
)
def test_a_part_of_a_schema_has_the_definitions_that_it_refers_to(
    models: dict[str, tuple[Tokenizer, ChatFormat]], name: str, text: str, wrong: str
) -> None:
    tokenizer, chat_format = models[name]
    plan = AnswerPlan(chat_format, ToolUse([Tool("plan", parameters=DEFINED)], "required"), reasoning=True)
    assert taken(tokenizer, plan, text)
    assert not taken(tokenizer, plan, text.replace('"at": 3', wrong))
    grammar = str(plan.options()["grammar"])
    assert grammar.count('"$defs"') == 1 and "never_referred_to" not in grammar


@pytest.mark.parametrize("name", ["gemma 4", "lfm 2"])
def test_a_reference_to_itself_is_one_to_nothing_else(
    models: dict[str, tuple[Tokenizer, ChatFormat]], name: str
) -> None:
    tokenizer, chat_format = models[name]
    own = {"$ref": "#/$defs/a"}
    schema = {"type": "object", "properties": {"x": own}, "$defs": {"a": {"anyOf": [own, own, {"type": "null"}]}}}
    plan = AnswerPlan(chat_format, ToolUse([Tool("clock", parameters=schema)], "required"), reasoning=True)
    for value, allowed in (("None" if name == "lfm 2" else "null", True), ("1", False)):
        text = SPELLED[name][2].replace("()", f"(x={value})").replace("{}", f"{{x:{value}}}")
        assert taken(tokenizer, plan, ("" if name == "gemma 4" else "<|tool_call_start|>[") + text) == allowed


MANY = [f"p{number}" for number in range(1000)]
LARGE = {
    "references": {
        "properties": {key: {"$ref": "#/$defs/A"} for key in MANY},
        "$defs": {"A": {"type": "object", "properties": {key: {"type": "integer"} for key in MANY}}},
    },
    "choices": {
        "properties": {key: {"$ref": "#/$defs/A"} for key in MANY},
        "$defs": {"A": {"enum": [f"{key} of them" for key in MANY]}},
    },
    "unions": {
        "properties": {key: {"anyOf": [{"$ref": "#/$defs/A"}]} for key in MANY},
        "$defs": {"A": {"anyOf": [{"type": "string"}, *({"const": each} for each in range(2000))]}},
    },
    "unions of one": {
        "properties": {key: {"$ref": "#/$defs/A"} for key in MANY},
        "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/B"}] * 2000}, "B": {"type": "string"}},
    },
    "references to references": {
        "properties": {key: {"$ref": "#/$defs/A0"} for key in MANY},
        "$defs": {f"A{each}": {"$ref": f"#/$defs/A{each + 1}"} for each in range(2000)},
    },
    "listed values": {
        "properties": {key: {"anyOf": [{"$ref": "#/$defs/A"}]} for key in MANY},
        "$defs": {"A": {"enum": MANY}},
    },
}


@pytest.mark.parametrize("kind", LARGE)
def test_a_grammar_that_grows_beyond_its_bound_is_refused(kind: str) -> None:
    use = ToolUse([Tool("weather", parameters={"type": "object", **LARGE[kind]})], "required")
    with pytest.raises(GatewayError, match="tools: their grammar exceeds") as refused:
        AnswerPlan(call_spellings.spelled(call_spellings.QWEN_3_5), use, reasoning=True).options()
    assert refused.value.param == "tools"


def test_without_a_need_there_is_no_grammar() -> None:
    plan = AnswerPlan(ChatFormat("hermes"), ToolUse([Tool("clock")], "auto"), reasoning=True)
    assert plan.options() == {} and not plan.plain
    assert AnswerPlan(ChatFormat("hermes"), ToolUse(TOOLS, "none"), reasoning=True).plain
