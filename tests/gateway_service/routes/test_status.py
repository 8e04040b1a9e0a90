"""Readiness of the gateway, and the load of its verifiers in its metrics."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import pytest

from draftwire import Client
from draftwire.v1 import verifier_service_pb2 as pb
from gateway_service.routes.status import health
from tests.gateway_service.conftest import OpenGateway
from tests.harness.services.services import Services
from tests.harness.stand_ins.fake_verifier import rich_status
from tests.harness.stand_ins.telling_verifier import TellingVerifier
from tests.harness.waiting import PATIENCE, eventually

NOBODY = "127.0.0.1:1"
AWAY = {
    "loads": rich_status(grpc.StatusCode.UNAVAILABLE, "loading its model", "SHUTTING_DOWN", retry_after=2),
    "drains": rich_status(grpc.StatusCode.UNAVAILABLE, "shutting down", "SHUTTING_DOWN"),
}
"""Errors with which verifiers refuse calls."""


class Loaded(TellingVerifier):
    """A verifier with requests, of whose KV slots some are used."""

    def __init__(self, running: int, waiting: int, used: int, total: int) -> None:
        super().__init__()
        self.engine = pb.EngineStatus(
            running_sequences=running, waiting_requests=waiting, used_slots=used, total_slots=total
        )

    def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Any) -> pb.GetModelInfoResponse:
        response = super().GetModelInfo(request, context)
        response.engine.CopyFrom(self.engine)
        return response


@pytest.fixture
def verifiers() -> Iterator[list[Loaded]]:
    """Two verifiers of one model, and one of another."""
    with ExitStack() as stack:
        loads = ((3, 0, 10, 100), (2, 4, 50, 100), (1, 0, 8, 64))
        yield [stack.enter_context(Loaded(*load)) for load in loads]


async def loads(http: httpx.AsyncClient) -> dict[str, list[float]]:
    """Returns what each model has waiting and running, and the share of its KV slots in use."""
    found: dict[str, list[float]] = {}
    for line in (await http.get("/metrics")).text.splitlines():
        name, _, labelled = line.partition('{model_name="')
        model, _, value = labelled.partition('"} ')
        if name.startswith("draftwire:gateway_") and labelled:
            found.setdefault(model, []).append(float(value))
    return found


async def test_the_load_is_told_by_model(open_gateway: OpenGateway, verifiers: list[Loaded], tmp_path: Path) -> None:
    one, other, third = (each.address for each in verifiers)
    models = tmp_path / "models.toml"
    models.write_text(
        f'[large]\naliases = ["default"]\nverifiers = ["{one}", "{other}"]\n'
        f'[small]\nverifiers = ["{third}"]\n[away]\nverifiers = ["{NOBODY}"]\n'
    )
    http = await open_gateway(models=str(models))
    assert await loads(http) == {"large": [4, 5, 0.3], "small": [0, 1, 0.125]}


async def test_a_model_has_the_name_that_its_verifier_reports(
    open_gateway: OpenGateway, verifiers: list[Loaded]
) -> None:
    http = await open_gateway(verifier=(verifiers[0].address,))
    assert await loads(http) == {"fake": [0, 3, 0.1]}


async def test_a_verifier_that_drains_has_no_load(open_gateway: OpenGateway, verifiers: list[Loaded]) -> None:
    one, other, _ = verifiers
    http = await open_gateway(verifier=(one.address, other.address))
    one.fails_on["GetModelInfo"] = AWAY["drains"]
    assert await loads(http) == {"fake": [4, 2, 0.5]}


async def test_scrapes_at_once_are_one_question(open_gateway: OpenGateway, verifiers: list[Loaded]) -> None:
    http = await open_gateway(verifier=(verifiers[0].address,))
    assert len({str(each) for each in await asyncio.gather(*(loads(http) for _ in range(8)))}) == 1
    assert verifiers[0].calls == ["GetModelInfo"]


async def test_health_checks_at_once_are_one_question() -> None:
    """They need no key."""
    asked: list[str] = []
    answering = asyncio.Event()

    async def model_info(address: str, timeout: float) -> None:
        asked.append(address)
        await answering.wait()

    client = SimpleNamespace(verifiers=[SimpleNamespace(address="verifier:1")], model_info=model_info)
    state: Any = SimpleNamespace(models=SimpleNamespace(serving=[client]), health_checks=[])
    checks = [asyncio.create_task(health(state)) for _ in range(8)]
    await asyncio.sleep(0)
    answering.set()
    await asyncio.gather(*checks)
    assert len(asked) == 1
    await health(state)
    assert len(asked) == 2


@pytest.mark.parametrize("away", AWAY)
async def test_a_gateway_is_ready_while_a_verifier_accepts_requests(
    open_gateway: OpenGateway, fake: TellingVerifier, away: str
) -> None:
    http = await open_gateway()
    fake.fails_on["GetModelInfo"] = AWAY[away]
    for path in ("/health", "/ping"):
        refused = await http.get(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert (await http.head(path)).status_code == 503
    assert await loads(http) == {}
    del fake.fails_on["GetModelInfo"]
    assert (await http.get("/health")).status_code == 200
    assert [(await http.head(path)).status_code for path in ("/health", "/ping")] == [200, 200]


@pytest.mark.slow
class TestRealVerifier:
    def test_a_gateway_is_not_ready_while_its_verifier_drains(self, services: Services) -> None:
        verifier = services.verifier()
        gateway = services.gateway("--verifier", verifier.address)
        with Client(verifier.address, timeout=PATIENCE) as client:
            stream = client.stream("Once", max_tokens=1800, ignore_eos=True)
            next(stream)
            assert httpx.get(f"{gateway.url}/health", timeout=PATIENCE).status_code == 200
            verifier.process.terminate()
            eventually(lambda: httpx.get(f"{gateway.url}/health", timeout=PATIENCE).status_code == 503, "it drains")
            next(stream)
            stream.close()
        verifier.process.wait(PATIENCE)
        assert httpx.get(f"{gateway.url}/health", timeout=PATIENCE).status_code == 503
