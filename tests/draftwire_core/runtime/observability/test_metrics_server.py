"""Metrics over HTTP: valid requests are answered, others get an error, and no client holds a connection for long."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from draftwire_core.runtime.observability import metrics_server
from draftwire_core.runtime.observability.histogram import Histogram
from draftwire_core.runtime.observability.metric_families import counter, gauge, histogram, info
from draftwire_core.runtime.observability.metrics_server import CertificateCollector, MetricsServer, serving_metrics
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.process.tls_settings import CertificateExpiry
from tests.harness.certificates import Authority
from tests.harness.deploy.metrics_document import documented, served
from tests.harness.waiting import PATIENCE


class Sample(Collector):
    """One metric of each kind."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.times = Histogram([1, 2])
        self.times.observe(1.5)

    def collect(self) -> Iterator[Metric]:
        asyncio.get_running_loop()  # raises outside the event loop: a collector may read what belongs to the loop
        if self.fault is not None:
            raise self.fault
        yield counter("tokens", "Tokens.", {"a": 3, 'b "\n': 4}, ["drafter"])
        yield gauge("slots", "Slots.", 7)
        yield gauge("pairs", "Pairs.", {("x", "y"): 1}, ["one", "two"])
        yield histogram("times", "Times.", self.times)
        yield info("service", "Service.", {"version": "1"})


@pytest.fixture
def sample() -> Sample:
    return Sample()


@pytest.fixture
async def server(sample: Sample) -> AsyncIterator[MetricsServer]:
    made = MetricsServer("127.0.0.1:0", sample)
    await made.start()
    yield made
    await made.stop()


async def get(server: MetricsServer, path: str = "/metrics", method: str = "GET", **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        return await client.request(method, f"http://{server.address}{path}", headers=headers)


async def until(condition: Callable[[], object]) -> None:
    """Waits for a condition that has no event."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def raw(server: MetricsServer, request: bytes) -> bytes:
    """Sends bytes and returns the response up to the server's close."""
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    async with asyncio.timeout(PATIENCE):
        answer = await reader.read()
    writer.close()
    return answer


async def test_what_is_counted_is_told(server: MetricsServer) -> None:
    response = await get(server)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    told = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
    assert told["draftwire:tokens_total", ("drafter", "a")] == 3
    assert told["draftwire:tokens_total", ("drafter", 'b "\n')] == 4
    assert told["draftwire:slots",] == 7
    assert told["draftwire:pairs", ("one", "x"), ("two", "y")] == 1
    assert told["draftwire:times_bucket", ("le", "2.0")] == 1
    assert told["draftwire:times_sum",] == 1.5
    assert told["draftwire:service_info", ("version", "1")] == 1
    assert told["process_resident_memory_bytes",] > 0


async def test_names_keep_their_colons_whatever_is_accepted(server: MetricsServer) -> None:
    response = await get(server, accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert response.headers["content-type"].startswith("text/plain")
    assert "\ndraftwire:tokens_total{" in response.text


@pytest.mark.parametrize(
    ("path", "method", "status", "text"),
    [
        ("/", "GET", 404, "the metrics are at /metrics"),
        ("/metrics/", "GET", 404, "the metrics are at /metrics"),
        ("/metrics", "POST", 405, "GET or HEAD"),
        ("/metrics?a=b", "GET", 200, "draftwire:slots 7.0"),
    ],
)
async def test_only_metrics_are_there(server: MetricsServer, path: str, method: str, status: int, text: str) -> None:
    response = await get(server, path, method)
    assert response.status_code == status
    assert text in response.text
    assert ("allow" in response.headers) == (status == 405)


async def test_head_has_no_body(server: MetricsServer) -> None:
    response = await get(server, method="HEAD")
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS client\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 30000 + b"\r\n\r\n", b"431"),
        (b"GET /metrics HTTP/1.1\r\n\r\n", b"400"),  # without a Host header
    ],
)
async def test_what_is_no_request_is_refused(server: MetricsServer, request_bytes: bytes, status: bytes) -> None:
    assert (await raw(server, request_bytes)).split(b" ")[1] == status


async def test_a_fault_is_told_and_logged(
    server: MetricsServer, sample: Sample, caplog: pytest.LogCaptureFixture
) -> None:
    sample.fault = KeyError("secret")
    response = await get(server)
    assert response.status_code == 500
    assert "secret" not in response.text
    sample.fault = None
    assert (await get(server)).status_code == 200


class Many(Collector):
    """More than the system takes at once on many networks, and less than a transport's own buffer."""

    def collect(self) -> Iterator[Metric]:
        yield gauge("many", "Many.", {f"label {number:04}": number for number in range(1400)}, ["label"])


async def test_one_who_reads_slowly_gets_all() -> None:
    made = MetricsServer("127.0.0.1:0", Many())
    await made.start()
    assert made._server is not None
    with socket.socket() as client:
        for each in made._server.sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 13)
        host, _, port = made.address.rpartition(":")
        client.connect((host, int(port)))
        reader, writer = await asyncio.open_connection(sock=client, limit=1 << 12)
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n")
        await until(lambda: not made._connections or reader._buffer)
        await asyncio.sleep(0.1)
        async with asyncio.timeout(PATIENCE):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}\r\n".encode() in head
        assert body.count(b"label=") == 1400
        writer.close()
    await made.stop()


async def test_those_who_say_nothing_are_not_waited_for(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "_SECONDS", 0.1)
    assert await raw(server, b"GET /metrics HTTP/1.1\r\n") == b""


async def test_too_many_are_told_so(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "_SECONDS", PATIENCE)
    host, _, port = server.address.rpartition(":")
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(metrics_server._MOST_CONNECTIONS)]
    await until(lambda: len(server._connections) == len(silent))
    assert (await get(server)).status_code == 503
    for _, writer in silent:
        writer.close()
    await until(lambda: not server._connections)
    assert (await get(server)).status_code == 200


async def test_the_end_waits_for_nobody(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "_SECONDS", 10 * PATIENCE)
    settings = ServiceSettings(metrics_listen="127.0.0.1:0")
    async with asyncio.timeout(PATIENCE), serving_metrics(settings, sample):
        pass
    server = MetricsServer("127.0.0.1:0", sample)
    await server.start()
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await until(lambda: server._connections)
    async with asyncio.timeout(PATIENCE):
        await server.stop()
        assert await reader.read() == b""
    writer.close()
    assert not server._connections


async def test_a_port_in_use_is_named(sample: Sample) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = "{}:{}".format(*other.getsockname())
        with pytest.raises(StartupError, match=f"cannot serve metrics on {address}: "):
            await MetricsServer(address, sample).start()


async def test_without_an_address_nothing_is_served(sample: Sample) -> None:
    sample.fault = AssertionError("nobody asks")
    async with serving_metrics(ServiceSettings(), sample):
        pass


def test_the_expiry_of_certificates_is_a_metric(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("service")
    settings = ServiceSettings(tls_cert=str(pair.cert), tls_key=str(pair.key))
    [family] = CertificateCollector(settings).collect()
    assert served([family]) == documented("Certificates")
    assert {each.labels["setting"]: each.value for each in family.samples} == CertificateExpiry(settings).seconds()
