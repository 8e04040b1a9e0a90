"""Conversations as the target's chat template renders them."""

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from draftwire._messages.conversation import message_list
from service_runtime.errors import ServiceError
from speculative_engine.text.tokenizer import Tokenizer
from tests.harness.models.byte_tokenizers import END, backend
from verifier_service.reading.text import TextReader
from verifier_service.reading.text_pool import TextPool

AS_TEXT = "{% for call in messages[-1].tool_calls %}{{ call.function.arguments }}{% endfor %}"
AS_OBJECT = (
    "{% for call in messages[-1].tool_calls %}"
    "{% for name, value in call.function.arguments.items() %}{{ name }}={{ value }}{% endfor %}{% endfor %}"
)
BROKEN = '{"city": "Ro'


def rendered(template: str, arguments: str) -> str:
    call: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    tokenizer = Tokenizer(
        PreTrainedTokenizerFast(tokenizer_object=backend("target"), eos_token=END["target"], chat_template=template)
    )
    reader = TextReader(tokenizer, 1000, "the context", TextPool())
    return reader.rendered(message_list([{"role": "assistant", "content": "", "tool_calls": [call]}]))


def test_arguments_that_were_cut_off_are_rendered_as_the_template_can() -> None:
    assert rendered(AS_TEXT, BROKEN) == BROKEN
    assert rendered(AS_OBJECT, BROKEN) == f"arguments={BROKEN}"
    assert rendered(AS_OBJECT, '{"city": "Rome"}') == "city=Rome"
    assert rendered(AS_OBJECT, "") == ""


@pytest.mark.parametrize("arguments", [BROKEN, "{}"])
def test_a_template_that_refuses_says_why(arguments: str) -> None:
    with pytest.raises(ServiceError, match="messages: no calls here"):
        rendered("{{ raise_exception('no calls here') }}", arguments)
