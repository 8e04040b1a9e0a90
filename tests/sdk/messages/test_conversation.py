"""Conversations as the contract has them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from draftwire._messages.conversation import Conversation, conversation_message, variables_text

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        (None, ""),
        ({}, ""),
        ({"a": [1, None, "ü"]}, '{"a": [1, null, "ü"]}'),
        (MappingProxyType({"a": 1}), '{"a": 1}'),
    ],
)
def test_variables(variables: Mapping[str, Any] | None, text: str) -> None:
    assert variables_text(variables) == text


@pytest.mark.parametrize("variables", [[], 0, False, "", (), [("a", 1)], {1: 2}])
def test_variables_that_are_no_mapping(variables: Any) -> None:
    with pytest.raises(TypeError, match=r"^chat_template_kwargs: expected a mapping of names to values, got "):
        variables_text(variables)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [{"a": -float("inf")}], {1, 2}, b"a"])
def test_values_that_json_does_not_have_are_told_by_name(value: Any) -> None:
    def refused(name: str, **fields: Any) -> None:
        with pytest.raises(TypeError, match=f"^{name}: expected values of JSON: "):
            conversation_message(Conversation(**{"messages": MESSAGES, **fields}))

    refused("chat_template_kwargs", chat_template_kwargs={"a": value})
    refused(r"tools\[0\].function.parameters", tools=[{"function": {"name": "f", "parameters": {"default": value}}}])
    call = {"function": {"name": "f", "arguments": {"a": value}}}
    turn = {"role": "assistant", "tool_calls": [call]}
    refused(r"messages\[1\].tool_calls\[0\].function.arguments", messages=[*MESSAGES, turn])
