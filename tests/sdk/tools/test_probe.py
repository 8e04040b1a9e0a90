"""`draftwire probe` against servers that are healthy, unhealthy, silent and gone."""

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from draftwire import AsyncClient, Client, Health, NotFoundError
from tests.harness.certificates import Authority
from tests.harness.command import Command
from tests.harness.waiting import PATIENCE

SERVICE = "draftwire.v1.DrafterService"
Status = health_pb2.HealthCheckResponse


@pytest.fixture
def servicer() -> health.HealthServicer:
    """A server's health, as grpcio-health-checking serves it."""
    made = health.HealthServicer()
    made.set("", Status.SERVING)
    made.set(SERVICE, Status.NOT_SERVING)
    return made


@pytest.fixture
def address(servicer: health.HealthServicer) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def gone() -> str:
    """A port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def gateway() -> Iterator[Callable[..., str]]:
    """Starts an HTTP server that answers everything with a status, and returns its URL; with TLS, an HTTPS one."""
    servers = []

    def start(status: int, tls: ssl.SSLContext | None = None) -> str:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Logs nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        servers.append(server)
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}/health"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def test_a_server_that_serves(command: Command, address: str) -> None:
    done = command("probe", "--address", address)
    assert (done.code, done.out, done.err) == (0, f"{address} is serving\n", "")


def test_the_address_alone_is_enough(command: Command, address: str, gone: str) -> None:
    assert command("probe", address).out == f"{address} is serving\n"
    assert command("probe", address, "--address", gone).out == f"{address} is serving\n"


def test_one_service_of_it(command: Command, address: str, servicer: health.HealthServicer) -> None:
    done = command("probe", "--address", address, "--service", SERVICE)
    assert (done.code, done.err) == (1, f"draftwire: {address} is not_serving\n")
    servicer.set(SERVICE, Status.SERVING)
    assert command("probe", "--address", address, "--service", SERVICE).code == 0


def test_a_status_that_nobody_knows(command: Command, address: str, servicer: health.HealthServicer) -> None:
    servicer.set("", Status.SERVICE_UNKNOWN)
    assert command("probe", "--address", address).err == f"draftwire: {address} is unknown\n"


def test_a_service_that_is_not_there(command: Command, address: str) -> None:
    done = command("probe", "--address", address, "--service", "no.Such")
    assert (done.code, done.err) == (1, f"draftwire: {address} has no service no.Such\n")


def test_a_server_that_is_gone(command: Command, gone: str) -> None:
    done = command("probe", "--address", gone, "--timeout", "2")
    assert (done.code, done.out) == (1, "")
    assert "nothing listens" in done.err


def test_a_server_that_says_nothing(command: Command, silent: str) -> None:
    done = command("probe", "--address", silent, "--timeout", "0.3")
    assert (done.code, done.out) == (1, "")
    assert done.err


def test_the_address_of_the_environment(command: Command, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWIRE_PROBE_ADDRESS", address)
    assert command("probe").out == f"{address} is serving\n"


def test_a_gateway(command: Command, gateway: Callable[..., str], monkeypatch: pytest.MonkeyPatch, gone: str) -> None:
    monkeypatch.setenv("http_proxy", f"http://{gone}")  # local addresses bypass the proxy
    url = gateway(200)
    assert command("probe", "--address", url).out == f"{url} is serving\n"
    ill = gateway(503)
    done = command("probe", "--address", ill)
    assert (done.code, done.err) == (1, f"draftwire: {ill} answered 503\n")


def test_a_gateway_that_does_not_answer(command: Command, gone: str, silent: str) -> None:
    done = command("probe", "--address", f"http://{gone}/health")
    assert done.code == 1
    assert "does not answer" in done.err and "Connection refused" in done.err
    done = command("probe", "--address", f"http://{silent}/health", "--timeout", "0.3")
    assert done.code == 1
    assert "timed out" in done.err


def test_a_server_that_does_not_speak_http(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/health"
        done = command("probe", "--address", url)
        thread.join()
    assert (done.code, done.err) == (1, f"draftwire: {url} does not answer: SSH-2.0-OpenSSH_9.6\n")


def test_over_tls(
    command: Command, servicer: health.HealthServicer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses the variables of the probed service itself."""
    authority, stranger = Authority(tmp_path), Authority(tmp_path / "other")
    own, client = authority.issue("server", "verifier"), authority.issue("client", "client")
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    identity = grpc.ssl_server_credentials(
        [(own.key.read_bytes(), own.cert.read_bytes())], authority.file.read_bytes(), require_client_auth=True
    )
    address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', identity)}"
    server.start()
    try:
        monkeypatch.setenv("DRAFTWIRE_PROBE_ADDRESS", address)
        assert command("probe", "--timeout", "2").code == 1
        monkeypatch.setenv("DRAFTWIRE_TLS_CA", str(authority.file))
        monkeypatch.setenv("DRAFTWIRE_TLS_SERVER_NAME", "verifier")
        assert command("probe", "--timeout", "2").code == 1  # it has no client certificate
        monkeypatch.setenv("DRAFTWIRE_TLS_CLIENT_CERT", str(client.cert))
        monkeypatch.setenv("DRAFTWIRE_TLS_CLIENT_KEY", str(client.key))
        assert command("probe").out == f"{address} is serving\n"
        assert command("probe", "--tls-ca", str(stranger.file), "--timeout", "2").code == 1
    finally:
        server.stop(None).wait()


