"""Chat templates that leave out tools, calls, results or system messages."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.models import chat_templates
from tests.harness.models.chat_templates import target_with_template

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "Tells it.", "parameters": {"type": "object", "properties": {}}},
}


def call(**arguments: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}


USER = {"role": "user", "content": "How is it?"}
ANSWER = {"role": "assistant", "content": "Let me see.", "tool_calls": [call(city="Rome"), call(city="Zürich")]}
RESULTS = [{"role": "tool", "content": text, "tool_call_id": "c1", "name": "weather"} for text in ("warm", "cold")]
CALLS = (
    "Let me see.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
)
RETURNED = "<tool_response>\nwarm\n</tool_response>\n<tool_response>\ncold\n</tool_response>"


def rendered(directory: Path, template: str, messages: list[Any], tools: list[Any]) -> str:
    directory.mkdir(exist_ok=True)
    return Tokenizer.load(str(target_with_template(directory / "model", template))).render_chat(messages, tools)


def test_tools_are_described_in_the_system_message(tmp_path: Path) -> None:
    text = rendered(tmp_path, chat_templates.WITHOUT_TOOLS, [USER, ANSWER, *RESULTS], [TOOL])
    system, user, assistant, results, rest = text.split("<|im_end|>")
    assert system.startswith("<|im_start|>system\n# Tools") and json.dumps(TOOL) in system and "<tool_call>" in system
    assert user == "<|im_start|>user\nHow is it?"
    assert assistant == f"<|im_start|>assistant\n{CALLS}"
    assert results == f"<|im_start|>user\n{RETURNED}"
    assert rest == "<|im_start|>assistant"


def test_they_come_after_instructions(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be kind."}, USER]
    text = rendered(tmp_path, chat_templates.WITHOUT_TOOLS, messages, [TOOL])
    assert text.startswith("<|im_start|>system\nBe kind.\n\n# Tools") and text.count("<|im_start|>") == 3


def test_they_come_before_the_first_users_message_where_there_is_no_system_role(tmp_path: Path) -> None:
    text = rendered(tmp_path, chat_templates.GEMMA, [USER, ANSWER, *RESULTS, USER], [TOOL])
    user, assistant, results, _ = text.split("<end_of_turn>")
    assert user.startswith("<start_of_turn>user\n# Tools") and user.endswith("\n\nHow is it?")
    assert assistant == f"<start_of_turn>assistant\n{CALLS}"
    assert results == f"<start_of_turn>user\n{RETURNED}\nHow is it?"


SYSTEM = {"role": "system", "content": "Be kind."}


def test_a_system_message_begins_the_users_where_there_is_no_such_role(tmp_path: Path) -> None:
    plain = {"role": "assistant", "content": "Well."}
    text = rendered(tmp_path, chat_templates.GEMMA, [SYSTEM, USER, plain, USER, SYSTEM | {"content": "Hurry."}], [])
    first, answer, last, _ = text.split("<end_of_turn>")
    assert first == "<start_of_turn>user\nBe kind.\n\nHow is it?"
    assert answer == "<start_of_turn>assistant\nWell."
    assert last == "<start_of_turn>user\nHow is it?\n\nHurry."


def test_a_later_system_message_begins_the_users_where_only_the_first_may_be_one(tmp_path: Path) -> None:
    messages = [SYSTEM, USER, {"role": "assistant", "content": "Well."}, SYSTEM | {"content": "Hurry."}, USER]
    text = rendered(tmp_path, chat_templates.family("qwen3_5_think"), messages, [])
    first, user, _, last, _ = text.split("<|im_end|>\n")
    assert (first, user) == ("<|im_start|>system\nBe kind.", "<|im_start|>user\nHow is it?")
    assert last == "<|im_start|>user\nHurry.\n\nHow is it?"


def test_it_comes_before_the_tools_there(tmp_path: Path) -> None:
    text = rendered(tmp_path, chat_templates.GEMMA, [SYSTEM, USER, ANSWER, *RESULTS, USER], [TOOL])
    user, _, results, _ = text.split("<end_of_turn>")
    assert user.startswith("<start_of_turn>user\nBe kind.\n\n# Tools") and user.endswith("\n\nHow is it?")
    assert results == f"<start_of_turn>user\n{RETURNED}\nHow is it?"


def test_an_empty_system_message_is_none_there(tmp_path: Path) -> None:
    messages = [SYSTEM | {"content": ""}, USER]
    assert rendered(tmp_path, chat_templates.GEMMA, messages, []).count("<start_of_turn>") == 2


def test_a_template_that_drops_system_messages_is_told_them(tmp_path: Path) -> None:
    template = chat_templates.WITHOUT_TOOLS.replace("<|im_start|>{{", "{% if message.role != 'system' %}<|im_start|>{{")
    template = template.replace("<|im_end|>\n{%-", "<|im_end|>\n{% endif %}{%-")
    text = rendered(tmp_path, template, [SYSTEM, USER], [])
    assert text == "<|im_start|>user\nBe kind.\n\nHow is it?<|im_end|>\n<|im_start|>assistant"


def test_calls_are_told_without_tools(tmp_path: Path) -> None:
    text = rendered(tmp_path, chat_templates.GEMMA, [USER, ANSWER, *RESULTS], [])
    assert CALLS in text and RETURNED in text and "# Tools" not in text
    broken = {**ANSWER, "tool_calls": [{**call(), "function": {"name": "weather", "arguments": '{"city": "Ro'}}]}
    text = rendered(tmp_path / "broken", chat_templates.GEMMA, [USER, broken], [])
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Ro}\n</tool_call>' in text


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("falcon_h1", CALLS),
        ("lfm2", "Let me see.\n<|tool_call_start|>[weather(city='Rome'), weather(city='Zürich')]<|tool_call_end|>"),
    ],
)
def test_a_template_with_tools_and_without_calls(tmp_path: Path, name: str, calls: str) -> None:
    text = rendered(tmp_path, chat_templates.family(name), [USER, ANSWER, *RESULTS], [TOOL])
    assert f"<|im_start|>assistant\n{calls}<|im_end|>" in text
    assert "<|im_start|>tool\n" in text and "# Tools" not in text and "<tool_response>" not in text


def test_a_complete_template_gets_what_was_sent(tmp_path: Path) -> None:
    text = rendered(tmp_path, chat_templates.HERMES, [USER, ANSWER, *RESULTS], [TOOL])
    assert text.startswith("<|im_start|>system\nTools:") and "# Tools" not in text


def test_a_text_ends_the_reasoning_where_both_are_refused(tmp_path: Path) -> None:
    reasoned = ANSWER | {"reasoning_content": "Rome?", "thinking": "Rome?"}
    begin, channel = "<|start|>assistant", "<|channel|>analysis<|message|>"
    text = rendered(tmp_path, chat_templates.HARMONY, [USER, reasoned, RESULTS[0]], [TOOL])
    assert f"{begin}{channel}Rome?\n\nLet me see.<|end|>{begin} to=functions.weather" in text
    text = rendered(tmp_path / "text", chat_templates.HARMONY, [USER, ANSWER, RESULTS[0]], [TOOL])
    assert f"{begin}{channel}Let me see.<|end|>{begin} to=functions.weather" in text


@pytest.mark.parametrize("template", [chat_templates.LLAMA_3, chat_templates.HARMONY])
def test_each_call_is_a_message_where_others_are_left_out(tmp_path: Path, template: str) -> None:
    cities = ["Rome", "Zürich", "Oslo"]
    called = [call(city=city) | {"id": f"c{number}"} for number, city in enumerate(cities)]
    results = [
        {"role": "tool", "content": f"in {cities[at]}", "tool_call_id": f"c{at}", "name": "weather"} for at in (2, 0)
    ]
    messages = [USER, ANSWER | {"tool_calls": called}, *results, USER | {"content": "And then?"}, PLAIN]
    text = rendered(tmp_path, template, messages, [TOOL])
    parts = ["How is it?", '"Rome"', "in Rome", '"Z', '"Oslo"', "in Oslo", "And then?", "Well."]
    assert [text.count(part) for part in parts] == [1] * len(parts)
    assert sorted(parts, key=text.index) == parts


@pytest.mark.parametrize("given", ["call_1", "", "call_0123456789abcdef01234567", "abcdef123"])
def test_ids_of_calls_are_short_where_others_are_refused(tmp_path: Path, given: str) -> None:
    called: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call(city="Rome") | {"id": given}]}
    text = rendered(tmp_path, chat_templates.MISTRAL, [USER, called, RESULTS[0] | {"tool_call_id": given}], [TOOL])
    first, second = re.findall(r'"(?:call_)?id": "([A-Za-z0-9]{9})"', text)
    assert first == second and (first == given or len(given) != 9)
    assert called["tool_calls"][0]["id"] == given


PLAIN = {"role": "assistant", "content": "Well."}


def test_messages_in_a_row_are_one_where_turns_have_to_alternate(tmp_path: Path) -> None:
    users = [USER, USER | {"content": ""}, USER | {"content": "And here?"}]
    messages = [*users, PLAIN, PLAIN | {"content": "Warm."}, USER]
    text = rendered(tmp_path, chat_templates.GEMMA, messages, [])
    first, answer, last, _ = text.split("<end_of_turn>")
    assert first == "<start_of_turn>user\nHow is it?\n\nAnd here?"
    assert answer == "<start_of_turn>assistant\nWell.\n\nWarm."
    assert last == "<start_of_turn>user\nHow is it?"


def test_an_empty_message_comes_before_a_greeting_where_the_user_has_to_begin(tmp_path: Path) -> None:
    messages = [PLAIN | {"content": "Welcome!"}, USER]
    text = rendered(tmp_path, chat_templates.GEMMA, messages, [])
    empty, greeting, user, _ = text.split("<end_of_turn>")
    assert (empty, greeting) == ("<start_of_turn>user\n", "<start_of_turn>assistant\nWelcome!")
    assert user == "<start_of_turn>user\nHow is it?"
    kind = rendered(tmp_path / "kind", chat_templates.GEMMA, [SYSTEM, *messages], [])
    assert kind == text.replace("user\n", "user\nBe kind.", 1)
    _, body = chat_templates.GEMMA.split("{% endif %}", 1)
    body = body.replace("loop.index0 % 2 == 0", "(loop.index0 - offset) % 2 == 0 and message.role != 'system'")
    with_system = "{%- set offset = 1 if messages[0].role == 'system' else 0 %}" + body
    found = rendered(tmp_path / "system", with_system, [SYSTEM, *messages], [])
    assert found == f"<start_of_turn>system\nBe kind.<end_of_turn>{text}"
    assert rendered(tmp_path / "free", chat_templates.HERMES, messages, []).count("<|im_start|>") == 3


def test_a_conversation_without_the_user_gets_an_empty_message(tmp_path: Path) -> None:
    """Qwen 3.5's template refuses such a one, and Gemma 3's leaves out its system message."""
    qwen = chat_templates.family("qwen3_5_think")
    text = rendered(tmp_path / "system", qwen, [SYSTEM], [])
    assert text == rendered(tmp_path / "both", qwen, [SYSTEM, USER | {"content": ""}], []) and "Be kind." in text
    greeting = rendered(tmp_path / "greeting", qwen, [SYSTEM, PLAIN], [])
    assert greeting.index("Be kind.") < greeting.index("<|im_start|>user") < greeting.index(PLAIN["content"])
    assert rendered(tmp_path / "user", qwen, [SYSTEM, USER], []).count("<|im_start|>user") == 1
    assert "user" not in rendered(tmp_path / "hermes", chat_templates.HERMES, [SYSTEM], [])
    left_out = "{% set system = messages[0].content if messages[0].role == 'system' %}" + "".join(
        (
            "{% for message in messages if message.role != 'system' %}[{{ message.role }}]",
            "{{ system if loop.first and system }}{{ message.content }}{% endfor %}[model]",
        )
    )
    assert rendered(tmp_path / "left out", left_out, [SYSTEM], []) == "[user]Be kind.[model]"


ALTERNATING = (
    "{%- set ns = namespace(index=0) %}{%- for message in messages[messages[0].role == 'system':] %}"
    "{%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}"
    "{%- if (message.role == 'user') != (ns.index % 2 == 0) or (message.role == 'assistant' and not message.content) %}"
    "{{ raise_exception('roles must alternate except for tool calls and results') }}{%- endif %}"
    "{%- set ns.index = ns.index + 1 %}{%- endif %}{%- endfor %}"
) + chat_templates.MISTRAL
"""A template with the checks of Mistral's."""


