"""Clients that leave, read slowly or wait for a gateway that shuts down, over real sockets."""

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
import uvicorn

from gateway_service.app import make_app
from gateway_service.http.connection import HttpConnection
from gateway_service.keys.api_keys import ApiKeys
from gateway_service.settings import GatewaySettings
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.stand_ins.fake_verifier import PROMPT, expected_ids, text_of
from tests.harness.stand_ins.telling_verifier import TellingVerifier
from tests.harness.waiting import PATIENCE, eventually, sometimes

pytestmark = pytest.mark.processes

BODY = {"prompt": PROMPT, "max_tokens": 5000, "seed": 1}


@pytest.fixture
def gateway(fake: TellingVerifier, services: Services) -> ServiceProcess:
    return services.gateway("--verifier", fake.address, "--shutdown-grace-seconds", "2")


def post(gateway: ServiceProcess, body: dict[str, object]) -> socket.socket:
    """Sends a request and reads nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(gateway.socket_address)
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n"
    connection.sendall(head.encode() + b"content-type: application/json\r\n\r\n" + content)
    return connection


@pytest.mark.parametrize(("stream", "n"), [(False, 1), (True, 3)])
def test_a_client_that_leaves_ends_its_request(
    gateway: ServiceProcess, fake: TellingVerifier, stream: bool, n: int
) -> None:
    check_leaving(gateway, fake, stream, n)


@pytest.mark.slow
class TestOtherRequests:
    @pytest.mark.parametrize(("stream", "n"), [(False, 3), (True, 1)])
    def test_a_client_that_leaves_ends_its_request(
        self, gateway: ServiceProcess, fake: TellingVerifier, stream: bool, n: int
    ) -> None:
        check_leaving(gateway, fake, stream, n)


def check_leaving(gateway: ServiceProcess, fake: TellingVerifier, stream: bool, n: int) -> None:
    fake.hang_after = 6
    connection = post(gateway, BODY | {"stream": stream, "n": n})
    if stream:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    eventually(lambda: fake.running == n, "all choices run")
    connection.close()
    assert fake.cancelled.wait(PATIENCE)
    assert fake.is_idle()

    def metrics() -> list[str]:
        return httpx.get(f"{gateway.url}/metrics", timeout=PATIENCE).text.splitlines()

    eventually(lambda: "draftwire:gateway_disconnects_total 1.0" in metrics(), "it is counted")
    eventually(lambda: "draftwire:gateway_generations 0.0" in metrics(), "its places are free")


def test_a_client_that_leaves_before_the_first_token(gateway: ServiceProcess, fake: TellingVerifier) -> None:
    fake.hang_after = 0
    connection = post(gateway, BODY | {"stream": True})
    eventually(lambda: fake.running == 1, "it runs")
    connection.close()
    assert fake.cancelled.wait(PATIENCE)
    assert fake.is_idle()


async def test_a_client_that_never_reads_is_given_up(fake: TellingVerifier) -> None:
    settings = GatewaySettings(verifier=(fake.address,), request_seconds=0.5)
    app = make_app(settings, ApiKeys([]))
    asked = [{"type": "http.request", "body": json.dumps(BODY | {"stream": True}).encode(), "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return asked.pop() if asked else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 5:  # blocks like uvicorn with a full buffer
            await asyncio.Event().wait()

    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions", "root_path": "",
        "scheme": "http", "query_string": b"", "http_version": "1.1", "server": ("gateway", 80),
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    async with app.router.lifespan_context(app):
        async with asyncio.timeout(PATIENCE):
            await app(scope, receive, send)
        metrics = app.state.gateway.metrics.exposition().decode()
    assert len(sent) == 5
    assert "draftwire:gateway_generations 0.0" in metrics and "draftwire:gateway_disconnects_total 1.0" in metrics
    assert await asyncio.to_thread(fake.is_idle)


def test_a_request_in_flight_is_finished_at_the_end(gateway: ServiceProcess, fake: TellingVerifier) -> None:
    fake.delay = 0.05
    body = BODY | {"stream": True, "max_tokens": 40}
    with httpx.stream("POST", f"{gateway.url}/v1/completions", json=body, timeout=PATIENCE) as told:
        lines = told.iter_lines()
        next(lines)
        gateway.process.terminate()
        assert "[DONE]" in "".join(lines)
    assert gateway.process.wait(PATIENCE) == 0


def test_what_does_not_finish_is_given_up(gateway: ServiceProcess, fake: TellingVerifier) -> None:
    fake.hang_after = 4
    connection = post(gateway, BODY | {"stream": True})
    eventually(lambda: fake.running == 1, "it runs")
    assert gateway.stop() == 0
    assert fake.is_idle()
    connection.close()


def test_it_goes_on_at_another_verifier(services: Services) -> None:
    with TellingVerifier() as first, TellingVerifier() as second:
        first.break_after = [6]
        gateway = services.gateway("--verifier", f"{first.address},{second.address}?weight=0")
        done = httpx.post(f"{gateway.url}/v1/completions", json=BODY | {"max_tokens": 20}, timeout=PATIENCE)
        assert done.json()["choices"][0]["text"] == text_of(expected_ids(1, 20))
        assert first.requests and second.requests


def test_no_verifier_is_an_error_that_passes(services: Services) -> None:
    with TellingVerifier() as gone:
        address = gone.address
    gateway = services.gateway("--verifier", address)
    for response in (
        httpx.get(f"{gateway.url}/health", timeout=PATIENCE),
        httpx.post(f"{gateway.url}/v1/completions", json=BODY, timeout=PATIENCE),
    ):
        assert response.status_code == 503 and response.headers["retry-after"] == "1"
    back = TellingVerifier().start(address)
    try:
        eventually(lambda: httpx.get(f"{gateway.url}/health", timeout=PATIENCE).status_code == 200, "it is back")
    finally:
        back.stop()


LARGE = 16_000_000
GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Responses of the server are a single byte."""
    monkeypatch.setattr(sys.modules[__name__], "LARGE", 1)


