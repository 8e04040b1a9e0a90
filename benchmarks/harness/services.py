"""Verifier and drafter services as child processes of a benchmark, pinned to cores if it asks for that."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.harness.checkout import ROOT

VERIFIER, DRAFTER = "verifier_service", "drafter_service"
_START_SECONDS = 180.0
_STOP_SECONDS = 15.0


class ServiceError(RuntimeError):
    """Raised when a service does not start."""


class Service:
    """One service process. It starts at once; `address` waits until it serves, so several can start side by side."""

    def __init__(self, process: subprocess.Popen[bytes] | BaseProcess, log: Path):
        self.process = process
        self.log = log
        self._address: str | None = None

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def address(self) -> str:
        """HOST:PORT, once its health is SERVING. Raises ServiceError."""
        deadline = time.monotonic() + _START_SECONDS
        while self._address is None:
            address = self._listening()
            if address is not None and _healthy(address):
                self._address = address
            elif not self.alive:
                raise ServiceError(f"a service has ended:\n{self.log.read_text(errors='replace')}")
            elif time.monotonic() > deadline:
                raise ServiceError(f"a service does not serve after {_START_SECONDS:.0f} s; its log is {self.log}")
            else:
                time.sleep(0.02)
        return self._address

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        if isinstance(self.process, BaseProcess):
            return self.process.is_alive()
        return self.process.poll() is None

    def kill(self) -> None:
        """Ends the process with SIGKILL, as a crash would."""
        self.process.kill()
        self._wait(None)

    def pause(self) -> None:
        """Freezes the process with SIGSTOP. Its connections stay open, and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resumes the process with SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Ends the process gracefully, or by force if that takes too long."""
        if self.alive:
            self.process.terminate()
        if not self._wait(_STOP_SECONDS):
            self.kill()

    def end(self) -> None:
        """Sends SIGTERM and waits, however long the service takes to finish its work."""
        self.process.terminate()
        self._wait(None)

    def _wait(self, seconds: float | None) -> bool:
        if isinstance(self.process, BaseProcess):
            self.process.join(seconds)
            return not self.process.is_alive()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _listening(self) -> str | None:
        if not self.log.exists():
            return None
        for line in self.log.read_text(errors="replace").splitlines(keepends=True):
            if line.startswith("{") and line.endswith("}\n"):
                event = json.loads(line)
                if event["event"] == "listening":
                    return str(event["address"])
        return None


class Services:
    """Starts services, and ends them all with the `with` block. Their logs are in `logs`."""

    def __init__(self, threads: int = 1, popen: type[subprocess.Popen[bytes]] = subprocess.Popen) -> None:
        """threads: compute threads of each service. popen: starts the processes."""
        self._popen = popen
        self.logs = Path(tempfile.mkdtemp(prefix="draftwire-benchmark-"))
        self._threads = threads
        self._running = ExitStack()
        self._count = 0
        self._fork_server: multiprocessing.context.ForkServerContext | None = None
        os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # forked services need it in this process's environment
        signal.signal(signal.SIGTERM, _exit)  # so that the `with` block ends the services

    def verifier(self, model: Path, *flags: str, cores: Collection[int] = (), module: str = VERIFIER) -> Service:
        """Starts a verifier, on some of the machine's cores if given. module: another module to run as the verifier."""
        return self._start(module, model, flags, cores)

    def drafter(self, model: Path, *flags: str, cores: Collection[int] = (), module: str = DRAFTER) -> Service:
        """Starts a drafter, like `verifier`."""
        return self._start(module, model, flags, cores)

    def forked_drafter(self, model: Path, *flags: str) -> Service:
        """Starts a drafter in a fraction of the time, as a process forked after the imports."""
        return self._fork(DRAFTER, model, flags)

    def forked_verifier(self, model: Path, *flags: str) -> Service:
        """Starts a verifier in a fraction of the time, like `forked_drafter`."""
        return self._fork(VERIFIER, model, flags)

    def _fork(self, module: str, model: Path, flags: Sequence[str]) -> Service:
        if self._fork_server is None:
            self._fork_server = multiprocessing.get_context("forkserver")
            modules = [f"{name}.{part}" for name in (DRAFTER, VERIFIER) for part in ("process", "service")]
            self._fork_server.set_forkserver_preload(modules)
        log = self._log(module, model)
        process = self._fork_server.Process(target=_serve, args=(module, self._arguments(model, flags), str(log)))
        process.start()
        return self._keep(Service(process, log))

    def _start(self, module: str, model: Path, flags: Sequence[str], cores: Collection[int]) -> Service:
        log = self._log(module, model)
        with log.open("wb") as output:
            process = self._popen(
                [sys.executable, "-m", module, *self._arguments(model, flags)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        if cores:
            os.sched_setaffinity(process.pid, cores)  # the process is still starting, so its threads will inherit this
        return self._keep(Service(process, log))

    def _arguments(self, model: Path, flags: Sequence[str]) -> list[str]:
        common = ["--listen", "127.0.0.1:0", "--threads", str(self._threads), "--log-format", "json"]
        return ["--model", str(model), *common, *flags]

    def _log(self, module: str, model: Path) -> Path:
        self._count += 1
        return self.logs / f"{self._count:03d}-{module}-{model.name}.log"

    def _keep(self, service: Service) -> Service:
        self._running.callback(service.stop)
        return service

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()
        if error is not None:
            print(f"the services' logs are in {self.logs}", file=sys.stderr)


async def started(starts: Iterable[Callable[[], Service]]) -> list[str]:
    """Starts services one after another and returns their addresses. Each measures its step costs at start, so services
    that share a core must not start at the same time."""
    addresses = []
    for start in starts:
        service = start()
        addresses.append(await asyncio.to_thread(lambda s=service: s.address))
    return addresses


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _serve(module: str, arguments: list[str], log: str) -> None:
    """Runs a forked service."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    os.chdir(ROOT)
    sys.exit(import_module(f"{module}.process").main(arguments))


def _healthy(address: str) -> bool:
    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=2.0)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
