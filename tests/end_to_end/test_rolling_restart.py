"""Every process of a fleet is restarted in turn while requests run: no request fails or changes its output.

Two verifiers, two drafters and two gateways. The drafters announce themselves to both verifiers, as in
deploy/helm. SDK clients know both verifiers; HTTP clients switch to the other gateway when one does not accept their
request, as a load balancer does.
"""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from draftwire import AsyncClient, Client, RetryPolicy, Speculation
from tests.harness.lasting_address import lasting_address
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import LONG_PATIENCE, eventually, sometimes

PROMPTS = ["def read_config(path):\n", "class Stack:\n"]
OPTIONS: dict[str, Any] = {"max_tokens": 160, "temperature": 1.1, "seed": 5}
GRACE = ("--shutdown-grace-seconds", "600")
DRAFT_MODELS = ("draft", "draft-early")
PATIENT = RetryPolicy(attempts_per_address=60)
"""On a busy machine a verifier may take a while to return, and the other one is restarted next."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # twelve processes start


@dataclass
class Load:
    """Several users, each sending one request after another and comparing the output with the undisturbed one."""

    expected: Sequence[str]
    verifiers: Sequence[str]
    gateways: Sequence[str]
    finished: Counter[str] = field(default_factory=Counter)
    resumes: int = 0
    ended: bool = False
    running: Future[None] | None = None

    def run(self) -> None:
        """Runs until it is ended and the last requests have finished; raises their errors."""
        asyncio.run(self._run())

    def goes_on(self) -> None:
        """Waits until another request of each kind has finished."""
        before = self.finished.copy()

        def gone_on() -> bool:
            if self.running is not None and self.running.done():
                self.running.result()  # raises the errors of requests
            return all(self.finished[kind] > before[kind] for kind in ("sdk", "http"))

        eventually(gone_on, "requests go on")

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as users:
            for number in range(len(PROMPTS)):
                users.create_task(self._user("sdk", number, self._by_sdk))
                users.create_task(self._user("http", number, self._by_http))

    async def _user(self, kind: str, number: int, ask: Callable[[str, int], AsyncIterator[str]]) -> None:
        while not self.ended:
            text = "".join([part async for part in ask(PROMPTS[number], number)])
            assert text == self.expected[number], f"{kind} gave another text"
            self.finished[kind] += 1

    async def _by_sdk(self, prompt: str, number: int) -> AsyncIterator[str]:
        addresses = [self.verifiers[number % 2], self.verifiers[1 - number % 2]]
        async with AsyncClient(addresses, timeout=LONG_PATIENCE, retry=PATIENT) as client:
            stream = client.stream(prompt, ignore_eos=True, **OPTIONS)
            async for chunk in stream:
                yield chunk.text
            self.resumes += stream.result.resumes

    async def _by_http(self, prompt: str, number: int) -> AsyncIterator[str]:
        body = {"prompt": prompt, "model": "target", "stream": True, "ignore_eos": True, **OPTIONS}
        end = time.monotonic() + LONG_PATIENCE
        for attempt in itertools.count():
            assert time.monotonic() < end, "no gateway takes the request"
            url = self.gateways[(number + attempt) % 2]
            async with httpx.AsyncClient(timeout=LONG_PATIENCE) as client:
                try:
                    response = await client.send(
                        client.build_request("POST", f"{url}/v1/completions", json=body), stream=True
                    )
                except httpx.TransportError:  # not accepted: nothing was received
                    await asyncio.sleep(0.05)
                    continue
                try:
                    if response.status_code == 503:  # its verifiers were briefly unavailable
                        await asyncio.sleep(0.5)
                        continue
                    assert response.status_code == 200, (await response.aread()).decode()
                    done = False
                    async for line in response.aiter_lines():
                        if line == "data: [DONE]":
                            done = True
                        elif line:
                            yield json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                    assert done, "the stream ended before the request was finished"
                finally:
                    await response.aclose()
            return


@contextmanager
def under_load(load: Load) -> Iterator[None]:
    """Runs requests within the block. At its end they finish, and the errors of failed ones are raised."""
    with ThreadPoolExecutor(1) as pool:
        load.running = pool.submit(load.run)
        try:
            yield
        finally:
            load.ended = True
        load.running.result(LONG_PATIENCE)


class Fleet:
    """Two verifiers, drafters and gateways."""

    def __init__(
        self,
        services: Services,
    ) -> None:
        self._services = services
        addresses = [lasting_address() for _ in range(2)]
        self._announced = [part for each in addresses for part in ("--verifier", each)]
        self.drafters = [self._start_announced(model) for model in DRAFT_MODELS]
        self.verifiers = [services.verifier("target", *GRACE, "--listen", address) for address in addresses]
        self.gateways = [self._start_gateway(lasting_address()) for _ in range(2)]

    def restart_drafter(self, index: int) -> None:
        self._end(self.drafters[index])
        self.drafters[index] = self._start_announced(DRAFT_MODELS[index])
        self.drafters_are_back()

    def restart_verifier(self, index: int) -> None:
        old = self.verifiers[index]
        self._end(old)
        self.verifiers[index] = self._services.verifier("target", *GRACE, "--listen", old.address)
        self.drafters_are_back()

    def restart_gateway(self, index: int) -> None:
        old = self.gateways[index]
        self._end(old)
        self.gateways[index] = self._start_gateway(old.address)
        url = self.gateways[index].url
        eventually(lambda: httpx.get(f"{url}/health", timeout=LONG_PATIENCE).is_success, "the gateway is back")

    def drafters_are_back(self) -> None:
        """Waits until each verifier has both drafters."""
        for verifier in self.verifiers:
            with Client(verifier.address, timeout=LONG_PATIENCE, retry=PATIENT) as client:
                eventually(
                    lambda client=client: (
                        {(each.name, each.address, each.state) for each in client.drafters.list()}
                        == {
                            (model, each.address, "ready")
                            for model, each in zip(DRAFT_MODELS, self.drafters, strict=True)
                        }
                    ),
                    "both drafters are ready",
                )

    def _start_announced(self, model: str) -> ServiceProcess:
        """Starts a drafter like a stateful set does: its name stays, its address changes each time."""
        return self._services.drafter(model, *self._announced, "--name", model)

    def _start_gateway(self, listen: str) -> ServiceProcess:
        verifiers = [part for each in self.verifiers for part in ("--verifier", each.address)]
        return self._services.gateway("--listen", listen, *verifiers, *GRACE)

    def _end(self, service: ServiceProcess) -> None:
        assert service.stop() == 0, service.log.read_text()


@pytest.fixture
def fleet(services: Services) -> Fleet:
    return Fleet(services)


def test_no_request_fails_while_everything_is_restarted(fleet: Fleet) -> None:
    verifiers = [each.address for each in fleet.verifiers]
    with Client(verifiers[0], timeout=LONG_PATIENCE) as client:
        plain = Speculation(enabled=False)
        expected = [client.generate(each, ignore_eos=True, speculation=plain, **OPTIONS).text for each in PROMPTS]
    load = Load(expected, verifiers, [each.url for each in fleet.gateways])
    fleet.drafters_are_back()
    with under_load(load):
        load.goes_on()
        for restart in (fleet.restart_drafter, fleet.restart_verifier, fleet.restart_gateway):
            for index in range(2):
                restart(index)
                load.goes_on()

        def resumed() -> int:
            for index in range(2):  # the prompts may all have been spread to one of them
                fleet.restart_verifier(index)
                load.goes_on()
            return load.resumes

        assert load.resumes or sometimes(resumed, "a request that has begun is resumed")
    for verifier in fleet.verifiers:
        with Client(verifier.address, timeout=LONG_PATIENCE, retry=PATIENT) as client:
            eventually(lambda client=client: client.model_info().engine.running_sequences == 0, "nothing is left over")
