"""Options of the wrong type, in every method that takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from draftwire import AsyncClient, BatchOptions, Client, GenerateOptions, Speculation
from draftwire._messages.option_types import checked
from draftwire._messages.requests import Request
from draftwire._types.option import options_of
from draftwire._types.quoting import quoted, shortened

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": "7"}, "max_tokens: expected an int, got '7' (str)"),
    ({"max_tokens": 3.5}, "max_tokens: expected an int, got 3.5 (float)"),
    ({"max_tokens": True}, "max_tokens: expected an int, got True (bool)"),
    ({"stop": 5}, "stop: expected a string or a list of strings, got 5 (int)"),
    ({"stop": ["a", 5]}, "stop[1]: expected a string, got 5 (int)"),
    ({"stop_token_ids": 5}, "stop_token_ids: expected a list of token ids, got 5 (int)"),
    ({"stop_token_ids": [1, "2"]}, "stop_token_ids[1]: expected an int, got '2' (str)"),
    ({"temperature": "hot"}, "temperature: expected a number, got 'hot' (str)"),
    ({"temperature": False}, "temperature: expected a number, got False (bool)"),
    ({"temperature": 10**400}, "temperature: expected a number, got 1000"),
    ({"top_p": np.ones(2)}, "top_p: expected a number, got array([1., 1.]) (ndarray)"),
    ({"speculation": "no"}, "speculation: expected a Speculation, got 'no' (str)"),
    (
        {"speculation": Speculation(max_draft_tokens="4")},  # type: ignore[arg-type]
        "speculation.max_draft_tokens: expected an int, got '4' (str)",
    ),
    (
        {"speculation": Speculation(enabled="yes")},  # type: ignore[arg-type]
        "speculation.enabled: expected True or False, got 'yes' (str)",
    ),
    ({"logit_bias": [5]}, "logit_bias: expected a mapping of token ids to numbers, got [5] (list)"),
    ({"logit_bias": {5: "x"}}, "logit_bias[5]: expected a number, got 'x' (str)"),
    ({"logit_bias": {"5": 1.0}}, "a key of logit_bias: expected an int, got '5' (str)"),
    ({"echo": "yes"}, "echo: expected True or False, got 'yes' (str)"),
    ({"json_schema": 5}, "json_schema: expected a JSON schema, as a string or a mapping, got 5 (int)"),
    ({"json_schema": {"enum": {1}}}, "json_schema: expected values of JSON: Object of type set is not"),
    ({"max_token": 3}, "there is no option 'max_token'; did you mean 'max_tokens'?"),
    ({"x" * 1000: 3}, "there is no option 'xxxx"),
    ({"regex": b"x" * 10_000}, "regex: expected a string, got b'xxx"),
]


@pytest.mark.parametrize(("options", "told"), WRONG)
def test_the_error_names_the_option(options: dict[str, Any], told: str) -> None:
    with pytest.raises(TypeError) as caught:
        Request.of("x", **options)
    assert str(caught.value).startswith(told)
    assert len(str(caught.value)) < 300


def methods(client: Any) -> list[Callable[..., Any]]:
    messages = [{"role": "user", "content": "hi"}]
    return [
        lambda **options: client.generate("x", **options),
        lambda **options: client.generate("x", n=2, **options),
        lambda **options: client.stream("x", **options),
        lambda **options: client.chat(messages, **options),
        lambda **options: client.stream_chat(messages, **options),
        lambda **options: client.generate_batch(["x", "y"], **options),
    ]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_tokens": "7"}, "^max_tokens: expected an int, got '7'"),
        ({"max_token": 7}, "no option 'max_token'; did you mean 'max_tokens'"),
    ],
)
async def test_in_every_method(options: dict[str, Any], told: str) -> None:
    with Client("127.0.0.1:1") as client:
        for method in methods(client):
            with pytest.raises(TypeError, match=told):
                method(**options)
    async with AsyncClient("127.0.0.1:1") as client:
        for method in methods(client):
            with pytest.raises(TypeError, match=told):
                called = method(**options)
                await called


def test_prompts() -> None:
    wrong: list[tuple[Any, str]] = [
        (None, "prompt: expected a string or a sequence of token ids, got None (NoneType)"),
        (5, "prompt: expected a string or a sequence of token ids, got 5 (int)"),
        (["a"], "prompt[0]: expected an int, got 'a' (str)"),
        ([1, True], "prompt[1]: expected an int, got True (bool)"),
        ({"a": 1}, "prompt: expected a string or a sequence of token ids, got {'a': 1} (dict)"),
    ]
    with Client("127.0.0.1:1") as client:
        for prompt, told in wrong:
            with pytest.raises(TypeError) as caught:
                client.generate(prompt)
            assert str(caught.value) == told
        with pytest.raises(TypeError, match=r"^messages: expected a list"):
            client.chat("hi")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"^messages\[0\]: expected a mapping"):
            client.chat(["hi"])  # type: ignore[list-item]
        with pytest.raises(
            TypeError, match=r"^messages\[0\].content: expected a string or a list of parts of the type text, got 5"
        ):
            client.chat([{"role": "user", "content": 5}])  # type: ignore[dict-item]
        with pytest.raises(TypeError, match=r"^n: expected an int"):
            client.generate("x", n="2")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"^timeout: expected a number, got '5'"):
            client.model_info(timeout="5")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"^there is no option 'message'; did you mean 'messages'\?"):
            client.tokenize(message=[])  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"^max_concurrency: expected an int"):
            client.generate_batch(["x"], max_concurrency="2")  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    message = Request.of(
        np.array([1, 2, 3]),  # type: ignore[arg-type]
        max_tokens=np.int64(7),  # type: ignore[arg-type]
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_k=np.uint8(3),  # type: ignore[arg-type]
        ignore_eos=np.bool_(True),  # type: ignore[arg-type]
        logit_bias={np.int32(5): np.float64(1.5)},  # type: ignore[dict-item]
        seed=np.uint64(2**64 - 1),  # type: ignore[arg-type]
    ).message
    assert list(message.token_ids.ids) == [1, 2, 3]
    assert (message.max_tokens, message.sampling.temperature, message.sampling.top_k) == (7, 0.5, 3)
    assert (message.ignore_eos, dict(message.sampling.logit_bias)) == (True, {5: 1.5})
    assert message.sampling.seed == 2**64 - 1


def test_every_option_is_checked() -> None:
    declared = options_of(GenerateOptions)
    assert set(declared) == set(GenerateOptions.__annotations__) | set(BatchOptions.__annotations__)
    assert set(options_of(Speculation)) == {field.name for field in fields(Speculation)}
    for name in declared:
        with pytest.raises(TypeError, match=f"^{name}: expected "):
            checked({name: object()})
    for name in options_of(Speculation):
        with pytest.raises(TypeError, match=f"^speculation.{name}: expected "):
            checked({"speculation": Speculation(**{name: object()})})
    assert checked(dict.fromkeys(declared)) == dict.fromkeys(declared)


def test_what_is_quoted_is_short() -> None:
    assert quoted("name") == "'name'"
    assert shortened("name") == "name"
    for long in ("x" * 1_000_000, ["x" * 1000] * 1000, {"x" * 1000: 1}, 10**4000, 10**5000, b"x" * 100_000):
        assert len(quoted(long)) < 1000
    assert shortened("a" * 1000 + "z") == "a" * 58 + "..." + "a" * 18 + "z"
