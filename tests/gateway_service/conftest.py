"""Gateways: in this process in front of a verifier without a model, and as a process in front of real services."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import openai
import pytest

from gateway_service.app import make_app
from gateway_service.keys.api_keys import ApiKeys
from gateway_service.keys.key_file import KeyFile
from gateway_service.settings import GatewaySettings
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.services.shared import *  # noqa: F403
from tests.harness.stand_ins.telling_verifier import TellingVerifier
from tests.harness.waiting import PATIENCE

JSON = {"content-type": "application/json"}

OpenGateway = Callable[..., Any]
"""The type of `await open_gateway(max_choices=2)`, which opens a gateway in this process and returns an HTTP client."""


@pytest.fixture
def fake() -> Iterator[TellingVerifier]:
    with TellingVerifier() as made:
        yield made


@pytest.fixture
async def open_gateway(fake: TellingVerifier) -> AsyncIterator[OpenGateway]:
    async with AsyncExitStack() as opened:

        async def open_one(**settings: Any) -> httpx.AsyncClient:
            usual = {} if "models" in settings else {"verifier": (fake.address,)}
            read = GatewaySettings(**usual | settings)
            plain = [key.get_secret_value() for key in read.api_key]
            app = make_app(read, ApiKeys(plain, KeyFile(read.keys) if read.keys else None))
            await opened.enter_async_context(app.router.lifespan_context(app))
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            client = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=PATIENCE, headers=JSON)
            return await opened.enter_async_context(client)

        yield open_one


@pytest.fixture
async def http(open_gateway: OpenGateway) -> httpx.AsyncClient:
    client: httpx.AsyncClient = await open_gateway()
    return client


@pytest.fixture
def client(http: httpx.AsyncClient) -> openai.AsyncOpenAI:
    """OpenAI's client of a gateway in this process."""
    return openai.AsyncOpenAI(api_key="none", base_url="http://localhost/v1", http_client=http, max_retries=0)


@pytest.fixture(scope="session")
def real_gateway(verifier: ServiceProcess, good_drafter: str, run_services: Services) -> ServiceProcess:
    """A gateway in front of the shared verifier."""
    return run_services.gateway("--verifier", verifier.address, "--max-tokens", "64")
