"""Formats of answers, found in chat templates."""

from dataclasses import replace
from pathlib import Path

import pytest

from draftwire_core.engine.text.call_spelling import HERMES, LFM, ArgumentStyle, CallSpelling
from draftwire_core.engine.text.chat_format import ChatFormat, ToolCallFormat
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.models import chat_templates
from tests.harness.models.chat_templates import target_with_template

THINK = ("<think>", "</think>")
STAND_IN = ChatFormat(False, ToolCallFormat.HERMES, spelling=HERMES, lacks_calls=True, lacks_results=True)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (chat_templates.HERMES, ChatFormat(True, ToolCallFormat.HERMES)),
        (chat_templates.QWEN_3, ChatFormat(True, ToolCallFormat.HERMES, THINK)),
        (chat_templates.THINKING, ChatFormat(True, ToolCallFormat.HERMES, THINK, True)),
        (chat_templates.WITHOUT_TOOLS + "<think>", replace(STAND_IN, reasoning=THINK, reasoning_open=True)),
        (chat_templates.LLAMA_3, ChatFormat(True, ToolCallFormat.LLAMA, one_call=True)),
        (chat_templates.MISTRAL, ChatFormat(True, ToolCallFormat.MISTRAL, short_ids=True)),
        (chat_templates.MISTRAL_ARGS, ChatFormat(True, ToolCallFormat.MISTRAL_ARGS, short_ids=True)),
        (chat_templates.HARMONY, ChatFormat(True, ToolCallFormat.HARMONY, lacks_text=True, one_call=True)),
        (
            chat_templates.QWEN_3_CODER,
            ChatFormat(
                True,
                ToolCallFormat.SPELLED,
                spelling=CallSpelling(
                    ArgumentStyle.JSON,
                    call_begin="<tool_call>\n<function=",
                    name_end=">",
                    call_end="</function>\n</tool_call>",
                ),
            ),
        ),
        (chat_templates.UNKNOWN, STAND_IN),
        (chat_templates.WITHOUT_TOOLS, STAND_IN),
        (chat_templates.GEMMA, replace(STAND_IN, lacks_system=True, lacks_later_system=True, alternates=True)),
        (
            chat_templates.family("falcon_h1"),
            ChatFormat(True, ToolCallFormat.HERMES, spelling=HERMES, lacks_calls=True, lacks_later_system=True),
        ),
        (chat_templates.family("lfm2"), ChatFormat(True, ToolCallFormat.SPELLED, spelling=LFM, lacks_calls=True)),
        (chat_templates.family("lfm2_v2"), ChatFormat(True, ToolCallFormat.SPELLED, spelling=LFM)),
        (
            chat_templates.family("command_a_tool_use"),
            ChatFormat(
                True,
                ToolCallFormat.SPELLED,
                ("<|START_THINKING|>", "<|END_THINKING|>"),
                spelling=CallSpelling(
                    ArgumentStyle.OBJECT,
                    begin="<|START_ACTION|>[",
                    call_begin="\n    ",
                    separator=",",
                    end="\n]<|END_ACTION|>",
                    name_key="tool_name",
                    arguments_key="parameters",
                    id_key="tool_call_id",
                ),
                content=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
            ),
        ),
        ("{{ raise_exception('never') }}", ChatFormat()),
    ],
)
def test_the_format_is_found_in_the_template(tmp_path: Path, template: str, expected: ChatFormat) -> None:
    found = Tokenizer.load(str(target_with_template(tmp_path / "model", template))).chat_format
    assert replace(found, variables=frozenset()) == expected


@pytest.mark.parametrize(
    "marks",
    [("<seed:think>", "</seed:think>"), ("<mm:think>", "</mm:think>"), ("<|inner_prefix|>", "<|inner_suffix|>")],
)
def test_reasoning_has_other_marks_in_some_families(tmp_path: Path, marks: tuple[str, str]) -> None:
    template = f"{chat_templates.WITHOUT_TOOLS}{{# {marks[0]}{marks[1]} #}}"
    found = Tokenizer.load(str(target_with_template(tmp_path / "model", template))).chat_format
    assert (found.reasoning, found.reasoning_open) == (marks, False)


def test_markers_that_are_tokens_are_told(tmp_path: Path) -> None:
    special = target_with_template(tmp_path / "special", chat_templates.MISTRAL, special=["[TOOL_CALLS]"])
    assert Tokenizer.load(str(special)).chat_format == ChatFormat(
        True, ToolCallFormat.MISTRAL, marker_ids={"[TOOL_CALLS]": 4095}, special_markers=True, short_ids=True
    )
    added = target_with_template(tmp_path / "added", chat_templates.QWEN_3, added=["<think>", "<tool_call>"])
    found = Tokenizer.load(str(added)).chat_format
    assert (found.marker_ids, found.special_markers) == ({"<think>": 4094, "<tool_call>": 4095}, False)


PARAMETERS = CallSpelling(
    ArgumentStyle.PARAMETERS,
    call_begin="<tool_call>\n<function=",
    name_end=">",
    key_begin="\n<parameter=",
    key_end=">\n",
    value_end="\n</parameter>",
    call_end="\n</function>\n</tool_call>",
    separator="\n",
)
SPELLINGS = {
    "qwen3_5_think": PARAMETERS,
    "nemotron_3_nano": PARAMETERS,
    "glm4moe": CallSpelling(
        ArgumentStyle.PARAMETERS,
        call_begin="<tool_call>",
        key_begin="\n<arg_key>",
        key_end="</arg_key>\n<arg_value>",
        value_end="</arg_value>",
        call_end="\n</tool_call>",
        separator="\n",
    ),
    "gemma4_v5": CallSpelling(
        ArgumentStyle.BARE_KEYS, call_begin="<|tool_call>call:", call_end="<tool_call|>", quote='<|"|>'
    ),
    "jamba": CallSpelling(
        ArgumentStyle.OBJECT,
        begin="<tool_calls>[",
        call_begin="\n    ",
        separator=",",
        end="\n]</tool_calls>",
        name_key="name",
        arguments_key="arguments",
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_is_found_in_what_the_template_renders(tmp_path: Path, name: str) -> None:
    template = chat_templates.family(name)
    found = Tokenizer.load(str(target_with_template(tmp_path / "model", template))).chat_format
    assert (found.tools, found.tool_calls, found.spelling) == (True, ToolCallFormat.SPELLED, SPELLINGS[name])
    assert not (found.lacks_calls or found.lacks_results or found.lacks_system)


def test_tokens_within_a_spelling_are_told(tmp_path: Path) -> None:
    marks = ["<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "call"]
    directory = target_with_template(tmp_path / "model", chat_templates.family("gemma4_v5"), special=marks)
    found = Tokenizer.load(str(directory)).chat_format
    assert set(found.marker_ids) == set(marks) - {"call"} and found.special_markers


def test_special_tokens_stay_in_a_stream_that_keeps_them(tmp_path: Path) -> None:
    directory = target_with_template(tmp_path / "model", chat_templates.MISTRAL, special=["[TOOL_CALLS]"])
    tokenizer = Tokenizer.load(str(directory))
    ids = tokenizer.encode("see [TOOL_CALLS][{}]", add_special_tokens=False)
    assert 4095 in ids
    for kept, expected in ((True, "see [TOOL_CALLS][{}]"), (False, "see [{}]")):
        stream = tokenizer.stream(special_tokens=kept)
        assert "".join(stream.push(token) for token in ids) + stream.flush() == expected
