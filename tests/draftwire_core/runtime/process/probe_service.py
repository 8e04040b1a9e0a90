"""A service to send signals to: python probe_service.py MODE FLAGS. MODE selects its drain and its tasks."""

import asyncio
import io
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from typing import Any

import grpc

from draftwire_core.runtime.process.lifecycle import Shutdown, run_service
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.settings import ServiceSettings, load_settings
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.process.tasks import BackgroundTasks
from draftwire_core.runtime.rpc.server import ServiceServer
from draftwire_core.runtime.rpc.serving import serve

log = get_logger(__name__)


class SignalsWithin(io.RawIOBase):
    """Standard error; two signals come while the first line is written to it."""

    def __init__(self) -> None:
        self._signals = [signal.SIGTERM, signal.SIGINT]

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        while self._signals:
            os.kill(os.getpid(), self._signals.pop(0))
            time.sleep(0.1)
        return os.write(2, data)


class Slow:
    """One call that runs until it is released."""

    def __init__(self) -> None:
        self.released = asyncio.Event()

    async def wait(self, request: bytes, context: Any) -> bytes:
        print("entered", flush=True)
        await self.released.wait()
        return b"finished"

    async def drain(self, grace_seconds: float) -> None:
        print(f"draining {grace_seconds}", flush=True)
        self.released.set()

    async def drain_never(self, grace_seconds: float) -> None:
        print("draining for ever", flush=True)
        await asyncio.Event().wait()


def add_slow_to_server(slow: Slow, server: Any) -> None:
    handlers: dict[str, Any] = {"Wait": grpc.unary_unary_rpc_method_handler(slow.wait)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("probe.Slow", handlers),))


def child() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10000)"])


async def failing() -> None:
    raise RuntimeError("a task gave up")


def main() -> int:
    mode, *argv = sys.argv[1:]
    settings = load_settings(ServiceSettings, argv)

    async def service(shutdown: Shutdown) -> None:
        if mode == "unfit":
            raise StartupError("no model at /nowhere")
        if mode == "memory":
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes\nframe #0")
        if mode == "broken":
            raise KeyError("bug")
        if mode == "loading":
            shutdown.children.append(await asyncio.to_thread(child))
            of_library = multiprocessing.get_context("fork").Process(target=time.sleep, args=(10_000,))
            of_library.start()
            print(shutdown.children[0].pid, of_library.pid, flush=True)
            await asyncio.to_thread(time.sleep, 10_000)
        if mode == "importing":
            print("importing", flush=True)
            time.sleep(10_000)  # noqa: ASYNC251 - as an import does
        if mode == "logging":
            shutdown.serving = True
            interrupted = io.TextIOWrapper(io.BufferedWriter(SignalsWithin()), line_buffering=True)
            sys.stderr = logging.getLogger().handlers[0].stream = interrupted  # type: ignore[attr-defined]
            log.info("line logged")
            await shutdown.wait()
            return
        slow = Slow()
        server = ServiceServer(settings)
        server.add(add_slow_to_server, slow)
        drain = slow.drain_never if mode == "stuck" else slow.drain
        async with BackgroundTasks(shutdown.fail) as tasks:
            if mode == "task":
                tasks.spawn(failing(), name="failing")
                await shutdown.wait()
            await serve(server, shutdown, settings.shutdown_grace_seconds, drain)

    return run_service(service, settings, unused_gpu="a driver that is too old" if mode == "broken" else "")


if __name__ == "__main__":
    sys.exit(main())
