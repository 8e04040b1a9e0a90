"""Real routers in front of the gateway, each with its example of deploy/router.

Streams are unbroken, a client that leaves ends its request at the verifier, and errors stay what they are.
"""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from draftwire import Client
from draftwire.v1 import verifier_service_pb2 as pb
from tests.harness.deploy.routers import ENVOY, LITELLM, NGINX, ROUTER_KEY, running_router
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.stand_ins.fake_verifier import expected_ids, rich_status, text_of
from tests.harness.stand_ins.telling_verifier import TellingVerifier
from tests.harness.waiting import PATIENCE, eventually

pytestmark = pytest.mark.slow

NOBODY = "127.0.0.1:1"
PATH = "/v1/chat/completions"
HEADERS = {"authorization": f"Bearer {ROUTER_KEY}", "content-type": "application/json"}
CONTENT = "count"
MESSAGES = [{"role": "user", "content": CONTENT}]
TOKENS = expected_ids(1, 20, [ord(letter) for letter in f"user{CONTENT}"])
"""Tokens of the answer of the verifier without a model."""


class SteppedVerifier(TellingVerifier):
    """Sends a chunk, of two tokens, each time that the test permits it."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = threading.Semaphore(0)

    def _events(
        self, request: pb.GenerateRequest, context: Any, ended: threading.Event
    ) -> Iterator[pb.GenerateResponse]:
        for event in super()._events(request, context, ended):
            while event.HasField("chunk") and not self.steps.acquire(timeout=0.02):
                if ended.is_set():
                    return
            yield event

    def reset(self) -> None:
        """Forgets what the last test has set."""
        assert self.is_idle()
        self.steps = threading.Semaphore(0)
        self.cancelled.clear()
        self.fails_on.clear()
        self.break_after.clear()


@dataclass(frozen=True)
class Behind:
    """A router in front of the gateway."""

    example: str
    url: str
    gateway: str

    @property
    def is_proxy(self) -> bool:
        """Whether it passes HTTP on, without reading it as a call of OpenAI's API."""
        return self.example != LITELLM


@pytest.fixture(scope="module")
def stepped() -> Iterator[SteppedVerifier]:
    with SteppedVerifier() as made:
        yield made


@pytest.fixture(scope="module")
def gateway(
    stepped: SteppedVerifier,
    verifier: ServiceProcess,
    module_services: Services,
    tmp_path_factory: pytest.TempPathFactory,
) -> ServiceProcess:
    """A gateway with a real model, `target`, and with the stepped verifier's, `fake`."""
    models = tmp_path_factory.mktemp("models") / "models.toml"
    addresses = {"target": verifier.address, "fake": stepped.address}
    models.write_text("".join(f'[{name}]\nverifiers = ["{address}"]\n' for name, address in addresses.items()))
    return module_services.gateway("--models", str(models), "--max-generations", "2", "--max-choices", "2")


@pytest.fixture(scope="module", params=[NGINX, ENVOY, LITELLM])
def behind(
    request: pytest.FixtureRequest, gateway: ServiceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Behind]:
    folder = tmp_path_factory.mktemp("router")
    with running_router(request.param, folder, gateway.address) as url:
        yield Behind(request.param, url, gateway.url)


@pytest.fixture
def fake(stepped: SteppedVerifier) -> Iterator[SteppedVerifier]:
    yield stepped
    stepped.reset()