def test_a_gateway_over_tls(command: Command, gateway: Callable[..., str], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, client = authority.issue("server"), authority.issue("client", "client")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
    context.load_cert_chain(own.cert, own.key)
    context.verify_mode = ssl.CERT_REQUIRED
    url = gateway(200, context)
    trusted = ["--address", url, "--tls-ca", str(authority.file)]
    shown = ["--tls-client-cert", str(client.cert), "--tls-client-key", str(client.key)]
    assert command("probe", *trusted, *shown).out == f"{url} is serving\n"
    assert command("probe", *trusted).code == 1
    done = command("probe", "--address", url)
    assert done.code == 1 and "certificate" in done.err
    assert command("probe", "--address", url, "--tls-ca", str(tmp_path / "none")).code == 2
    assert command("probe", *trusted, "--tls-client-cert", url, "--tls-client-key", url).code == 2
    done = command("probe", *trusted, "--tls-server-name", "x")
    assert (done.code, done.err) == (2, "draftwire: --tls-server-name: applies only to HOST:PORT; a URL has the name\n")


def test_beyond_the_machine_it_has_to_be_told(command: Command) -> None:
    done = command("probe", "--address", "192.0.2.1:50051", "--timeout", "0.3")
    assert (done.code, done.out) == (2, "")
    assert "--insecure" in done.err
    assert command("probe", "--address", "192.0.2.1:50051", "--timeout", "0.3", "--insecure").code == 1


def test_wrong_use(command: Command) -> None:
    done = command("probe", "--address", "http://127.0.0.1:1/health", "--service", "x")
    assert (done.code, done.err) == (2, "draftwire: --service: applies only to HOST:PORT; a gateway is one service\n")
    assert command("probe", "--timeout", "0").code == 2


def test_both_clients_ask(address: str) -> None:
    with Client(address, timeout=PATIENCE) as client:
        assert client.health() is Health.SERVING
        assert client.health(SERVICE) is Health.NOT_SERVING
        with pytest.raises(NotFoundError):
            client.health("no.Such")

    async def ask() -> Health:
        async with AsyncClient(address, timeout=PATIENCE) as client:
            return await client.health(SERVICE)

    assert asyncio.run(ask()) is Health.NOT_SERVING


@pytest.mark.processes
class TestInAProcessOfItsOwn:
    def test_as_a_command(self, address: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "draftwire.cli", "probe", "--address", address],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, f"{address} is serving\n")
