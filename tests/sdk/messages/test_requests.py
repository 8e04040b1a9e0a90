"""Requests in their wire format."""

from typing import Any

import pytest

from draftwire import (
    AsyncClient,
    Client,
    ErrorReason,
    GenerateOptions,
    InvalidFieldError,
    Speculation,
    TokenOutOfRangeError,
)
from draftwire._messages.conversation import Conversation
from draftwire._messages.methods import (
    ATTACH_DRAFTER,
    DETACH_DRAFTER,
    DETOKENIZE,
    GENERATE,
    GET_MODEL_INFO,
    LIST_DRAFTERS,
    SWAP_DRAFTER,
    TOKENIZE,
    WATCH_DRAFTERS,
)
from draftwire._messages.requests import Request, batch_seeds
from draftwire.v1 import drafter_pool_service_pb2, speculation_pb2, verifier_service_pb2


def test_defaults() -> None:
    asked = Request.of("def f")
    message, timeout = asked.message, asked.timeout
    assert message.text == "def f"
    assert message.max_tokens == 128
    assert message.sampling.temperature == 1.0
    assert [f.name for f, _ in message.sampling.ListFields()] == ["temperature", "seed"]
    assert 0 <= message.sampling.seed < 2**63
    assert not message.ignore_eos
    assert not message.private
    assert not message.stop
    assert message.speculation.enabled
    assert message.speculation.acceptance == speculation_pb2.ACCEPTANCE_RULE_COUPLED
    assert timeout is None


def test_a_prediction_is_text_or_token_ids() -> None:
    assert not Request.of("x").message.speculation.HasField("prediction")
    text = Request.of("x", speculation=Speculation(prediction="y")).message.speculation.prediction
    assert (text.text, list(text.token_ids)) == ("y", [])
    ids = Request.of("x", speculation=Speculation(prediction=(1, 2))).message.speculation.prediction
    assert (ids.text, list(ids.token_ids)) == ("", [1, 2])
    with pytest.raises(TokenOutOfRangeError) as caught:
        Request.of("x", speculation=Speculation(prediction=[-1]))
    assert caught.value.field_violations[0].field == "speculation.prediction.token_ids[0]"


def test_drafters_are_a_number_or_names() -> None:
    two = Request.of("x", speculation=Speculation(drafters=2)).message.speculation
    assert (two.drafters, list(two.drafter_names)) == (2, [])
    named = Request.of("x", speculation=Speculation(drafters=["local:ngram", "draft-1"])).message.speculation
    assert (named.HasField("drafters"), list(named.drafter_names)) == (False, ["local:ngram", "draft-1"])
    with pytest.raises(InvalidFieldError, match=r"speculation\.drafters"):
        Request.of("x", speculation=Speculation(drafters="draft-1"))


def test_seeds_are_fixed_by_the_sdk_and_differ() -> None:
    assert len({Request.of("x").message.sampling.seed for _ in range(50)}) == 50


def test_everything_is_carried() -> None:
    asked = Request.of(
        [1, 2, 3],
        max_tokens=7,
        temperature=0.0,
        top_k=0,
        top_p=0.5,
        min_p=0.0,
        ignore_eos=True,
        stop=["a", "b"],
        speculation=Speculation(enabled=False, drafter="good", max_draft_tokens=0),
        seed=2**64 - 1,
        request_id="mine",
        private=True,
        timeout=3.0,
    )
    message, timeout = asked.message, asked.timeout
    assert list(message.token_ids.ids) == [1, 2, 3]
    sampling = message.sampling
    assert sampling.HasField("temperature")
    assert sampling.HasField("top_k")
    assert sampling.HasField("min_p")
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.0, 0.5, 2**64 - 1)
    assert message.ignore_eos
    assert list(message.stop) == ["a", "b"]
    assert not message.speculation.enabled
    assert message.speculation.HasField("enabled")
    assert message.speculation.drafter == "good"
    assert message.speculation.HasField("max_draft_tokens")
    assert (message.max_tokens, message.request_id, message.private, timeout) == (7, "mine", True, 3.0)


def test_one_stop_string() -> None:
    assert list(Request.of("x", stop="\n\n").message.stop) == ["\n\n"]


def test_no_limit_leaves_max_tokens_out() -> None:
    assert not Request.of("x", max_tokens=None).message.HasField("max_tokens")


def test_an_empty_list_of_ids_is_still_the_prompt() -> None:
    assert Request.of([]).message.WhichOneof("prompt") == "token_ids"


def test_conversations() -> None:
    message = Request.of(Conversation([{"role": "user", "content": "hi"}])).message
    assert [(m.role, m.content) for m in message.messages.messages] == [("user", "hi")]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2**32}, "max_tokens"),
        ({"top_k": -1}, "sampling.top_k"),
        ({"seed": -1}, "sampling.seed"),
        ({"seed": 2**64}, "sampling.seed"),
        ({"speculation": Speculation(max_draft_tokens=-1)}, "speculation.max_draft_tokens"),
        ({"speculation": Speculation(planning="never")}, "speculation.planning"),  # type: ignore[arg-type]
        ({"speculation": Speculation(acceptance="greedy")}, "speculation.acceptance"),  # type: ignore[arg-type]
        ({"speculation": Speculation(preset="poem")}, "speculation.preset"),  # type: ignore[arg-type]
    ],
)
def test_what_the_wire_cannot_carry_names_its_field(options: GenerateOptions, field: str) -> None:
    with pytest.raises(InvalidFieldError, match=f"^{field.removeprefix('sampling.')}: ") as caught:
        Request.of("x", **options)
    assert caught.value.fields == (field,)
    assert caught.value.reason is ErrorReason.INVALID_FIELD
    assert caught.value.raw is None
    assert len(caught.value.status.details) == 2