def body(model: str = "fake", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": MESSAGES, "max_tokens": len(TOKENS), "seed": 1} | more


def events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """Yields the events of a stream as they arrive."""
    for line in answer.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def texts(answer: httpx.Response) -> Iterator[str]:
    """Yields the texts of a stream as they arrive."""
    for event in events(answer):
        yield from (choice["delta"].get("content") or "" for choice in event["choices"])


def stream(url: str, asked: dict[str, Any]) -> Any:
    return httpx.stream("POST", url + PATH, json=asked | {"stream": True}, headers=HEADERS, timeout=PATIENCE)


def post(url: str, asked: dict[str, Any]) -> httpx.Response:
    return httpx.post(url + PATH, json=asked, headers=HEADERS, timeout=PATIENCE)


def test_events_arrive_one_by_one_and_a_client_that_leaves_ends_the_request(
    behind: Behind, fake: SteppedVerifier
) -> None:
    """A chunk is sent when the client has the one before, and the client leaves before the end."""
    fake.steps.release()  # the headers come with the first event
    with stream(behind.url, body()) as answer:
        arriving, read = texts(answer), ""
        for step in range(1, 5):
            while read != text_of(TOKENS[: 2 * step]):
                read += next(arriving)
            fake.steps.release()
        assert fake.running == 1
    assert fake.cancelled.wait(PATIENCE)


def test_a_client_that_leaves_before_its_answer_ends_the_request(behind: Behind, fake: SteppedVerifier) -> None:
    host, _, port = behind.url.removeprefix("http://").rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
    connection.request("POST", PATH, json.dumps(body()), HEADERS)
    eventually(lambda: fake.running == 1, "it runs")
    connection.close()
    assert fake.cancelled.wait(PATIENCE)


def test_the_slots_of_a_client_that_leaves_are_freed(behind: Behind, verifier: ServiceProcess) -> None:
    with stream(behind.url, body("target", max_tokens=1800, ignore_eos=True)) as answer:
        next(text for text in texts(answer) if text)
    with Client(verifier.address, timeout=PATIENCE) as client:
        eventually(lambda: client.model_info().engine.used_slots == 0, "the slots are free")
        assert client.model_info().engine.running_sequences == 0


def test_an_answer_and_its_headers_are_the_gateways(behind: Behind) -> None:
    asked = body("target", max_tokens=24, temperature=0.8, seed=3, top_k=40)
    direct, routed = (post(url, asked) for url in (behind.gateway, behind.url))
    assert (direct.status_code, routed.status_code) == (200, 200), routed.text
    told, expected = routed.json(), direct.json()
    assert told["choices"][0]["message"]["content"] == expected["choices"][0]["message"]["content"]
    with stream(behind.url, asked) as answer:
        assert "".join(texts(answer)) == expected["choices"][0]["message"]["content"]
    prefix = "" if behind.is_proxy else "llm_provider-"
    assert routed.headers[f"{prefix}x-draftwire-fingerprint"] == expected["system_fingerprint"]
    cached = told["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert int(routed.headers[f"{prefix}x-draftwire-cached-tokens"]) == cached > 0


FULL = rich_status(grpc.StatusCode.RESOURCE_EXHAUSTED, "all places are taken", "AT_CAPACITY", retry_after=1)


@pytest.mark.parametrize(
    ("asked", "status", "failure"),
    [
        (body(temperature=-1), 400, None),
        (body("target", messages=[{"role": "user", "content": "word " * 4000}]), 400, None),
        (body("nobody"), 404, None),
        (body(n=2), 429, None),
        (body(), 503, FULL),
    ],
    ids=["field", "context", "model", "places", "full"],
)
def test_an_error_is_the_gateways(
    behind: Behind, fake: SteppedVerifier, asked: dict[str, Any], status: int, failure: Any
) -> None:
    if failure is not None:
        fake.fails_on["Generate"] = failure
    with ExitStack() as held:
        if status == 429:
            fake.steps.release()
            held.enter_context(stream(behind.gateway, body()))  # takes one of the two places
        direct, routed = (post(url, asked) for url in (behind.gateway, behind.url))
    assert (direct.status_code, routed.status_code) == (status, status), routed.text
    told, expected = routed.json()["error"], direct.json()["error"]
    if behind.is_proxy:
        assert told == expected
        assert routed.headers.get("retry-after") == direct.headers.get("retry-after")
    else:
        assert expected["message"] in told["message"]
    assert (direct.headers.get("retry-after") is not None) == (status in (429, 503))


def test_an_error_in_a_stream_arrives(behind: Behind, fake: SteppedVerifier) -> None:
    fake.break_status = rich_status(grpc.StatusCode.INTERNAL, "it broke", "INTERNAL")
    fake.break_after[:] = [4]
    fake.steps.release(2)
    with stream(behind.url, body()) as answer:
        *told, last = events(answer)
    read = "".join(choice["delta"].get("content") or "" for event in told for choice in event["choices"])
    assert read == text_of(TOKENS[:4])
    assert "it broke" in last["error"]["message"]


@pytest.mark.parametrize("example", [NGINX, ENVOY])
def test_another_gateway_gets_a_request_that_one_cannot_serve(
    example: str, gateway: ServiceProcess, services: Services, tmp_path: Path
) -> None:
    """nginx sends it on; Envoy knows by its health checks whom not to ask."""
    away = services.gateway("--verifier", NOBODY, "--served-model-name", "target")
    assert post(away.url, body("target")).status_code == 503
    with running_router(example, tmp_path, away.address, gateway.address) as url:
        assert [post(url, body("target", max_tokens=2)).status_code for _ in range(8)] == [200] * 8
    asked = [each["status"] for each in away.events() if each.get("path") == PATH]
    assert (len(asked) > 1) == (example == NGINX)
