"""Errors of a real verifier use the client's field names, and repeat no more of its text than necessary."""

import json
from typing import Any

import grpc
import httpx
import pytest

from tests.harness.services.service_process import ServiceProcess
from tests.harness.stand_ins.fake_verifier import rich_status
from tests.harness.stand_ins.telling_verifier import TellingVerifier
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.processes

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LONG = "x" * 300_000
USER = [{"role": "user", "content": "a"}]
DEFAULTS: dict[str, dict[str, Any]] = {COMPLETIONS: {"prompt": "a", "max_tokens": 2}, CHAT: {"messages": USER}}


async def error_of(gateway: ServiceProcess, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE) as http:
        plain = await http.post(path, json=body)
        assert 400 <= plain.status_code < 500, plain.text
        error: dict[str, Any] = plain.json()["error"]
        if path in (COMPLETIONS, CHAT):
            streamed = await http.post(path, json=body | {"stream": True})
            if streamed.status_code == 200:  # another prompt's output has begun by the time this one is refused
                assert isinstance(body["prompt"], list), streamed.text
                *_, last, done = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line]
                assert (json.loads(last)["error"], done) == (error, "[DONE]")
            else:
                assert (streamed.status_code, streamed.json()["error"]) == (plain.status_code, error)
        return error


@pytest.mark.parametrize(
    ("path", "body", "param", "begin"),
    [
        (COMPLETIONS, {"prompt": ""}, "prompt", "prompt: has no tokens: give one at least"),
        (COMPLETIONS, {"prompt": ["a", ""]}, "prompt[1]", "prompt[1]: has no tokens: give one at least"),
        (COMPLETIONS, {"prompt": ["a", "b", ""], "n": 2}, "prompt[2]", "prompt[2]: has no tokens: give one at least"),
        (COMPLETIONS, {"prompt": [5, 999_999]}, "prompt[1]", "prompt[1]: is 999999"),
        (COMPLETIONS, {"prompt": [[5], [5, 999_999]]}, "prompt[1][1]", "prompt[1][1]: is 999999"),
        (COMPLETIONS, {"prompt": [5] * 2100}, "prompt", "prompt: has 2100 tokens"),
        (COMPLETIONS, {"logit_bias": {"7": 1, "999999": 1}}, "logit_bias", "logit_bias: token 999999: is beyond"),
        (COMPLETIONS, {"logit_bias": {"7": 200}}, "logit_bias", "logit_bias: token 7: must be in"),
        (COMPLETIONS, {"allowed_token_ids": [5, 999_999]}, "allowed_token_ids[1]", "allowed_token_ids[1]: is 999999"),
        (COMPLETIONS, {"bad_words": ["a", ""]}, "bad_words[1]", "bad_words[1]: must have"),
        (COMPLETIONS, {"stop": ""}, "stop", "stop: must have"),
        (COMPLETIONS, {"stop": ["a", ""]}, "stop[1]", "stop[1]: must have"),
        (COMPLETIONS, {"guided_regex": "("}, "guided_regex", "guided_regex: "),
        (COMPLETIONS, {"structured_outputs": {"grammar": "start:"}}, "structured_outputs.grammar", None),
        (COMPLETIONS, {"speculation": {"prediction": [999_999]}}, "speculation.prediction", None),
        (COMPLETIONS, {"speculation": {"drafter": "nobody"}}, "speculation.drafter", "no drafter named 'nobody'"),
        (COMPLETIONS, {"min_tokens": 9}, "min_tokens", "min_tokens: is 9"),
        (CHAT, {"min_tokens": 2000}, "min_tokens", "min_tokens: is 2000"),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}},
         "response_format", "response_format: "),
        ("/tokenize", {"prompt": "a", "messages": USER}, "prompt", "prompt and messages"),
        ("/detokenize", {"tokens": [5, 999_999]}, "tokens[1]", "tokens[1]: is 999999"),
    ],
)  # fmt: skip
async def test_names(
    real_gateway: ServiceProcess, path: str, body: dict[str, Any], param: str, begin: str | None
) -> None:
    error = await error_of(real_gateway, path, DEFAULTS.get(path, {}) | body)
    assert error["param"] == param, error
    assert error["message"].startswith(begin or f"{param}: "), error
    for ours in ("sampling.", "text:", "structured_output.", "token_ids.ids", "messages.messages"):
        assert ours not in error["message"]


@pytest.mark.parametrize(
    ("body", "field", "param"),
    [
        ({"max_tokens": 5}, "max_tokens", "max_tokens"),
        ({"max_completion_tokens": 5}, "max_tokens", "max_completion_tokens"),
        ({"prediction": {"type": "content", "content": "a"}}, "speculation.prediction.text", "prediction"),
        ({}, "messages.messages[0].content", "messages[0].content"),
        ({}, "sampling.logit_bias[5]", "logit_bias"),
        ({}, "a_field_that_is_new[3].part", "a_field_that_is_new[3].part"),
    ],
)
async def test_names_of_a_conversation(
    http: httpx.AsyncClient, fake: TellingVerifier, body: dict[str, Any], field: str, param: str
) -> None:
    await http.get("/v1/models")  # so that the next call is the failing one
    fake.failures.append(rich_status(grpc.StatusCode.INVALID_ARGUMENT, f"{field}: is wrong", "INVALID_FIELD", (field,)))
    error = (await http.post(CHAT, json=DEFAULTS[CHAT] | body)).json()["error"]
    place = "logit_bias: token 5" if param == "logit_bias" else param
    assert (error["param"], error["message"]) == (param, f"{place}: is wrong")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"model": LONG}),
        (COMPLETIONS, {"logit_bias": {LONG: 1}}),
        (COMPLETIONS, {"logit_bias": {"9" * 5000: 1}}),
        (COMPLETIONS, {"speculation": {LONG: 1}}),
        (COMPLETIONS, {"speculation": {"drafter": LONG}}),
        (COMPLETIONS, {"speculation": {"labels": {LONG: "a"}}}),
        (COMPLETIONS, {"guided_regex": f"({LONG[:200_000]}"}),
        (COMPLETIONS, {"guided_grammar": f"start: {LONG[:200_000]}"}),
        (CHAT, {"messages": [{"role": LONG, "content": "a"}]}),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": LONG[:200_000]}}}}),
        (f"/v1/{'x' * 5000}", {}),
        ("/console/api/drafters/swap", {"old": LONG, "new": LONG}),
        ("/console/api/drafters/attach", {"address": LONG}),
        ("/console/api/drafters/detach", {"name": LONG}),
        ("/console/api/drafters/detach", {LONG: "a"}),
    ],
)
async def test_no_error_repeats_a_long_text(real_gateway: ServiceProcess, path: str, body: dict[str, Any]) -> None:
    error = await error_of(real_gateway, path, DEFAULTS.get(path, {}) | body)
    assert len(error["message"]) <= 1000 and len(error.get("param") or error.get("field") or "") <= 200
