"""Two verifiers, three drafters and a gateway; one verifier is killed under 16 streams, and nothing is lost."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from draftwire import AsyncClient, Client, Generation, Speculation
from tests.harness.services.services import Services
from tests.harness.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

PROMPTS = ["def read_config(path):\n", "class Stack:\n", "import os\n", "# größer als «naïve» → "]
OPTIONS: dict[str, Any] = {"max_tokens": 600, "ignore_eos": True, "temperature": 1.1}
"""Long outputs: a verifier generates faster than a test's client with a dozen streams reads."""
SECONDS = 240.0
"""Time limit of one request, which shares two cores with 15 others, five services and a gateway."""
BY_SDK = 12
BY_HTTP = 4
BEGUN = 4
"""Number of characters that each stream has received when the verifier is killed."""


class Streams:
    """All streams, and the text received by each."""

    def __init__(self, addresses: list[str], gateway: str) -> None:
        self.texts = [""] * (BY_SDK + BY_HTTP)
        self.results: dict[int, Generation] = {}
        self.in_flight: dict[str, int] = {}
        """Number of the SDK's streams at each verifier when all of them had begun."""
        self.reachable: dict[str, bool] = {}
        self._addresses, self._gateway = addresses, gateway
        self._spread = asyncio.Event()
        self._begun = asyncio.Event()

    async def run(self, kill: Callable[[], None]) -> None:
        """Runs all streams to their ends; raises their errors."""
        async with (
            AsyncClient(self._addresses, timeout=SECONDS) as client,
            httpx.AsyncClient(timeout=SECONDS) as http,
        ):
            # The first requests take the gateway and the client longer, and all streams are to run at once.
            for prompt in PROMPTS:
                await client.generate(prompt, max_tokens=1)
                body = {"prompt": prompt, "model": "target", "max_tokens": 1}
                (await http.post(f"{self._gateway}/v1/completions", json=body)).raise_for_status()
            async with asyncio.TaskGroup() as tasks:
                for number in range(BY_SDK, BY_SDK + BY_HTTP):
                    tasks.create_task(self._by_http(http, number))
                for number in range(BY_SDK):
                    tasks.create_task(self._by_sdk(client, number))
                tasks.create_task(self._look(client))
                tasks.create_task(self._kill(kill))
            await client.generate(PROMPTS[0], seed=0, **OPTIONS)  # a new request is unaffected by the loss
            self.reachable = {each.address: each.reachable for each in client.verifiers}
            assert all(each.in_flight == 0 for each in client.verifiers)

    async def _look(self, client: AsyncClient) -> None:
        await self._spread.wait()
        self.in_flight = {each.address: each.in_flight for each in client.verifiers}

    async def _kill(self, kill: Callable[[], None]) -> None:
        await self._begun.wait()
        kill()

    async def _by_sdk(self, client: AsyncClient, number: int) -> None:
        stream = client.stream(PROMPTS[number % len(PROMPTS)], seed=number, **OPTIONS)
        async for chunk in stream:
            self._add(number, chunk.text)
        self.results[number] = stream.result

    async def _by_http(self, http: httpx.AsyncClient, number: int) -> None:
        prompt = PROMPTS[number % len(PROMPTS)]
        body = {"prompt": prompt, "model": "target", "stream": True, "seed": number, **OPTIONS}
        async with http.stream("POST", f"{self._gateway}/v1/completions", json=body) as response:
            assert response.status_code == 200, (await response.aread()).decode()
            lines = [line async for line in self._read(response, number)]
        assert lines[-1] == "data: [DONE]"

    async def _read(self, response: httpx.Response, number: int) -> Any:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                self._add(number, json.loads(line.removeprefix("data: "))["choices"][0]["text"])
            if line:
                yield line

    def _add(self, number: int, text: str) -> None:
        self.texts[number] += text
        if all(self.texts[:BY_SDK]):
            self._spread.set()
        if min(map(len, self.texts)) >= BEGUN:
            self._begun.set()


@pytest.mark.timeout(600)  # five services and a gateway start
def test_nothing_is_lost_when_a_verifier_is_killed(
    client: Client,
    good_drafter: str,
    bad_drafter: str,
    untrained_drafter: str,
    services: Services,
) -> None:
    drafters = [good_drafter, bad_drafter, untrained_drafter]
    doomed = services.verifier("target", *(part for each in drafters for part in ("--drafter", each)))
    seeds = range(BY_SDK + BY_HTTP)
    plain = Speculation(enabled=False)
    expected = client.generate_batch(
        [PROMPTS[seed % len(PROMPTS)] for seed in seeds],
        seed=list(seeds),
        speculation=plain,
        timeout=SECONDS,
        **OPTIONS,
    )
    for each in drafters:
        client.drafters.attach(each)
    with Client(doomed.address, timeout=PATIENCE) as other:
        eventually(lambda: [each.state for each in other.drafters.list()] == ["ready"] * 3, "the drafters are ready")
    addresses = [doomed.address, client.address]
    gateway = services.gateway("--verifier", ",".join(addresses))
    try:
        streams = Streams(addresses, gateway.url)
        asyncio.run(streams.run(doomed.kill))
        metrics = httpx.get(f"{gateway.url}/metrics", timeout=PATIENCE).text
        assert httpx.get(f"{gateway.url}/health", timeout=PATIENCE).is_success
    finally:
        gateway.stop()
    assert [*streams.texts] == [each.text for each in expected]
    for number, result in streams.results.items():
        assert result.token_ids == expected[number].token_ids
        assert result.finish_reason == expected[number].finish_reason
    assert sum(streams.in_flight.values()) == BY_SDK
    assert min(streams.in_flight.values()) >= BY_SDK - 8  # each gets at most 1.25 times the mean, rounded up
    assert sum(result.resumes for result in streams.results.values()) > 0
    assert streams.reachable == {doomed.address: False, client.address: True}
    assert f'draftwire:gateway_verifier_up{{verifier="{doomed.address}"}} 0.0' in metrics
    assert f'draftwire:gateway_verifier_in_flight{{verifier="{client.address}"}} 0.0' in metrics
    eventually(lambda: client.model_info().engine.running_sequences == 0, "nothing is left over")
    eventually(lambda: sum(each.sequences for each in client.drafters.list()) == 0, "nor at the drafters")
