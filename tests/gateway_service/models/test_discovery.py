"""Models that are found by asking verifiers which were given by their addresses alone."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from draftwire import AsyncClient
from draftwire.v1 import verifier_service_pb2 as pb
from gateway_service.models import discovery as module
from gateway_service.models.discovery import Discovery
from gateway_service.models.model_file import ModelEntry, TargetEntry
from tests.gateway_service.conftest import OpenGateway
from tests.harness.stand_ins.fake_verifier import rich_status
from tests.harness.stand_ins.telling_verifier import TellingVerifier
from tests.harness.waiting import eventually

pytestmark = pytest.mark.processes

NOBODY = "127.0.0.1:1"
AWAY = rich_status(grpc.StatusCode.UNAVAILABLE, "shutting down", "SHUTTING_DOWN")


class Named(TellingVerifier):
    """A verifier whose model has a name and a fingerprint that the test sets."""

    def __init__(self, name: str, fingerprint: str) -> None:
        super().__init__()
        self.name, self.fingerprint = name, fingerprint

    def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Any) -> pb.GetModelInfoResponse:
        response = super().GetModelInfo(request, context)
        response.model.model_id, response.model.fingerprint = self.name, self.fingerprint
        return response


Started = Callable[[str, str], Named]


@pytest.fixture
def start() -> Iterator[Started]:
    with ExitStack() as stack:
        yield lambda name, fingerprint: stack.enter_context(Named(name, fingerprint))


def found_among(*verifiers: str) -> Discovery:
    given = (ModelEntry((), (TargetEntry(verifiers),)),)
    return Discovery(lambda: given, AsyncClient)


def entry(name: str, *targets: tuple[tuple[str, ...], float]) -> ModelEntry:
    return ModelEntry((name,), tuple(TargetEntry(verifiers, share) for verifiers, share in targets))


async def test_each_model_has_the_name_that_its_verifiers_report(open_gateway: OpenGateway, start: Started) -> None:
    one, two, other = start("small", "a"), start("small", "a"), start("large", "b")
    http = await open_gateway(verifier=(NOBODY, one.address, other.address, two.address))
    assert [card["id"] for card in (await http.get("/v1/models")).json()["data"]] == ["small", "large"]
    for model, number in (("small", 16), (None, 16), ("large", 5)):
        for prompt in range(number):
            body = {"model": model, "prompt": f"{prompt}", "max_tokens": 2}
            answer = await http.post("/v1/completions", json=body)
            assert (answer.status_code, answer.json()["model"]) == (200, model or "small")
    assert len(one.requests) + len(two.requests) == 32 and one.requests and two.requests
    assert len(other.requests) == 5
    refused = await http.post("/v1/completions", json={"model": "medium", "prompt": "a"})
    assert "the served models are 'small', 'large'" in refused.json()["error"]["message"]


async def test_verifiers_of_one_target_stay_together(start: Started) -> None:
    one, two = start("small", "a"), start("small", "a")
    async with found_among(one.address, NOBODY, two.address) as discovery:
        assert discovery() == (ModelEntry((), (TargetEntry((one.address, NOBODY, two.address)),)),)


async def test_a_given_name_is_for_all(open_gateway: OpenGateway, start: Started) -> None:
    one, two = start("small", "a"), start("large", "b")
    http = await open_gateway(verifier=(one.address, two.address), served_model_name="chat")
    assert [card["id"] for card in (await http.get("/v1/models")).json()["data"]] == ["chat"]


async def test_verifiers_that_change_their_model_or_are_away(start: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ASK_EVERY_SECONDS", 0.01)
    one, two = start("small", "a"), start("small", "a")
    a, b = one.address, f"{two.address}?weight=3"

    async def becomes(*expected: ModelEntry) -> None:
        await asyncio.to_thread(eventually, lambda: discovery() == expected, f"{expected}")

    async with found_among(a, b) as discovery:
        two.fingerprint = "b"
        await becomes(entry("small", ((a,), 1), ((b,), 3)))
        unchanged = discovery()
        await asyncio.sleep(0.05)
        assert discovery() is unchanged
        one.fails_on["GetModelInfo"] = AWAY
        await becomes(entry("small", ((a,), 0), ((b,), 3)))
        two.fails_on["GetModelInfo"] = AWAY
        await becomes(entry("small", ((a,), 1), ((b,), 1)))
        one.fails_on.clear()
        two.fails_on.clear()
        two.name = "large"
        await becomes(entry("small", ((a,), 1)), entry("large", ((b,), 1)))
        two.name, two.fingerprint = "small", "a"
        await becomes(ModelEntry((), (TargetEntry((a, b)),)))