@asynccontextmanager
async def serving(**bounds: Any) -> AsyncIterator[int]:
    """Runs a server of connections with these bounds, whose responses exceed the system's buffers; yields its port."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(LARGE).encode())]}
        )
        await send({"type": "http.response.body", "body": b"x" * LARGE})

    kind = type("Bounded", (HttpConnection,), bounds)
    server = uvicorn.Server(uvicorn.Config(app, port=0, http=kind, lifespan="off", log_config=None))
    serving = asyncio.create_task(server.serve())
    try:
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /health HTTP/1.1\r\nhost: localhost\r\nsome-", GET + b"GET /hea"],
    ids=["nothing", "half a head", "half a second head"],
)
async def test_a_head_that_does_not_come(sent: bytes) -> None:
    async with serving(head_seconds=0.2) as port, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        with suppress(ConnectionResetError):
            await reader.read()  # to the end
        writer.close()


async def test_a_connection_is_kept_between_requests(small: None) -> None:
    """Proxies send the next request into it after a minute, and it must not be closing then."""
    async with serving(head_seconds=0.1) as port, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(GET)
            assert (await reader.readuntil(b"x")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.4)
        writer.write(GET[:9])
        assert await reader.read() == b"", "but the rest of a head has to come"
        writer.close()


async def test_a_further_connection_takes_the_place_of_an_idle_one(small: None) -> None:
    async with serving(max_connections=2) as port, asyncio.timeout(PATIENCE):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for reader, writer in held:
            writer.write(GET)
            await reader.readuntil(b"x")
        held[1][1].write(GET[:9])
        await asyncio.sleep(0.1)
        for _ in range(2):  # in place of the first one, then of this one
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            assert (await reader.readuntil(b"x")).startswith(b"HTTP/1.1 200")
        with suppress(ConnectionResetError):
            assert await held[0][0].read() == b""
        held[1][1].write(GET[9:])
        assert (await held[1][0].readuntil(b"x")).startswith(b"HTTP/1.1 200"), "it was not idle"
        for _, each in (*held, (reader, writer)):
            each.close()


async def test_a_client_that_never_reads_the_end() -> None:
    async with serving(head_seconds=0.2) as port, asyncio.timeout(PATIENCE):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        await asyncio.get_running_loop().sock_sendall(connection, GET)
        received = 0
        await asyncio.sleep(1.0)
        with suppress(ConnectionResetError):
            while part := await asyncio.get_running_loop().sock_recv(connection, 65536):
                received += len(part)
        connection.close()
    assert received < LARGE


async def test_a_client_that_reads_slowly_gets_the_end() -> None:
    async with serving(head_seconds=1.0) as port, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 18)
        writer.write(GET)
        received = 0
        while received < LARGE:
            part = await reader.read(1 << 18)
            assert part, received
            received += len(part)
            await asyncio.sleep(0.04)
        writer.close()


async def test_there_are_so_many_connections_and_no_more() -> None:
    async with serving(max_connections=2) as port, asyncio.timeout(PATIENCE):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asyncio.sleep(0.1)

        async def served() -> bool:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            try:
                return (await reader.read(12)) == b"HTTP/1.1 200"
            except ConnectionResetError:
                return False
            finally:
                writer.close()

        assert not await served()
        for _, writer in held:
            writer.close()
        while not await served():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def test_the_gateway_keeps_to_its_number_of_connections(fake: TellingVerifier, services: Services) -> None:
    gateway = services.gateway("--verifier", fake.address, "--max-connections", "1")
    assert eventually(lambda: httpx.get(f"{gateway.url}/health", timeout=PATIENCE).status_code, "it serves") == 200

    def turned_away() -> bool:
        with socket.create_connection(gateway.socket_address) as held:
            held.sendall(b"GET /health HTTP/1.1\r\n")
            try:
                httpx.get(f"{gateway.url}/health", timeout=PATIENCE)
            except httpx.TransportError:
                return True
            return False  # the previous connection was still open, so `held` was refused instead

    sometimes(turned_away, "the second one is turned away")


@pytest.mark.slow
class TestALongAnswer:
    def test_a_client_that_reads_slowly_gets_it_all_and_holds_nothing_up(
        self, gateway: ServiceProcess, fake: TellingVerifier
    ) -> None:
        connection = post(gateway, BODY | {"stream": True, "max_tokens": 20_000, "n": 1})
        time.sleep(1.5)
        assert httpx.get(f"{gateway.url}/v1/models", timeout=PATIENCE).status_code == 200
        received = bytearray()
        while b"[DONE]" not in received[-200:]:
            received += connection.recv(65536)
        connection.close()
        parts = [
            json.loads(line.removeprefix(b"data: "))
            for line in bytes(received).replace(b"\r\n", b"\n").split(b"\n")
            if line.startswith(b"data: {")
        ]
        text = "".join(choice["text"] for part in parts for choice in part["choices"])
        assert text == text_of(expected_ids(1, 20_000))
