"""Formats of answers, found in chat templates."""

from pathlib import Path

import pytest

from speculative_engine.text.chat_format import ChatFormat, ToolCallFormat
from speculative_engine.text.tokenizer import Tokenizer
from tests.harness.models import chat_templates
from tests.harness.models.chat_templates import target_with_template

THINK = ("<think>", "</think>")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (chat_templates.HERMES, ChatFormat(True, ToolCallFormat.HERMES)),
        (chat_templates.QWEN_3, ChatFormat(True, ToolCallFormat.HERMES, THINK)),
        (chat_templates.THINKING, ChatFormat(True, ToolCallFormat.HERMES, THINK, True)),
        (chat_templates.LLAMA_3, ChatFormat(True, ToolCallFormat.LLAMA)),
        (chat_templates.MISTRAL, ChatFormat(True, ToolCallFormat.MISTRAL)),
        (chat_templates.MISTRAL_ARGS, ChatFormat(True, ToolCallFormat.MISTRAL_ARGS)),
        (chat_templates.HARMONY, ChatFormat(True, ToolCallFormat.HARMONY)),
        (chat_templates.QWEN_3_CODER, ChatFormat(True)),
        (chat_templates.WITHOUT_TOOLS, ChatFormat()),
        ("{{ raise_exception('never') }}", ChatFormat()),
    ],
)
def test_the_format_is_found_in_the_template(tmp_path: Path, template: str, expected: ChatFormat) -> None:
    assert Tokenizer.load(str(target_with_template(tmp_path / "model", template))).chat_format == expected


def test_markers_that_are_tokens_are_told(tmp_path: Path) -> None:
    special = target_with_template(tmp_path / "special", chat_templates.MISTRAL, special=["[TOOL_CALLS]"])
    assert Tokenizer.load(str(special)).chat_format == ChatFormat(
        True, ToolCallFormat.MISTRAL, marker_ids={"[TOOL_CALLS]": 4095}, special_markers=True
    )
    added = target_with_template(tmp_path / "added", chat_templates.QWEN_3, added=["<think>", "<tool_call>"])
    found = Tokenizer.load(str(added)).chat_format
    assert (found.marker_ids, found.special_markers) == ({"<think>": 4094, "<tool_call>": 4095}, False)


def test_special_tokens_stay_in_a_stream_that_keeps_them(tmp_path: Path) -> None:
    directory = target_with_template(tmp_path / "model", chat_templates.MISTRAL, special=["[TOOL_CALLS]"])
    tokenizer = Tokenizer.load(str(directory))
    ids = tokenizer.encode("see [TOOL_CALLS][{}]", add_special_tokens=False)
    assert 4095 in ids
    for kept, expected in ((True, "see [TOOL_CALLS][{}]"), (False, "see [{}]")):
        stream = tokenizer.stream(special_tokens=kept)
        assert "".join(stream.push(token) for token in ids) + stream.flush() == expected
