"""The life cycle of a service process: its event loop, its signals, its exit status."""

import asyncio
import logging
import multiprocessing
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import uvloop

from draftwire.version import __version__
from draftwire_core.runtime.process.logs import configure_logs, get_logger
from draftwire_core.runtime.process.settings import ProcessSettings, ServiceSettings
from draftwire_core.runtime.process.startup_error import StartupError, lack_of_memory
from draftwire_core.runtime.process.variables import unknown_variables

log = get_logger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LAST_LINE_SECONDS = 1.0
"""Longest time that a process which ends at once waits for its last line in the log to be written."""


class Shutdown:
    """The shutdown of the service, requested by a signal, a failed task or the service itself."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._failure: BaseException | None = None
        self._left_behind: list[threading.Thread] = []
        self.serving = False
        """Whether requests may run or have run. Until then a signal ends the process immediately."""
        self.children: list[subprocess.Popen[bytes]] = []
        """Child processes that work for this one and end with it, however it ends."""

    @property
    def requested(self) -> bool:
        """Whether a shutdown was requested."""
        return self._requested.is_set()

    @property
    def failure(self) -> BaseException | None:
        """The fault that caused the shutdown, if one did."""
        return self._failure

    def request(self, reason: str) -> None:
        """Requests a graceful shutdown; the first reason is logged, later ones have no effect."""
        if not self._requested.is_set():
            log.info("shutting down", reason=reason)
            self._requested.set()

    def fail(self, error: BaseException) -> None:
        """Requests a graceful shutdown because of a fault; the process then exits with status 1."""
        if self._failure is None:
            self._failure = error
        self.request(f"{type(error).__name__}: {error}")

    async def wait(self) -> None:
        """Waits until a shutdown is requested."""
        await self._requested.wait()

    def leave_behind(self, thread: threading.Thread) -> None:
        """Allows the process to end while a daemon thread that nothing can stop is still running."""
        self._left_behind = [*self.left_behind, thread]

    @property
    def left_behind(self) -> list[threading.Thread]:
        """Threads passed to `leave_behind` that are running or have yet to start."""
        return [thread for thread in self._left_behind if thread.is_alive() or thread.ident is None]


def run_service(
    main: Callable[[Shutdown], Coroutine[Any, Any, None]],
    settings: ServiceSettings,
    *,
    unused_gpu: str = "",
    **about: str,
) -> int:
    """Runs a service in its one event loop and returns the process's exit status.

    unused_gpu: why a GPU of this machine is not used, for a warning. about: more for the first log line.

    The status is 0 after a graceful end and 1 after a fault: a StartupError, and a lack of memory before the
    service serves, is logged as one line, anything else with its traceback. SIGTERM and SIGINT request a shutdown;
    a second signal exits immediately with 128 + its number. Before the service serves, the first signal exits
    immediately with 0: no request is lost, and a library that is loading or downloading a model is not waited for.
    If a thread is left behind, the process exits here: at interpreter shutdown that thread would be torn out of
    foreign code, which aborts the process. So it does after a fault: a GPU that waits for a lost rank would be
    waited for.
    """
    configure_logs(settings.log_format, settings.log_level)
    log_start(settings, **about)
    if unused_gpu:
        log.warning("GPU left unused; the model runs on the CPU (--device cpu asks for this)", reason=unused_gpu)
    # Verifier and drafter often share a host's cores, and an OpenMP thread that spins while waiting for work takes time
    # from the other service. The variable must be set before the library that uses OpenMP is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    shutdown = Shutdown()
    status = 1
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            status = runner.run(_main(main, shutdown))
        except StartupError as error:
            log.error("cannot start", reason=str(error))
        except Exception as error:
            if not shutdown.serving and (reason := lack_of_memory(error)):
                log.error("cannot start", reason=reason)
            else:
                log.exception("service failed")
    if shutdown.left_behind:
        log.info("shut down with work unfinished", threads=[thread.name for thread in shutdown.left_behind])
    if shutdown.left_behind or shutdown.failure is not None:
        logging.shutdown()
        os._exit(status)
    return status


def log_start(settings: ProcessSettings, **about: str) -> None:
    """Logs the build and its settings before any slow work, and warns of variables that nothing reads.

    about: more to say first.
    """
    log.info("starting", **about, build=f"draftwire {__version__}", settings=settings.given)
    for name, meant in unknown_variables(os.environ):
        log.warning("unknown variable ignored", variable=name, did_you_mean=meant)


async def _main(main: Callable[[Shutdown], Coroutine[Any, Any, None]], shutdown: Shutdown) -> int:
    with _handling_signals(shutdown, asyncio.get_running_loop()):
        await main(shutdown)
    return 0 if shutdown.failure is None else 1


@contextmanager
def _handling_signals(shutdown: Shutdown, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Requests the shutdown at a first signal, and ends the process at a second one, or at one before it serves.

    A thread does that, which Python wakes in the moment of the signal, whatever the main thread does: it may be busy
    with an import, or in the middle of writing a line of the log, and could neither write another then nor wait.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def handle() -> None:
        received = False
        while number := os.read(reader, 1)[0]:
            name = signal.Signals(number).name
            if received or shutdown.requested:
                _end_at_once(shutdown, 128 + number, _log_forced, name)
            if not shutdown.serving:
                _end_at_once(shutdown, 0 if shutdown.failure is None else 1, _log_interrupted, name)
            received = True
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(shutdown.request, name)

    thread = threading.Thread(target=handle, name="signals", daemon=True)
    thread.start()
    loops = signal.set_wakeup_fd(writer)
    for each in _SIGNALS:
        signal.signal(each, lambda number, frame: None)  # only what has a handler wakes the thread
    try:
        yield
    finally:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        signal.set_wakeup_fd(loops)
        os.write(writer, b"\0")
        thread.join()
        os.close(writer)
        os.close(reader)


def _log_forced(name: str) -> None:
    log.warning("shutdown forced", signal=name)


def _log_interrupted(name: str) -> None:
    log.info("start interrupted", reason=name)


def _end_at_once(shutdown: Shutdown, status: int, log_cause: Callable[[str], None], cause: str) -> NoReturn:
    """Exits with a last line in the log, without waiting for threads: a thread inside a library cannot be stopped
    safely, and one that writes to a log that nobody reads may never be done."""
    for child in shutdown.children:
        child.kill()
    for of_library in multiprocessing.active_children():  # vLLM's would otherwise stay
        of_library.kill()
    late = threading.Timer(_LAST_LINE_SECONDS, os._exit, (status,))
    late.daemon = True
    late.start()
    try:
        log_cause(cause)
        logging.shutdown()
    finally:
        os._exit(status)
