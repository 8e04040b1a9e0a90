"""Tokenize and chat prompts: texts, offsets, templates that refuse, and templates that try to leave the sandbox."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftwire.v1 import verifier_service_pb2 as pb
from draftwire_core.runtime.errors import ServiceError
from tests.harness.models.byte_tokenizers import write_byte_checkpoint
from tests.harness.services.in_process_verifier import InProcessVerifier, order
from tests.harness.services.services import Services
from verifier_service.servicer import VerifierServicer

CONTEXT = SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:4242")
TEMPLATE = (
    "{% if messages[-1].role == 'assistant' %}{{ raise_exception('nobody waits for an answer') }}{% endif %}"
    "{% if messages[-1].role == 'spy' %}{{ ''.__class__.__mro__[1].__subclasses__() }}{% endif %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"
)


def messages(*turns: tuple[str, str]) -> pb.ChatMessages:
    return pb.ChatMessages(messages=[pb.ChatMessage(role=role, content=content) for role, content in turns])


TALK = messages(("system", "Be naïve."), ("user", "日本?"))
RENDERED = "[system] Be naïve.\n[user] 日本?\n[assistant]"


@pytest.fixture(scope="module")
def talking_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_byte_checkpoint(tmp_path_factory.mktemp("talking"), "target")
    config = directory / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": TEMPLATE}))
    return directory


@pytest.fixture
async def talking(services: Services, talking_checkpoint: Path) -> AsyncIterator[InProcessVerifier]:
    async with services.in_process_verifier(talking_checkpoint) as made:
        yield made


Tokenize = Callable[..., Any]


@pytest.fixture
def tokenize(talking: InProcessVerifier) -> Tokenize:
    async def tokenize(**fields: Any) -> pb.TokenizeResponse:
        return await VerifierServicer(talking.verifier).Tokenize(pb.TokenizeRequest(**fields), CONTEXT)

    return tokenize


async def test_a_text(talking: InProcessVerifier, tokenize: Tokenize) -> None:
    text = "self naïve 日本"
    answer = await tokenize(text=text)
    assert list(answer.token_ids) == talking.verifier.model.tokenizer.encode(text, add_special_tokens=False)
    assert len(answer.token_ids) == len(answer.text_offsets) == len(answer.token_texts)
    for token_text, offset in zip(answer.token_texts, answer.text_offsets, strict=True):
        assert "\N{REPLACEMENT CHARACTER}" in token_text or text.startswith(token_text, offset)


async def test_no_text(tokenize: Tokenize) -> None:
    assert await tokenize() == pb.TokenizeResponse()


async def test_a_conversation_is_what_is_generated_from(talking: InProcessVerifier, tokenize: Tokenize) -> None:
    answer = await tokenize(messages=TALK)
    assert talking.verifier.model.tokenizer.decode(answer.token_ids, skip_special_tokens=False) == RENDERED
    request = order(max_tokens=4, echo=True)
    request.messages.CopyFrom(TALK)
    output = await talking.generate(request)
    assert output.started.prompt_token_ids == answer.token_ids
    assert output.prompts[0].text == RENDERED
    alone = await talking.generate(order(list(answer.token_ids), 4))
    assert output.token_ids == alone.token_ids


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"messages": TALK, "text": "x"}, "INVALID_FIELD", "messages"),
        ({"messages": pb.ChatMessages()}, "EMPTY_PROMPT", "messages.messages"),
        ({"messages": messages(("assistant", "Yes."))}, "INVALID_FIELD", "messages"),
        ({"messages": messages(("spy", "Yes."))}, "INVALID_FIELD", "messages"),
    ],
    ids=["both", "empty", "refused", "unsafe"],
)
async def test_faults_name_the_field_and_the_service_lives(
    talking: InProcessVerifier, tokenize: Tokenize, fields: dict[str, Any], reason: str, field: str
) -> None:
    with pytest.raises(ServiceError) as caught:
        await tokenize(**fields)
    assert (caught.value.code.name, caught.value.reason_name) == ("INVALID_ARGUMENT", reason)
    assert [each.field for each in caught.value.field_violations] == [field]
    if "text" not in fields:
        request = order(max_tokens=4)
        request.messages.CopyFrom(fields["messages"])
        with pytest.raises(ServiceError) as refused:
            await talking.generate(request)
        assert refused.value.message == caught.value.message
    assert len((await talking.generate(order(max_tokens=4))).token_ids) == 4


async def test_a_template_that_tries_to_leave_its_sandbox_says_so(tokenize: Tokenize) -> None:
    with pytest.raises(ServiceError, match="unsafe"):
        await tokenize(messages=messages(("spy", "Yes.")))
