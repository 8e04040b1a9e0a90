"""Child processes of a command, services among them."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc

from draftwire.cli.failure import Failure, check_installed
from draftwire_tools.end_reason import end_reason

VERIFIER, DRAFTER = "verifier_service", "drafter_service"
_NEEDED = ("torch", "transformers", VERIFIER, DRAFTER)
_CHECK = "/grpc.health.v1.Health/Check"
_SERVING = b"\x08\x01"  # grpc.health.v1.HealthCheckResponse(status=SERVING); its stubs are not a dependency of the SDK
_PATIENCE = 5.0  # seconds a child has to stop in
_MOST_LOG_BYTES = 1 << 16
"""Bytes at the end of a log in which the reason of the end is looked for."""


_OF_CALLS = ("TLS_CA", "TLS_CLIENT_CERT", "TLS_CLIENT_KEY", "TLS_SERVER_NAME", "TOKEN_FILE")
_OF_SERVING = ("TLS_CERT", "TLS_KEY", "TLS_CLIENT_CA", "ACCEPTED_TOKENS")


def call_here() -> None:
    """Has child processes call each other as they serve, without TLS and tokens: variables about calls, which are for
    services elsewhere, do not reach them."""
    for name in _OF_CALLS:
        for program in ("", "GATEWAY_"):
            os.environ.pop(f"DRAFTWIRE_{program}{name}", None)


def child_environment() -> dict[str, str]:
    """Returns the environment of a child process in Python, which imports what this process can import. A service among
    them is called by this process without TLS and tokens, and so serves without them."""
    served = {f"DRAFTWIRE_{name}" for name in _OF_SERVING}
    kept = {name: value for name, value in os.environ.items() if name not in served}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class Job:
    """A child process that is ready when it has ended."""

    def __init__(self, name: str, arguments: Sequence[str], logs: Path, *, threads: int = 1) -> None:
        """Starts Python with these arguments. threads: compute threads."""
        self.name = name
        self.log = logs / f"{name}.log"
        environment = child_environment() | {
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "PYTHONUNBUFFERED": "1",
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C comes to us alone, and we stop it
            )

    def is_ready(self) -> bool:
        """Returns whether it has ended well.

        Raises:
            Failure: it has ended badly.
        """
        code = self._process.poll()
        if code:
            raise self.failure(code)
        return code == 0

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def kill(self) -> None:
        """Ends it without a warning, as a crash would."""
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        """Asks it to end."""
        self._process.terminate()  # does nothing when it has ended

    def wait(self, seconds: float = _PATIENCE) -> None:
        """Waits until it has ended, and kills it if it has not after `seconds`."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    @property
    def ended(self) -> int | None:
        """The process's exit status; None while it runs."""
        return self._process.poll()

    def failure(self, code: int) -> Failure:
        """Returns the error of its end with an exit status: the reason that its log gives."""
        said = b""
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as log:  # systems remove old temporary files
            log.seek(max(0, log.seek(0, os.SEEK_END) - _MOST_LOG_BYTES))
            said = log.read()
        return Failure(end_reason(self.name, code, said.decode(errors="replace")))


class Service(Job):
    """A child process that serves gRPC on this machine, ready when it serves."""

    def __init__(
        self,
        name: str,
        module: str,
        model: str | Path,
        logs: Path,
        *flags: str,
        threads: int = 1,
        address: str = "",
    ) -> None:
        """Starts it with a model and more flags. threads: compute threads. address: to listen on, by default a free
        port."""
        self.address = address or free_address()
        arguments = ["-m", module, "--model", str(model), "--listen", self.address, "--threads", str(threads)]
        super().__init__(name, [*arguments, "--log-format", "console", *flags], logs, threads=threads)
        options = [("grpc.max_reconnect_backoff_ms", 200), ("grpc.enable_http_proxy", 0)]
        self._channel = grpc.insecure_channel(self.address, options=options)

    def is_ready(self) -> bool:
        """Returns whether it serves.

        Raises:
            Failure: it has ended.
        """
        code = self._process.poll()
        if code is not None:
            raise self.failure(code)
        check = self._channel.unary_unary(_CHECK, request_serializer=bytes, response_deserializer=bytes)
        try:
            return bool(check(b"", timeout=2.0) == _SERVING)
        except grpc.RpcError:
            return False

    def terminate(self) -> None:
        """Asks it to end."""
        self._channel.close()
        super().terminate()


def check_services_installed(command: str, *further: str, extra: str = "serve") -> None:
    """Checks that the services can run here, for a command that starts them. further: other packages it needs. extra:
    what installs all of them.

    Raises:
        Failure: something is not installed.
    """
    check_installed(f"{command} runs the services here and", (*_NEEDED, *further), extra)


def free_address(host: str = "127.0.0.1") -> str:
    """Returns an address HOST:PORT whose port is free on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"{host}:{taken.getsockname()[1]}"
