"""Whole numbers and limits as clients of other engines write them."""

from typing import Any

import httpx
import pytest

from tests.harness.stand_ins.scripted_verifier import ScriptedVerifier

CHAT = {"messages": [{"role": "user", "content": "x"}]}
ROUTES = [("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "x"})]


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_floats_without_a_fraction_are_integers(
    http: httpx.AsyncClient, fake: ScriptedVerifier, path: str, body: dict[str, Any]
) -> None:
    response = await http.post(path, json=body | {"max_tokens": 16.0, "seed": 3.0, "top_k": 5.0, "n": 1.0})
    assert response.status_code == 200, response.text
    [request] = fake.requests
    assert (request.max_tokens, request.sampling.seed, request.sampling.top_k) == (16, 3, 5)
    response = await http.post(path, json=body | {"max_tokens": 16.5})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_minus_one_token_is_the_end_of_the_context(
    http: httpx.AsyncClient, fake: ScriptedVerifier, path: str, body: dict[str, Any]
) -> None:
    response = await http.post(path, json=body | {"max_tokens": -1})
    assert response.status_code == 200, response.text
    assert not fake.requests[0].HasField("max_tokens")


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize("tokens", [0, -2])
async def test_other_limits_are_refused(http: httpx.AsyncClient, path: str, body: dict[str, Any], tokens: int) -> None:
    response = await http.post(path, json=body | {"max_tokens": tokens})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")


async def test_seed_minus_one_is_another_one_each_time(http: httpx.AsyncClient, fake: ScriptedVerifier) -> None:
    for seed in (-1, -1, -2):
        response = await http.post("/v1/chat/completions", json=CHAT | {"seed": seed})
        assert response.status_code == 200, response.text
    first, second, other = (request.sampling.seed for request in fake.requests)
    assert first != second and other == 2**64 - 2


async def test_fields_of_single_endpoints_are_read_alike(http: httpx.AsyncClient, fake: ScriptedVerifier) -> None:
    response = await http.post("/v1/responses", json={"input": "x", "max_output_tokens": -1})
    assert (response.status_code, response.json()["max_output_tokens"]) == (200, None), response.text
    more = {"best_of": 1.0, "stop_token_ids": [7.0], "speculation": {"drafters": 2.0}}
    response = await http.post("/v1/completions", json={"prompt": [3.0, 4]} | more)
    assert response.status_code == 200, response.text
    limited, drafted = fake.requests
    assert not limited.HasField("max_tokens")
    assert (list(drafted.token_ids.ids), list(drafted.stop_token_ids)) == ([3, 4], [7])
    assert drafted.speculation.drafters == 2
    response = await http.post("/v1/completions", json={"prompt": [3.5]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
