"""Turn markers found in chat templates."""

from collections.abc import Mapping

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers import PreTrainedTokenizerFast

from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.engine.text.turn_markers import START, Message, Turn, find_turn_markers
from draftwire_core.engine.text.vocabulary import special_symbol
from tests.harness.models.byte_tokenizers import END, backend

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
LLAMA2 = (
    "{% set s = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% for m in messages %}{% if m.role == 'user' %}<s>[INST] {% if s and loop.index == 2 %}<<SYS>>\n{{ s }}\n<</SYS>>"
    "\n\n{% endif %}{{ m.content }} [/INST]{% elif m.role == 'assistant' %} {{ m.content }} </s>{% endif %}{% endfor %}"
)


def _refuse(message: str) -> None:
    raise ValueError(message)


def found(template: str) -> Mapping[Turn, str]:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    compiled = environment.from_string(template)

    def render(messages: list[Message], prompt: bool) -> str:
        return compiled.render(messages=messages, add_generation_prompt=prompt)

    return find_turn_markers(render)  # type: ignore[arg-type]


def test_messages_of_one_form_have_all_places() -> None:
    answer = "<|im_start|>assistant\n"
    assert found(CHATML) == {
        Turn.START_SYSTEM: f"{START}<|im_start|>system\n",
        Turn.START_USER: f"{START}<|im_start|>user\n",
        Turn.SYSTEM_USER: "<|im_end|>\n<|im_start|>user\n",
        Turn.USER_PROMPT: f"<|im_end|>\n{answer}",
        Turn.USER_ASSISTANT: f"<|im_end|>\n{answer}",
        Turn.ASSISTANT_USER: "<|im_end|>\n<|im_start|>user\n",
        Turn.USER: "<|im_start|>user\n",
        Turn.PROMPT: answer,
        Turn.ASSISTANT: answer,
    }


def test_a_template_that_refuses_system_messages_has_the_other_places() -> None:
    markers = found(GEMMA)
    assert Turn.START_SYSTEM not in markers and Turn.SYSTEM_USER not in markers
    assert markers[Turn.USER_PROMPT] == "<end_of_turn>\n<start_of_turn>model\n"
    assert markers[Turn.USER] == "<start_of_turn>user\n"


def test_an_answer_may_begin_without_a_marker_of_its_own() -> None:
    markers = found(LLAMA2)
    assert markers[Turn.USER_PROMPT] == " [/INST]"
    assert markers[Turn.SYSTEM_USER] == "\n<</SYS>>\n\n"
    assert markers[Turn.ASSISTANT_USER] == " </s><s>[INST] "
    assert Turn.PROMPT not in markers


@pytest.mark.parametrize("template", ["{{ raise_exception('never') }}", "{{ messages[0].content | upper }}", "Hello"])
def test_what_cannot_be_rendered_has_none(template: str) -> None:
    assert not found(template)


def test_a_tokenizer_finds_the_symbols_of_its_template() -> None:
    inner = PreTrainedTokenizerFast(tokenizer_object=backend("target"), eos_token=END["target"])
    assert not Tokenizer(inner).vocabulary().turns
    inner.chat_template = CHATML.replace("<|im_end|>", END["target"])
    turns = Tokenizer(inner).vocabulary().turns
    assert turns[Turn.USER_PROMPT] == f"{special_symbol(0)}\n<|im_start|>assistant\n"