def test_rules_of_acceptance() -> None:
    default = Request.of("x").message.speculation
    assert (default.acceptance, default.preset) == (speculation_pb2.ACCEPTANCE_RULE_COUPLED, 0)
    assert not default.HasField("threshold")
    options = Speculation(acceptance="threshold", threshold=0.0, dynamic_temperature=True)
    sent = Request.of("x", speculation=options).message.speculation
    assert (sent.acceptance, sent.HasField("threshold"), sent.dynamic_temperature) == (
        speculation_pb2.AcceptanceRule.ACCEPTANCE_RULE_THRESHOLD,
        True,
        True,
    )
    sent = Request.of("x", speculation=Speculation(preset="auto")).message.speculation
    assert (sent.acceptance, sent.preset) == (0, speculation_pb2.AcceptancePreset.ACCEPTANCE_PRESET_AUTO)
    sent = Request.of("x", speculation=Speculation(acceptance="typical", posterior_alpha=0.5)).message.speculation
    assert (sent.posterior_alpha, sent.HasField("posterior_threshold")) == (0.5, False)


def test_ranges_are_left_to_the_verifier() -> None:
    Request.of("", temperature=-1.0, top_p=2.0, max_tokens=0)
    Request.of("x", temperature=float("nan"))


@pytest.mark.parametrize("bad", [-1, 2**32])
def test_numbers_that_are_no_token_ids(bad: int) -> None:
    with pytest.raises(TokenOutOfRangeError, match=r"^prompt\[1\]: ") as caught:
        Request.of([1, bad])
    assert caught.value.fields == ("token_ids.ids[1]",)


def test_a_message_needs_role_and_content() -> None:
    with pytest.raises(InvalidFieldError, match=r"^messages\[1\]: "):
        Request.of(Conversation([{"role": "user", "content": "hi"}, {"role": "user"}]))


def test_contents_of_messages() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "tool_calls": [call]},
    ]
    sent = Request.of(Conversation(messages)).message.messages.messages
    assert [each.content for each in sent] == ["ab", "", ""]
    for content, error in (
        ([{"type": "image_url", "image_url": {}}], r"^messages\[0\].content\[0\].type: "),
        (None, r"^messages\[0\]: "),
    ):
        with pytest.raises(InvalidFieldError, match=error):
            Request.of(Conversation([{"role": "user", "content": content}]))
    for content in (b"a", 5, ["a"], [{"type": "text"}]):
        with pytest.raises(TypeError, match=r"messages\[0\].content"):
            Request.of(Conversation([{"role": "user", "content": content}]))


def test_how_a_conversation_is_rendered() -> None:
    messages = [{"role": "user", "content": "hi"}]
    usual = Request.of(Conversation(messages)).message.messages
    assert not usual.HasField("add_generation_prompt") and not usual.continue_final_message
    sent = Request.of(Conversation(messages, None, {"a": [1]}, False, True)).message.messages
    assert sent.chat_template_kwargs == '{"a": [1]}' and sent.continue_final_message
    assert sent.HasField("add_generation_prompt") and not sent.add_generation_prompt
    for wrong in ([1], {1: 2}, {"a": object()}):
        with pytest.raises(TypeError, match="chat_template_kwargs"):
            Request.of(Conversation(messages, None, wrong))  # type: ignore[arg-type]


def test_wrong_types_are_type_errors() -> None:
    with pytest.raises(TypeError):
        Request.of("x", temperature="hot")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bytes"):
        Request.of(b"x")
    with pytest.raises(TypeError, match="max_token"):
        Request.of("x", max_token=3)  # type: ignore[call-arg]


def test_batch_seeds() -> None:
    assert batch_seeds(7, 3) == [7, 7, 7]
    assert batch_seeds([1, 2], 2) == [1, 2]
    assert batch_seeds(None, 2) == [None, None]
    with pytest.raises(ValueError, match="2 seeds for 3 prompts"):
        batch_seeds([1, 2], 3)


def test_both_clients_have_the_same_surface() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(Client) == public(AsyncClient)
    assert type(Client().drafters).__name__ == "Drafters"
    assert public(type(Client().drafters)) == public(type(AsyncClient().drafters))


@pytest.mark.parametrize("addresses", ["", [], " ", ["localhost:1", ""], "http://localhost:1"])
def test_addresses_are_checked(addresses: str | list[str]) -> None:
    with pytest.raises(ValueError, match="address"):
        Client(addresses)


def test_methods_are_those_of_the_contract() -> None:
    services = {
        service.full_name: service
        for file in (verifier_service_pb2, drafter_pool_service_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
    }
    for method in (
        GENERATE,
        TOKENIZE,
        DETOKENIZE,
        GET_MODEL_INFO,
        LIST_DRAFTERS,
        WATCH_DRAFTERS,
        ATTACH_DRAFTER,
        DETACH_DRAFTER,
        SWAP_DRAFTER,
    ):
        described = services[method.service].methods_by_name[method.name]
        assert described.input_type is method.request.DESCRIPTOR
        assert described.output_type is method.response.DESCRIPTOR
