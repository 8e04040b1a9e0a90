"""A gateway in front of several verifiers without a model."""

from contextlib import ExitStack

import httpx
import openai
import pytest

from tests.gateway_service.conftest import OpenGateway
from tests.harness.stand_ins.fake_verifier import expected_ids, text_of
from tests.harness.stand_ins.telling_verifier import TellingVerifier

NOBODY = "127.0.0.1:1"


async def samples(http: httpx.AsyncClient, name: str) -> dict[str, float]:
    """Returns the values of a metric by verifier."""
    lines = (await http.get("/metrics")).text.splitlines()
    start = f'draftwire:gateway_verifier_{name}{{verifier="'
    found = (line.removeprefix(start).split('"} ') for line in lines if line.startswith(start))
    return {address: float(value) for address, value in found}


async def test_requests_are_spread_and_counted(open_gateway: OpenGateway, fake: TellingVerifier) -> None:
    with TellingVerifier() as second:
        http = await open_gateway(verifier=(fake.address, second.address))
        async with openai.AsyncOpenAI(api_key="none", base_url="http://localhost/v1", http_client=http) as client:
            for family in range(16):
                text = f"{family} " + "shared " * 50
                for ending in "ab":
                    prompt = text + ending
                    done = await client.completions.create(model="fake", prompt=prompt, max_tokens=4, seed=1)
                    assert done.choices[0].text == text_of(expected_ids(1, 4, [ord(letter) for letter in prompt]))
            assert await samples(http, "requests_total") == {
                fake.address: len(fake.requests), second.address: len(second.requests)
            }  # fmt: skip
            assert await samples(http, "in_flight") == {fake.address: 0, second.address: 0}
        assert fake.requests and second.requests
        for served in (fake, second):  # each family of prompts goes to one of them
            families = [request.text.split()[0] for request in served.requests]
            assert families[::2] == families[1::2]


async def test_health_is_that_of_any(open_gateway: OpenGateway, fake: TellingVerifier) -> None:
    http = await open_gateway(verifier=(NOBODY, fake.address))
    assert (await http.get("/health")).status_code == 200
    none = await open_gateway(verifier=(NOBODY, "127.0.0.1:2"))
    assert (await none.get("/health")).status_code == 503


async def test_one_that_is_away_is_told(open_gateway: OpenGateway, fake: TellingVerifier) -> None:
    http = await open_gateway(verifier=(NOBODY, f"{fake.address}?weight=0"))
    body = {"model": "fake", "prompt": "a", "max_tokens": 2}
    assert (await http.post("/v1/completions", json=body)).status_code == 200
    assert await samples(http, "up") == {NOBODY: 0, fake.address: 1}
    assert (await samples(http, "requests_total"))[fake.address] == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_request_that_ends_verifiers_is_not_sent_to_a_third(open_gateway: OpenGateway, streamed: bool) -> None:
    with ExitStack() as stack:
        fakes = [stack.enter_context(TellingVerifier()) for _ in range(4)]
        for fake in fakes:
            fake.break_after = [0]
        http = await open_gateway(verifier=tuple(fake.address for fake in fakes))
        body = {"model": "fake", "prompt": "a", "max_tokens": 2, "stream": streamed}
        answer = await http.post("/v1/completions", json=body)
        assert "not sent again" in answer.text
        assert streamed or answer.status_code == 503
        assert sorted(len(fake.requests) for fake in fakes) == [0, 0, 1, 1]
