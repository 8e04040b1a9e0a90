"""The life of a service process: its event loop, its signals, its exit status."""

import asyncio
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, NoReturn

import uvloop

from draftwire._program.variables import unknown_variables
from draftwire.version import __version__
from service_runtime.process.logs import configure_logs, get_logger
from service_runtime.process.settings import ProcessSettings, ServiceSettings
from service_runtime.process.startup_error import StartupError

log = get_logger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """The wish to end the service, from a signal, a failed task or the service itself."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._failure: BaseException | None = None
        self._left_behind: list[threading.Thread] = []
        self.serving = False
        """Whether requests may run or have run. Until then a signal ends the process at once."""
        self.children: list[subprocess.Popen[bytes]] = []
        """Processes that work for this one, and end with it however it ends."""

    @property
    def requested(self) -> bool:
        """True once somebody asked for the end."""
        return self._requested.is_set()

    @property
    def failure(self) -> BaseException | None:
        """The fault that brought the end, when one did."""
        return self._failure

    def request(self, reason: str) -> None:
        """Asks for a graceful end; the first reason is logged, later ones change nothing."""
        if not self._requested.is_set():
            log.info("shutting down", reason=reason)
            self._requested.set()

    def fail(self, error: BaseException) -> None:
        """Asks for a graceful end because of a fault; the process then exits with status 1."""
        if self._failure is None:
            self._failure = error
        self.request(f"{type(error).__name__}: {error}")

    async def wait(self) -> None:
        """Returns once the end was asked for."""
        await self._requested.wait()

    def leave_behind(self, thread: threading.Thread) -> None:
        """Says that the process may end while a daemon thread still runs, since nothing can end that thread."""
        self._left_behind = [*self.left_behind, thread]

    @property
    def left_behind(self) -> list[threading.Thread]:
        """Threads of `leave_behind` that run, or have yet to start."""
        return [thread for thread in self._left_behind if thread.is_alive() or thread.ident is None]


def run_service(main: Callable[[Shutdown], Coroutine[Any, Any, None]], settings: ServiceSettings) -> int:
    """Runs a service in its one event loop and returns the process's exit status.

    0 after a graceful end, 1 after a fault: a StartupError is logged as one line, anything else with its traceback.
    SIGTERM and SIGINT ask for the end; a second one leaves at once with 128 + its number. Before the service serves,
    the first one ends the process at once with 0: no request is lost by it, and no library has to be waited for that
    loads or fetches a model. Where a thread is left behind the process ends here: the interpreter, on its way out,
    would tear that thread out of foreign code, which aborts the process.
    """
    configure_logs(settings.log_format, settings.log_level)
    log_start(settings)
    # Verifier and drafter often share a host's cores. An OpenMP thread that spins while it waits for work takes the
    # other service's time; this has to be said before the library that uses OpenMP is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    shutdown = Shutdown()
    status = 1
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            status = runner.run(_main(main, shutdown))
        except StartupError as error:
            log.error("cannot start", reason=str(error))
        except Exception:
            log.exception("service failed")
    if shutdown.left_behind:
        log.info("leaving work undone", threads=[thread.name for thread in shutdown.left_behind])
        logging.shutdown()
        os._exit(status)
    return status


def log_start(settings: ProcessSettings) -> None:
    """Logs the build and its settings before anything takes time, and warns of variables that nothing reads."""
    log.info("starting", build=f"draftwire {__version__}", settings=settings.given)
    for name, meant in unknown_variables(os.environ):
        log.warning("unknown variable; it has no effect", variable=name, did_you_mean=meant)


async def _main(main: Callable[[Shutdown], Coroutine[Any, Any, None]], shutdown: Shutdown) -> int:
    loop = asyncio.get_running_loop()
    received: list[str] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        name = signal.Signals(number).name
        if received or shutdown.requested:
            log.warning("leaving at once", signal=name)
            _end_at_once(shutdown, 128 + number)
        if not shutdown.serving:
            log.info("ending before it serves", reason=name)
            _end_at_once(shutdown, 0 if shutdown.failure is None else 1)
        received.append(name)
        loop.call_soon_threadsafe(shutdown.request, name)

    # The interpreter's own handlers: they run also while an import holds up the event loop.
    for number in _SIGNALS:
        signal.signal(number, on_signal)
    try:
        await main(shutdown)
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
    return 0 if shutdown.failure is None else 1


def _end_at_once(shutdown: Shutdown, status: int) -> NoReturn:
    """Ends the process without waiting for its threads: nothing ends one that is inside a library safely."""
    try:
        for child in shutdown.children:
            child.kill()
        logging.shutdown()
    finally:
        os._exit(status)