@pytest.mark.parametrize("results", [RESULTS, []])
def test_a_user_who_speaks_before_the_answer_is_answered(tmp_path: Path, results: list[Any]) -> None:
    """As one does who ends an agent's work after its call and says what to do instead."""
    messages = [SYSTEM, USER, ANSWER, *results, USER, PLAIN, USER, ANSWER, *results, USER, USER | {"content": "Now!"}]
    text = rendered(tmp_path, ALTERNATING, messages, [TOOL])
    assert text.count("[INST] How is it?") == 4 and text.endswith("  </s>[INST] How is it?\n\nNow![/INST]")
    assert rendered(tmp_path / "free", chat_templates.MISTRAL, messages, [TOOL]).count("</s>") == text.count("</s>") - 2


def test_a_text_before_calls_is_one_message_with_them_where_it_counts_as_the_answer(tmp_path: Path) -> None:
    """Some clients send a text and the calls that follow it as two messages."""
    called = ANSWER | {"content": ""}
    messages = [USER, PLAIN, called, *RESULTS, PLAIN, called, *RESULTS, PLAIN, USER]
    text = rendered(
        tmp_path, ALTERNATING.replace("[TOOL_CALLS] [", "{{ message.content }}[TOOL_CALLS] ["), messages, [TOOL]
    )
    assert text.count("Well.[TOOL_CALLS]") == 2 and text.count("Well.</s>") == 1 and text.count("[INST]") == 2
    assert rendered(tmp_path / "free", chat_templates.MISTRAL, messages, [TOOL]).count("Well.</s>") == 3


