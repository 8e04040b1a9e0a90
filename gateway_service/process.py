"""The life cycle of the gateway's process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator, Sequence

import uvicorn
import uvloop
from fastapi import FastAPI

from draftwire_core.runtime.process.address import Address
from draftwire_core.runtime.process.lifecycle import log_start
from draftwire_core.runtime.process.logs import configure_logs, get_logger
from draftwire_core.runtime.process.settings import load_settings
from draftwire_core.runtime.process.startup_error import StartupError, named_flags
from draftwire_core.runtime.process.trace_export import TraceExport, TracingUnavailable
from gateway_service.app import make_app
from gateway_service.http.connection import IDLE_SECONDS, bounded
from gateway_service.keys.api_keys import ApiKeys, read_key_file
from gateway_service.keys.key_file import KeyFile
from gateway_service.security import HttpTls, http_tls
from gateway_service.settings import GatewaySettings

log = get_logger(__name__)

_FLUSH_SECONDS = 2.0
"""Longest time for the last spans to reach the collector when the gateway ends."""


class HttpServer(uvicorn.Server):
    """uvicorn's server with this project's log and signals: after a graceful end the process exits with status 0.

    `run_service` does not fit: uvicorn ends its connections itself, within its own grace time.
    """

    def __init__(self, config: uvicorn.Config, ending: asyncio.Event) -> None:
        """ending: is set when the server begins to end."""
        super().__init__(config)
        self._ending = ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts the server and logs its address."""
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            log.info("listening", address=str(Address(host, port)), tls=self.config.ssl is not None)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles SIGTERM and SIGINT; uvicorn's own version would raise them again at the end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, number)
        yield

    def _end(self, number: int) -> None:
        if self.should_exit:
            self.force_exit = True
        log.info("shutting down", reason=signal.Signals(number).name)
        self.should_exit = True
        self._ending.set()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the gateway until a signal ends it; returns the exit status."""
    settings = load_settings(GatewaySettings, argv)
    configure_logs(settings.log_format, settings.log_level, with_logger=False)
    log_start(settings)
    try:
        tls = http_tls(settings)
        keys = _keys(settings)
        with _tracing(settings):
            return _serve(settings, make_app(settings, keys), tls)
    except StartupError as error:
        log.error(str(error))
        return 1


def _serve(settings: GatewaySettings, app: FastAPI, tls: HttpTls | None) -> int:
    listen = Address.parse(settings.listen)
    config = uvicorn.Config(
        app,
        http=bounded(settings.max_connections),
        host=listen.host,
        port=listen.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=settings.shutdown_grace_seconds,
    )
    if tls is not None:
        config.load()
        config.ssl = tls.context()
    server = HttpServer(config, app.state.ending)
    try:
        uvloop.run(server.serve())
    except SystemExit:  # from uvicorn, which has logged why it cannot start, with its own status
        return 1
    return 0 if server.started else 1


def _keys(settings: GatewaySettings) -> ApiKeys:
    listed = [key.get_secret_value() for key in settings.api_key]
    with named_flags("--api-key-file"):
        plain = [*listed, *(read_key_file(settings.api_key_file) if settings.api_key_file else ())]
    with named_flags("--keys"):
        return ApiKeys(plain, KeyFile(settings.keys) if settings.keys else None)


@contextlib.contextmanager
def _tracing(settings: GatewaySettings) -> Iterator[None]:
    """Traces inside the `with`, if the settings ask for it. Raises StartupError when a package is missing."""
    if not settings.trace_endpoint:
        yield
        return
    try:
        export = TraceExport(settings.trace_endpoint, settings.trace_sample_ratio, "draftwire-gateway")
    except TracingUnavailable as error:
        raise StartupError(f"--trace-endpoint: {error}") from error
    export.install()
    log.info("tracing enabled", endpoint=settings.trace_endpoint, sample_ratio=settings.trace_sample_ratio)
    try:
        yield
    finally:
        export.close(min(settings.shutdown_grace_seconds, _FLUSH_SECONDS))
