"""Verifiers, drafters and gateways as child processes of a benchmark, pinned to cores if it asks for that."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from tests.harness import processes
from tests.harness.services.service_process import ServiceProcess

VERIFIER, DRAFTER = "verifier_service", "drafter_service"


class Services:
    """Starts services, and ends them all with the `with` block. Their logs are in `logs`."""

    def __init__(
        self, threads: int = 1, popen: type[subprocess.Popen[Any]] = subprocess.Popen, flags: Sequence[str] = ()
    ) -> None:
        """threads: compute threads of each service. popen: starts the processes. flags: of all verifiers and
        drafters."""
        self._popen = popen
        self._flags = tuple(flags)
        self.logs = Path(tempfile.mkdtemp(prefix="draftwire-benchmark-"))
        self._threads = threads
        self._running = ExitStack()
        signal.signal(signal.SIGTERM, _exit)  # so that the `with` block ends the services

    def verifier(self, model: Path, *flags: str, cores: Collection[int] = (), module: str = VERIFIER) -> ServiceProcess:
        """Starts a verifier, on some of the machine's cores if given. module: another module to run as the verifier."""
        return self._start(module, model, flags, self._popen, cores)

    def drafter(self, model: Path, *flags: str, cores: Collection[int] = (), module: str = DRAFTER) -> ServiceProcess:
        """Starts a drafter, like `verifier`."""
        return self._start(module, model, flags, self._popen, cores)

    def forked_verifier(self, model: Path, *flags: str) -> ServiceProcess:
        """Starts a verifier in a fraction of the time, as a fork that shares pages with others."""
        return self._start(VERIFIER, model, flags, processes.Popen)

    def forked_drafter(self, model: Path, *flags: str) -> ServiceProcess:
        """Starts a drafter in a fraction of the time, like `forked_verifier`."""
        return self._start(DRAFTER, model, flags, processes.Popen)

    def gateway(self, verifiers: Sequence[str], *flags: str) -> ServiceProcess:
        """Starts a gateway in front of verifiers, given by their addresses."""
        flags = ("--verifier", ",".join(verifiers), *flags)
        return self._keep(
            ServiceProcess(["-m", "gateway_service"], flags, self.logs, popen=self._popen, environment=_environment())
        )

    def _start(
        self,
        module: str,
        model: Path,
        flags: Sequence[str],
        popen: type[subprocess.Popen[Any]],
        cores: Collection[int] = (),
    ) -> ServiceProcess:
        flags = ["--model", str(model), "--threads", str(self._threads), *self._flags, *flags]
        service = ServiceProcess(["-m", module], flags, self.logs, popen=popen, environment=_environment())
        if cores:
            os.sched_setaffinity(service.pid, cores)  # the process is still starting, so its threads will inherit this
        return self._keep(service)

    def _keep(self, service: ServiceProcess) -> ServiceProcess:
        self._running.callback(service.stop)
        return service

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(f"the services' logs are in {self.logs}", file=sys.stderr)
        self._running.__exit__(kind, error, trace)  # `close` would hide the error if a service does not stop


async def started(starts: Iterable[Callable[[], ServiceProcess]]) -> list[str]:
    """Starts services one after another and returns their addresses. Each measures its step costs at start, so services
    that share a core must not start at the same time."""
    addresses = []
    for start in starts:
        service = start()
        addresses.append(await asyncio.to_thread(lambda s=service: s.address))
    return addresses


def _environment() -> dict[str, str]:
    return os.environ | processes.SERVICE_ENVIRONMENT


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
