"""The gRPC server of a service."""

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from draftwire._types.address import is_loopback_host
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.process.address import Address
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.memory import HeapTrimmer
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.rpc.channel import server_options
from draftwire_core.runtime.rpc.health import Health
from draftwire_core.runtime.rpc.interceptors import CallInterceptor
from draftwire_core.runtime.security.server_tls import accepted_tokens, server_tls

log = get_logger(__name__)

_LOADING_RETRY_SECONDS = 2.0
"""When a caller is asked to try again while the service is loaded."""

ServicerT = TypeVar("ServicerT")


class ServiceServer:
    """Serves the added services, grpc.health.v1 and, if enabled, reflection on one port.

    Call open before the service is loaded, then add and start, and at the end begin_shutdown and stop; `serving.serve`
    makes the last three calls.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        """Reads the certificate and token files. Raises StartupError, naming the flag, when one cannot be used, or when
        traffic would be readable to others and --insecure does not allow it."""
        self._listen = Address.parse(settings.listen)
        self._metrics_listen = Address.parse(settings.metrics_listen) if settings.metrics_listen else None
        self._tls = server_tls(settings)
        tokens = accepted_tokens(settings)
        local = is_loopback_host(self._listen.host)
        self._reflects = local if settings.reflection is None else settings.reflection
        self._open_to_all = not local and tokens is None and settings.tls_client_ca is None
        self.heap = HeapTrimmer()
        """Counts large messages; active while the server runs."""
        self._interceptor = CallInterceptor(settings.max_message_bytes, tokens, self.heap.note)
        self._server = grpc.aio.server(
            interceptors=[self._interceptor],
            options=server_options(
                settings.max_message_bytes, settings.max_connections, settings.max_calls_per_connection
            ),
        )
        self._services: list[str] = []
        self._health: Health | None = None
        self._loading = False
        self._bound_port = 0
        self._watching: set[asyncio.Task[None]] = set()

    def add(self, add_to_server: Callable[[ServicerT, Any], None], servicer: ServicerT) -> None:
        """Adds a service by its generated function, for example add_DrafterServiceServicer_to_server."""
        recorder = _Recorder(self._server)
        add_to_server(servicer, recorder)
        self._services.extend(recorder.services)

    @property
    def bound_port(self) -> int:
        """The port that the server listens on; raises RuntimeError before start."""
        if not self._bound_port:
            raise RuntimeError("the server has not been started")
        return self._bound_port

    @property
    def address(self) -> str:
        """HOST:PORT that the server listens on, with the real port; raises RuntimeError before start."""
        return str(Address(self._listen.host, self.bound_port))

    async def open(self) -> None:
        """Binds the port before the service is loaded. Until `start` health is NOT_SERVING, and all other calls end
        with UNAVAILABLE, which callers read as "not yet".

        Raises StartupError, naming the address, when it cannot be bound.
        """
        self._loading = True
        self._server.add_generic_rpc_handlers((_WhileLoading(lambda: self._loading),))
        if self._metrics_listen is not None:
            _check_bindable(self._metrics_listen)
        await self._open()
        await self.set_serving(False)

    async def start(self, *, serving: bool = True) -> None:
        """Accepts calls, and binds the port unless it is open; with `serving` False, health is NOT_SERVING until
        `set_serving`.

        Raises StartupError, naming the address, when it cannot be bound.
        """
        names = [*self._services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name]
        if self._reflects:
            reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], self._server)
        if not self._loading:
            await self._open()
        self._loading = False
        self._started_health().add(self._services)
        await self.set_serving(serving)
        log.info("listening", address=self.address, tls=self._tls is not None)
        if self._open_to_all:
            log.warning(
                "no authentication: anyone who can reach this port has full access "
                "(set --accepted-tokens or --tls-client-ca)"
            )

    async def _open(self) -> None:
        """Binds the port. Raises StartupError."""
        _check_bindable(self._listen)
        self._health = Health()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        try:
            if self._tls is None:
                self._bound_port = self._server.add_insecure_port(str(self._listen))
            else:
                self._bound_port = self._server.add_secure_port(str(self._listen), self._tls.credentials())
        except RuntimeError as error:
            raise StartupError(f"cannot listen on {self._listen}: {error}") from error
        await self._server.start()
        self._watching = {
            asyncio.create_task(self._interceptor.watch(), name="token-watch"),
            asyncio.create_task(self.heap.run(), name="heap-trimmer"),
        }

    async def set_serving(self, serving: bool) -> None:
        """Sets the health of the server and all its services; raises RuntimeError before start."""
        await self._started_health().set_serving(serving)

    async def begin_shutdown(self) -> None:
        """Sets health to NOT_SERVING for good and refuses new calls with SHUTTING_DOWN; running calls continue."""
        self._interceptor.refuse_new_calls()
        await self._started_health().enter_graceful_shutdown()

    async def stop(self, grace_seconds: float) -> None:
        """Closes the port, waits up to the grace time for running calls, and cancels the rest."""
        if self._health is not None:
            self._health.end_watches()
        await self._server.stop(grace_seconds)
        watching, self._watching = self._watching, set()
        for task in watching:
            task.cancel()
        if watching:
            await asyncio.wait(watching)

    def _started_health(self) -> Health:
        if self._health is None:
            raise RuntimeError("the server has not been started")
        return self._health


class _WhileLoading(grpc.GenericRpcHandler):
    """Answers every call but those of health checks while the service is loaded."""

    def __init__(self, loading: Callable[[], bool]) -> None:
        self._loading = loading

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Returns the handler of a call; None for a health check, and once the service has been loaded."""
        if not self._loading() or handler_call_details.method.startswith("/grpc.health."):
            return None
        return grpc.stream_stream_rpc_method_handler(_not_yet)


async def _not_yet(_: Any, __: Any) -> None:
    # The reason that says to a caller that nothing was begun here, and that another service may do it.
    raise ServiceError(
        grpc.StatusCode.UNAVAILABLE,
        ErrorReason.ERROR_REASON_SHUTTING_DOWN,
        "the service is loading its model",
        retry_after_seconds=_LOADING_RETRY_SECONDS,
    )


class _Recorder:
    """Stands in for the server while a service is added, and records the service's name for health and reflection."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server: Any = server
        self.services: list[str] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.ServiceRpcHandler]) -> None:
        self.services.extend(str(handler.service_name()) for handler in handlers)
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        self._server.add_registered_method_handlers(service, handlers)


def _check_bindable(address: Address) -> None:
    """Raises StartupError with the system's own reason when the address cannot be listened on.

    grpc only reports that it failed, and of the two addresses of `localhost` it silently takes one when another server
    holds the other. This check is racy, which at worst costs a less helpful message.
    """
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except socket.gaierror as error:
        raise StartupError(f"cannot listen on {address}: {error.strerror}") from error
    failures = []
    for family, kind, protocol, _, target in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(target)
        except OSError as error:
            failures.append(error)
    # An address family that this machine lacks is no fault while another one works.
    fatal = [error for error in failures if error.errno in (errno.EADDRINUSE, errno.EACCES)]
    if fatal or len(failures) == len(found):
        reason = (fatal or failures)[0].strerror
        raise StartupError(f"cannot listen on {address}: {reason}")
