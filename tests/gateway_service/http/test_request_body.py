"""Bodies that are too large, and bodies that do not come."""

import asyncio
import gzip
import json
from typing import Any

from tests.gateway_service.conftest import JSON, OpenGateway
from tests.harness.stand_ins.fake_verifier import PROMPT

BODY = {"prompt": PROMPT, "max_tokens": 2}


async def test_a_body_that_is_too_large(open_gateway: OpenGateway) -> None:
    http = await open_gateway(max_body_bytes=2000)
    assert (await http.post("/v1/completions", json=BODY | {"prompt": "a" * 1900})).status_code == 200
    for content in (b"a" * 2001, b"a" * 5_000_000):
        response = await http.post("/v1/completions", content=content)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"

    async def parts() -> Any:  # without a declared length
        for _ in range(30):
            yield b" " * 100

    assert (await http.post("/v1/completions", content=parts(), headers=JSON)).status_code == 413


async def test_a_body_that_does_not_come(open_gateway: OpenGateway) -> None:
    http = await open_gateway(body_seconds=0.1)

    async def never() -> Any:
        yield b"{"
        await asyncio.sleep(20)

    response = await http.post("/v1/completions", content=never(), headers=JSON)
    assert response.status_code == 408


async def test_a_compressed_body(open_gateway: OpenGateway) -> None:
    http = await open_gateway()
    body = json.dumps(BODY).encode()
    response = await http.post(
        "/v1/completions", content=gzip.compress(body), headers=JSON | {"Content-Encoding": "gzip"}
    )
    assert response.status_code == 415
    assert response.json()["error"]["message"] == "Content-Encoding: 'gzip' is not supported; send the body as it is"
    response = await http.post("/v1/completions", content=body, headers=JSON | {"Content-Encoding": "identity"})
    assert response.status_code == 200
