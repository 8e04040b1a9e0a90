"""Serves a service's metrics over HTTP to Prometheus and similar scrapers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from http import HTTPStatus

import h11
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from draftwire_core.runtime.observability.metric_families import gauge
from draftwire_core.runtime.process.address import Address
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.process.tls_settings import EXPIRY, EXPIRY_MEANING, CertificateExpiry

log = get_logger(__name__)

_MOST_CONNECTIONS = 8
"""Most connections at once; further ones get SERVICE_UNAVAILABLE."""
_SECONDS = 10.0
"""Time limit for a connection, from first byte to last."""
_MOST_REQUEST_BYTES = 16384
_READ_BYTES = 4096


class MetricsServer:
    """Answers `GET /metrics`, one request per connection.

    Metrics are collected in the event loop, where they may be read without locks, and rendered in a thread.
    """

    def __init__(self, listen: str, *collectors: Collector) -> None:
        """listen: HOST:PORT. collectors: called in the event loop at each scrape; metrics of the process are added."""
        self._listen = Address.parse(listen)
        self._registry = CollectorRegistry()
        for collector in collectors:
            self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """HOST:PORT that the server listens on, with the real port; raises RuntimeError before start."""
        if self._server is None:
            raise RuntimeError("the server has not been started")
        return str(Address(self._listen.host, self._server.sockets[0].getsockname()[1]))

    async def start(self) -> None:
        """Binds the port and accepts connections. Raises StartupError, naming the address, when it cannot be bound."""
        try:
            self._server = await asyncio.start_server(self._accept, self._listen.host, self._listen.port)
        except OSError as error:
            raise StartupError(f"cannot serve metrics on {self._listen}: {error.strerror or error}") from error
        log.info("metrics server started", address=self.address)

    async def stop(self) -> None:
        """Closes the port and every connection."""
        if self._server is None:
            return
        self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer), name="metrics-connection")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MOST_REQUEST_BYTES)
                response = await self._response(connection, reader)
                if response is not None:
                    await _send(connection, writer, *response)
        except (TimeoutError, ConnectionError) as error:
            log.debug("metrics connection lost", reason=str(error) or "too slow")
        finally:
            # A slow reader has had its time.
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _response(
        self, connection: h11.Connection, reader: asyncio.StreamReader
    ) -> tuple[HTTPStatus, str, bytes] | None:
        """Returns status, content type and body; None for a client that left without a request."""
        try:
            request = await _request(connection, reader)
        except h11.RemoteProtocolError as error:
            return _problem(HTTPStatus(error.error_status_hint), str(error))
        if request is None:
            return None
        if len(self._connections) > _MOST_CONNECTIONS:
            return _problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{_MOST_CONNECTIONS} connections are open already")
        if request.target.partition(b"?")[0] != b"/metrics":
            return _problem(HTTPStatus.NOT_FOUND, "the metrics are at /metrics")
        if request.method not in (b"GET", b"HEAD"):
            return _problem(HTTPStatus.METHOD_NOT_ALLOWED, "metrics are read-only: use GET or HEAD")
        try:
            return await self._exposition()
        except Exception:
            log.exception("metrics collection failed")
            return _problem(HTTPStatus.INTERNAL_SERVER_ERROR, "metrics collection failed")

    async def _exposition(self) -> tuple[HTTPStatus, str, bytes]:
        # Never OpenMetrics, although Prometheus prefers it: its exporter replaces the colons in names by underscores.
        collected = _Collected(list(self._registry.collect()))
        return HTTPStatus.OK, CONTENT_TYPE_PLAIN_0_0_4, await asyncio.to_thread(generate_latest, collected)


class _Collected(Collector):
    """Holds the collected metrics of a registry, in place of the registry."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class CertificateCollector(Collector):
    """Collects when the certificates of a service's settings expire."""

    def __init__(self, settings: ServiceSettings) -> None:
        """Reads the certificates. Raises StartupError if a file cannot be used."""
        self._expiry = CertificateExpiry(settings)

    def collect(self) -> Iterable[Metric]:
        """Returns the metric family."""
        return [gauge(EXPIRY, EXPIRY_MEANING, self._expiry.seconds(), ["setting"])]


@asynccontextmanager
async def serving_metrics(settings: ServiceSettings, collector: Collector) -> AsyncIterator[None]:
    """Serves a service's metrics, and those of its certificates, until the `async with` is left, if the settings name
    an address. Raises StartupError."""
    if settings.metrics_listen is None:
        yield
        return
    server = MetricsServer(settings.metrics_listen, collector, CertificateCollector(settings))
    await server.start()
    try:
        yield
    finally:
        await server.stop()


async def _request(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """Returns the request's head; a body is ignored. Raises h11.RemoteProtocolError."""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            return None
        connection.receive_data(await reader.read(_READ_BYTES))


async def _send(
    connection: h11.Connection, writer: asyncio.StreamWriter, status: HTTPStatus, content_type: str, body: bytes
) -> None:
    headers = [("content-type", content_type), ("content-length", str(len(body))), ("connection", "close")]
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        headers.append(("allow", "GET, HEAD"))
    head = h11.Response(status_code=status, headers=headers, reason=status.phrase)
    # Then drain waits until all is sent; the rest would be lost with the connection.
    writer.transport.set_write_buffer_limits(high=0)
    for event in (head, h11.Data(data=body), h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    await writer.drain()


def _problem(status: HTTPStatus, text: str) -> tuple[HTTPStatus, str, bytes]:
    return status, "text/plain; charset=utf-8", f"{text}\n".encode()