def test_an_answer_without_text_is_blank_where_it_is_refused(tmp_path: Path) -> None:
    """Such a one was cut off in its reasoning, or stopped by the user."""
    empty = PLAIN | {"content": ""}
    text = rendered(tmp_path, ALTERNATING, [USER, empty, USER, empty, PLAIN, USER, ANSWER | {"content": ""}], [TOOL])
    assert text.count("[INST]") == 3 and text.count("  </s>") == 1 and " Well.</s>" in text
    assert rendered(tmp_path / "free", chat_templates.MISTRAL, [USER, empty], []).endswith("[/INST] </s>")


def test_they_are_one_with_what_stands_for_other_roles(tmp_path: Path) -> None:
    text = rendered(tmp_path, chat_templates.GEMMA, [SYSTEM, USER, USER, ANSWER, *RESULTS, USER, USER], [TOOL])
    user, _, results, _ = text.split("<end_of_turn>")
    assert user.endswith("\n\nHow is it?\n\nHow is it?")
    assert results == f"<start_of_turn>user\n{RETURNED}\nHow is it?\n\nHow is it?"


def test_messages_in_a_row_stay_as_they_are_where_the_template_renders_them(tmp_path: Path) -> None:
    text = rendered(tmp_path, chat_templates.HERMES, [USER, USER, PLAIN, PLAIN, USER], [])
    assert text.count("<|im_start|>") == 6
