"""Serves until shutdown, then ends gracefully."""

import asyncio
from collections.abc import Awaitable, Callable

from draftwire_core.runtime.process.lifecycle import Shutdown
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.rpc.server import ServiceServer

log = get_logger(__name__)

_LAST_WORDS_SECONDS = 1.0
"""Time that the server continues after a drain that was cut short, so that ended calls still receive their errors."""


async def serve(
    server: ServiceServer,
    shutdown: Shutdown,
    grace_seconds: float,
    drain: Callable[[float], Awaitable[None]] | None = None,
    started: Callable[[], None] | None = None,
) -> None:
    """Starts the server, waits for the shutdown, and ends gracefully within the grace time.

    `started` is called once the server accepts calls and has its address. At the end, health turns NOT_SERVING and new
    calls are refused; then `drain(seconds)` lets the service's work finish; then the server stops. `drain` is cancelled
    after that time, and may then still end calls with an error. Does nothing when the shutdown was requested earlier,
    for example by a failed task. Raises StartupError when the address cannot be bound, and errors of `drain` after the
    server has stopped.
    """
    if shutdown.requested:
        return
    shutdown.serving = True
    loop = asyncio.get_running_loop()
    try:
        await server.start()
        if started is not None:
            started()
        await shutdown.wait()
        deadline = loop.time() + grace_seconds
        await server.begin_shutdown()
        if drain is not None:
            try:
                async with asyncio.timeout_at(deadline) as limit:
                    await drain(grace_seconds)
            except TimeoutError:
                if not limit.expired():
                    raise
                log.warning("drain cut short", grace_seconds=grace_seconds)
                deadline = loop.time() + _LAST_WORDS_SECONDS
        await server.stop(max(0.0, deadline - loop.time()))
    finally:
        await server.stop(0)  # no effect after a graceful stop
