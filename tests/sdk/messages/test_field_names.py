"""Fields of the contract appear in messages as parameters of the SDK."""

from __future__ import annotations

import pytest
from grpc import StatusCode

from draftwire import Client, DrafterNotFoundError, DraftwireError, GenerateOptions, InvalidFieldError
from draftwire._messages.field_names import name_parameters, parameter_of
from draftwire._messages.methods import ATTACH_DRAFTER, GENERATE, SWAP_DRAFTER, TOKENIZE, VERIFY
from draftwire.errors import from_status, invalid_field
from tests.harness.stand_ins.fake_verifier import FakeVerifier, rich_status


@pytest.mark.parametrize(
    ("path", "field", "parameter"),
    [
        (GENERATE.path, "text", "prompt"),
        (VERIFY.path, "text", "prompt"),
        (GENERATE.path, "token_ids.ids[3]", "prompt[3]"),
        (GENERATE.path, "messages.messages[1]", "messages[1]"),
        (GENERATE.path, "messages.tools[0].name", "tools[0].name"),
        (GENERATE.path, "sampling.temperature", "temperature"),
        (GENERATE.path, "sampling.logit_bias[5]", "logit_bias[5]"),
        (GENERATE.path, "log_probs", "logprobs"),
        (GENERATE.path, "structured_output.json_schema", "json_schema"),
        (GENERATE.path, "structured_output.lark", "grammar"),
        (GENERATE.path, "structured_output.choice.texts[2]", "choice[2]"),
        (GENERATE.path, "speculation.drafter_names", "speculation.drafters"),
        (GENERATE.path, "speculation.threshold", "speculation.threshold"),
        (GENERATE.path, "max_tokens", "max_tokens"),
        (GENERATE.path, "textual", "textual"),
        (TOKENIZE.path, "text", "text"),
        (SWAP_DRAFTER.path, "new_name", "new"),
        (ATTACH_DRAFTER.path, "address", "address"),
    ],
)
def test_parameters(path: str, field: str, parameter: str) -> None:
    assert parameter_of(path, field) == parameter


def test_fields_stay_and_words_stay() -> None:
    error = from_status(
        rich_status(
            StatusCode.INVALID_ARGUMENT,
            "text: the text is empty; max_tokens: as well",
            "EMPTY_PROMPT",
            ("text", "max_tokens"),
        )
    )
    name_parameters(error, GENERATE.path)
    assert str(error) == "prompt: the text is empty; max_tokens: as well"
    assert error.fields == ("text", "max_tokens")
    assert [each.parameter for each in error.field_violations] == ["prompt", ""]
    assert error.details == "text: the text is empty; max_tokens: as well"


def test_every_sampling_parameter_has_its_own_name() -> None:
    from draftwire.v1.sampling_pb2 import SamplingParams

    for field in SamplingParams.DESCRIPTOR.fields:
        error: DraftwireError = invalid_field(f"sampling.{field.name}", "is wrong")
        name_parameters(error, GENERATE.path)
        assert str(error) == f"{field.name}: is wrong"
        assert field.name in GenerateOptions.__annotations__


def test_calls_of_the_pool(client: Client, verifier: FakeVerifier) -> None:
    verifier.failures.append(
        rich_status(StatusCode.INVALID_ARGUMENT, "new_name: is wrong", "INVALID_FIELD", ("new_name",))
    )
    with pytest.raises(InvalidFieldError, match=r"^new: is wrong$") as caught:
        client.drafters.swap("good", "nobody")
    assert caught.value.fields == ("new_name",)


def test_tokenizations(client: Client) -> None:
    with pytest.raises(InvalidFieldError, match=r"^messages\[0\]: expected the keys role and content") as caught:
        client.tokenize(messages=[{"content": "a"}])
    assert caught.value.fields == ("messages.messages[0]",)
    with pytest.raises(InvalidFieldError, match=r"^not valid Unicode"):
        client.tokenize("\ud800")
    with pytest.raises(InvalidFieldError, match=r"^not valid Unicode"):
        client.tokenize(messages=[{"role": "user", "content": "\ud800"}])


def test_a_name_as_long_as_it_was_sent_is_cut(client: Client, verifier: FakeVerifier) -> None:
    said = f"no drafter {'x' * 1_000_000} here"
    verifier.failures.append(rich_status(StatusCode.NOT_FOUND, said[:3000], "DRAFTER_NOT_FOUND"))
    with pytest.raises(DrafterNotFoundError) as caught:
        client.drafters.detach("x")
    assert len(str(caught.value)) <= 2000
    assert caught.value.details == said[:3000]
