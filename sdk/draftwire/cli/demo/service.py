"""One service of the demo, as a child process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc

from draftwire.cli.failure import Failure

_CHECK = "/grpc.health.v1.Health/Check"
_SERVING = b"\x08\x01"  # grpc.health.v1.HealthCheckResponse(status=SERVING); its stubs are not a dependency of the SDK
_LOG_TAIL = 8  # lines
_PATIENCE = 5.0  # seconds a service has to stop in


class Service:
    """A child process that serves gRPC on a free port of this machine."""

    def __init__(self, name: str, module: str, model: Path, port: int, logs: Path, *, threads: int = 1) -> None:
        """Start it."""
        self.name = name
        self.address = f"127.0.0.1:{port}"
        self.log = logs / f"{name}.log"
        command = [sys.executable, "-m", module, "--model", str(model), "--listen", self.address]
        command += ["--threads", str(threads), "--log-format", "console"]
        environment = os.environ | {
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # it sees what this process sees
            "PYTHONUNBUFFERED": "1",
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C comes to us alone, and we stop it
            )
        self._channel = grpc.insecure_channel(self.address, options=[("grpc.max_reconnect_backoff_ms", 200)])

    def is_ready(self) -> bool:
        """Return whether it serves.

        Raises:
            Failure: it has ended.
        """
        if self._process.poll() is not None:
            raise Failure(f"{self.name} ended with code {self._process.returncode} while starting:\n{self._tail()}")
        check = self._channel.unary_unary(_CHECK, request_serializer=bytes, response_deserializer=bytes)
        try:
            return bool(check(b"", timeout=2.0) == _SERVING)
        except grpc.RpcError:
            return False

    def kill(self) -> None:
        """End it without a warning, as a crash would."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def terminate(self) -> None:
        """Ask it to end."""
        self._channel.close()
        self._process.terminate()  # does nothing when it has ended

    def wait(self) -> None:
        """Wait until it has ended; kill it when it does not."""
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL:]
        return "\n".join(f"    {line}" for line in lines)


def free_ports(count: int) -> list[int]:
    """Return ports of this machine nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [taken.getsockname()[1] for taken in sockets]
    for taken in sockets:
        taken.close()
    return ports
