"""The gateway's process, from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Sequence

import uvicorn
import uvloop
from fastapi import FastAPI

from draftwire._program.trace_export import TracingUnavailable
from draftwire._program.variables import unknown_variables
from draftwire.version import __version__
from gateway.api_keys import ApiKeys, read_key_file
from gateway.app import make_app
from gateway.http_connection import bounded
from gateway.logs import configure_logs, get_logger
from gateway.security import HttpTls, http_tls
from gateway.settings import GatewaySettings, given_settings, load_settings
from gateway.tracing import FLUSH_SECONDS, start_tracing

log = get_logger(__name__)


class HttpServer(uvicorn.Server):
    """uvicorn, with our log and signals: after a graceful end the process ends with status 0."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say where it listens."""
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            log.info("listening", address=address, tls=self.config.ssl is not None)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take SIGTERM and SIGINT; uvicorn itself would raise them again at its end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, number)
        yield

    def _end(self, number: int) -> None:
        if self.should_exit:
            self.force_exit = True
        log.info("shutting down", reason=signal.Signals(number).name)
        self.should_exit = True


def main(argv: Sequence[str] | None = None) -> int:
    """Run the gateway until a signal ends it; return the exit status."""
    settings = load_settings(argv)
    configure_logs(settings.log_format, settings.log_level)
    log.info("starting", build=f"draftwire {__version__}", settings=given_settings(settings))
    for name, meant in unknown_variables(os.environ):
        log.warning("unknown variable; it has no effect", variable=name, did_you_mean=meant)
    try:
        tls = http_tls(settings)
        keys = _keys(settings)
        export = start_tracing(settings)
    except ValueError as error:
        log.error(str(error))
        return 1
    except TracingUnavailable as error:
        log.error(f"--trace-endpoint: {error}")
        return 1
    try:
        return _serve(settings, make_app(settings, keys), tls)
    except ValueError as error:
        log.error(str(error))
        return 1
    finally:
        if export is not None:
            export.close(min(settings.shutdown_grace_seconds, FLUSH_SECONDS))


def _serve(settings: GatewaySettings, app: FastAPI, tls: HttpTls | None) -> int:
    host, _, port = settings.listen.rpartition(":")
    config = uvicorn.Config(
        app,
        http=bounded(settings.max_connections),
        host=host.strip("[]"),
        port=int(port),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=settings.shutdown_grace_seconds,
    )
    if tls is not None:
        config.load()
        config.ssl = tls.context()
    server = HttpServer(config)
    try:
        uvloop.run(server.serve())
    except SystemExit:  # of uvicorn, which has logged why it cannot start, with a status of its own
        return 1
    return 0 if server.started else 1


def _keys(settings: GatewaySettings) -> ApiKeys:
    listed = [key.get_secret_value() for key in settings.api_key]
    return ApiKeys([*listed, *(read_key_file(settings.api_key_file) if settings.api_key_file else ())])
