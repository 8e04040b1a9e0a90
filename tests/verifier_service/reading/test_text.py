"""Conversations as the target's chat template renders them."""

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from draftwire._messages.conversation import Conversation, conversation_message
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.runtime.errors import ServiceError
from tests.harness.models.byte_tokenizers import END, backend
from verifier_service.reading.text import TextReader
from verifier_service.reading.text_pool import TextPool

AS_TEXT = "{% for call in messages[-1].tool_calls %}{{ call.function.arguments }}{% endfor %}"
AS_OBJECT = (
    "{% for call in messages[-1].tool_calls %}"
    "{% for name, value in call.function.arguments.items() %}{{ name }}={{ value }}{% endfor %}{% endfor %}"
)
BROKEN = '{"city": "Ro'


THINKS = (
    "{{ documents or '' }}{% for message in messages %}{{ message.role }}: {{ message.content }}|{% endfor %}"
    "{% if add_generation_prompt %}assistant: <think>"
    "{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}{% endif %}"
)
"""As Qwen's: the prompt ends within the reasoning unless a variable turns it off."""
CONVERSATION = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]
TURNS = "user: Hi|assistant: Well,|"


def reader_of(template: str) -> TextReader:
    tokenizer = Tokenizer(
        PreTrainedTokenizerFast(tokenizer_object=backend("target"), eos_token=END["target"], chat_template=template)
    )
    return TextReader(tokenizer, 1000, "the context", TextPool())


def rendered(template: str, arguments: str) -> str:
    call: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    reader = reader_of(template)
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    return reader.rendered(conversation_message(Conversation([turn])))


def test_arguments_that_were_cut_off_are_rendered_as_the_template_can() -> None:
    assert rendered(AS_TEXT, BROKEN) == BROKEN
    assert rendered(AS_OBJECT, BROKEN) == f"arguments={BROKEN}"
    assert rendered(AS_OBJECT, '{"city": "Rome"}') == "city=Rome"
    assert rendered(AS_OBJECT, "") == ""


def test_half_a_character_in_arguments_is_rendered_as_one_that_is_not_known() -> None:
    arguments = r'{"city": "Rome \ud83d\udc3a", "\udc3a": "\ud83d"}'
    assert rendered(AS_OBJECT, arguments) == "city=Rome \U0001f43a\ufffd=\ufffd"
    assert rendered(AS_TEXT, BROKEN + r"\ud83d") == BROKEN + r"\ud83d"
    with pytest.raises(ServiceError, match="messages: no \ufffd here") as refused:
        rendered(
            "{{ raise_exception('no ' ~ messages[0].tool_calls[0].function.arguments.a ~ ' here') }}",
            r'{"a": "\ud83d"}',
        )
    assert refused.value.to_status()


@pytest.mark.parametrize("arguments", [BROKEN, "{}"])
def test_a_template_that_refuses_says_why(arguments: str) -> None:
    with pytest.raises(ServiceError, match="messages: no calls here"):
        rendered("{{ raise_exception('no calls here') }}", arguments)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, TURNS + "assistant: <think>"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, TURNS + "assistant: <think></think>"),
        ({"chat_template_kwargs": {"documents": [{}]}}, "[{}]" + TURNS + "assistant: <think>"),
        ({"add_generation_prompt": False}, TURNS),
        ({"continue_final_message": True}, TURNS[:-1]),
    ],
)
def test_options_of_rendering(options: dict[str, Any], text: str) -> None:
    assert reader_of(THINKS).rendered(conversation_message(Conversation(CONVERSATION, **options))) == text


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ('{"chat_template": "x"}', "messages.chat_template_kwargs.chat_template: "),
        ('{"messages": []}', "messages.chat_template_kwargs.messages: "),
        ('{"documents": 3}', "messages.chat_template_kwargs.documents: "),
        ("[1]", "messages.chat_template_kwargs: "),
        ("{", "messages.chat_template_kwargs: "),
    ],
)
def test_variables_that_are_none(variables: str, named: str) -> None:
    chat = conversation_message(Conversation(CONVERSATION))
    chat.chat_template_kwargs = variables
    with pytest.raises(ServiceError, match=f"^{named}"):
        reader_of(THINKS).rendered(chat)


def test_what_cannot_be_continued() -> None:
    for messages in (CONVERSATION[:1], [*CONVERSATION, CONVERSATION[0]]):
        with pytest.raises(ServiceError, match=r"^messages.continue_final_message: "):
            reader_of(THINKS).rendered(conversation_message(Conversation(messages, continue_final_message=True)))


async def test_the_format_of_answers_depends_on_variables() -> None:
    reader = reader_of(THINKS)
    on, off = [
        await reader.chat_format(text, "") for text in ('{"enable_thinking": true}', '{"enable_thinking": false}')
    ]
    assert (on.reasoning_open, off.reasoning_open) == (True, False)
    assert list(on.template_variables) == ["documents", "enable_thinking"]
    with pytest.raises(ServiceError, match=r"^chat_template_kwargs.tools: "):
        await reader.chat_format('{"tools": 1}', "")
